"""Declaring commands as handlers, on an App and on groups of Handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from duetime.app.handlers import AnyHandler, Handler
from duetime.app.options import TargetOptions, checked_spec
from duetime.clock import Seconds
from duetime.model.disabling import DisableAfter
from duetime.model.fairness import Fair
from duetime.model.limit import Limit
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.secrets import Secret
from duetime.model.task import check_name
from duetime.targets.command.command import DEFAULT_GRACE, DEFAULT_KEEP_ENV, PAYLOAD, Exit, Sandbox, command
from duetime.targets.payload import check_result
from duetime.targets.policies import DisableScope, disabling_of, own_retention
from duetime.targets.spec import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT, HandlerSpec
from duetime.targets.typed import payloads_of

P = ParamSpec("P")
R = TypeVar("R")

Uncallable: TypeAlias = Callable[..., NoReturn]
Argv: TypeAlias = Sequence[str] | None


class CommandOptions(TargetOptions, total=False):
    """The options of a command; `DeclaresCommands.command` explains them."""

    artifact: str | None
    stdin: Any
    env: Mapping[str, str | Secret]
    keep_env: Sequence[str]
    sandbox: Sandbox | None
    exits: Mapping[int, Exit]
    stop: str | int
    grace: Seconds


class DeclaresCommands:
    """The part of a Registry that declares commands."""

    _prefix: str

    def register(self, spec: HandlerSpec) -> AnyHandler:
        raise NotImplementedError

    @overload
    def command(
        self,
        name: str,
        argv: Argv = None,
        *,
        payload: Callable[P, object],
        result: type[R],
        **options: Unpack[CommandOptions],
    ) -> Handler[P, R, Uncallable]: ...
    @overload
    def command(
        self,
        name: str,
        argv: Argv = None,
        *,
        payload: Callable[P, object],
        result: None = None,
        **options: Unpack[CommandOptions],
    ) -> Handler[P, Any, Uncallable]: ...
    @overload
    def command(
        self, name: str, argv: Argv = None, *, payload: None = None, result: type[R], **options: Unpack[CommandOptions]
    ) -> Handler[..., R, Uncallable]: ...
    @overload
    def command(
        self, name: str, argv: Argv = None, *, payload: None = None, result: None = None, **options: Unpack[CommandOptions]
    ) -> Handler[..., Any, Uncallable]: ...
    def command(
        self,
        name: str,
        argv: Argv = None,
        *,
        payload: Callable[..., object] | None = None,
        result: Any = None,
        artifact: str | None = None,
        stdin: Any = PAYLOAD,
        env: Mapping[str, str | Secret] | None = None,
        keep_env: Sequence[str] = DEFAULT_KEEP_ENV,
        sandbox: Sandbox | None = None,
        exits: Mapping[int, Exit] | None = None,
        stop: str | int = "SIGTERM",
        grace: Seconds = DEFAULT_GRACE,
        aliases: Sequence[str] = (),
        timeout: Seconds = DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        priority: int = 5,
        limits: Sequence[Limit] = (),
        reserve: Mapping[int, int] | None = None,
        fair: Fair | None = None,
        quota: Quota | None = None,
        start_within: Seconds | None = None,
        keep_succeeded: Seconds | None = None,
        keep_failed: Seconds | None = None,
        keep_cancelled: Seconds | None = None,
        keep_dropped: Seconds | None = None,
        keep_expired: Seconds | None = None,
        disable_after: int | DisableAfter | None = None,
        disable: DisableScope = "handler",
    ) -> Any:
        """Declare a handler that runs a program: `app.command("backup", ["pg_dump", "-d", "{payload.name}"])`.

        Each item of `argv` is one argument, whatever the values in it contain; no shell reads it. `payload` describes the arguments
        of its tasks (a dataclass, a struct or a function's parameters), `result` the JSON that it writes to descriptor 3. It reads its
        payload as JSON from stdin, or what `stdin` says: a template, or None for nothing. Its environment is exactly `env`, texts and
        secrets, those of the worker's variables that `keep_env` names, and DUETIME_TASK, _ATTEMPT, _FENCE and _DEADLINE. It runs in an
        empty folder of its own.

        `artifact` names an uploaded program: "monthly@3", or "monthly" for the newest version. The worker fetches it and checks its
        hash before it runs. Links to what is in it are in the command's folder, and `{artifact}` is where it is. Without `argv` the
        command is what the artifact says to run.

        `exits` says what exit codes mean: "succeeded" (0), "failed" (all others), "fatal", or "retry" (75), which comes again in a
        minute and uses up no try. At its timeout, after a cancel and when the worker stops it gets the signal `stop`, and whatever is left
        of it after `grace` seconds is killed. What it leaves behind when it exits is killed too. `keep_succeeded` and the like: how long
        its finished tasks are kept, as for `task`.

        `disable_after` failures in a row over ten minutes (or as a `DisableAfter` says) disable the handler, or with `disable="collection"`
        the collection of the failing tasks: they wait behind an automatic gate, and every quarter of an hour one of them tries. When one
        succeeds, the gate opens.
        """
        full = check_name(self._prefix + name, "the name of a handler")
        payloads = payloads_of(full, payload, result)
        check_result(full, result)
        target = command(
            full,
            argv,
            artifact=artifact,
            stdin=stdin,
            env=env or {},
            keep_env=keep_env,
            sandbox=sandbox,
            exits=exits or {},
            stop=stop,
            grace=grace,
            result=result,
            names=payloads.names,
        )
        return self.register(
            checked_spec(
                full,
                target,
                payloads,
                prefix=self._prefix,
                timeout=timeout,
                retry=retry,
                concurrency=concurrency,
                priority=priority,
                limits=limits,
                reserve=reserve,
                fair=fair,
                quota=quota,
                start_within=start_within,
                aliases=aliases,
                keep=own_retention(keep_succeeded, keep_failed, keep_cancelled, keep_dropped, keep_expired),
                disabling=disabling_of(disable_after, disable),
                doc=f"Runs {target.text}",
            )
        )
