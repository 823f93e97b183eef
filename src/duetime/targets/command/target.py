"""Commands, performed by supervisors."""

from __future__ import annotations

import os
import secrets
import tempfile
from typing import Any
from uuid import uuid4

import msgspec

from duetime.artifacts.cache import Unusable
from duetime.artifacts.source import Ready
from duetime.clock import SECOND, to_datetime
from duetime.errors import Fatal, InvalidValue
from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome
from duetime.model.secrets import Secret
from duetime.model.task import ErrorInfo
from duetime.targets.command.command import Command, arguments
from duetime.targets.command.endings import end_of
from duetime.targets.command.streams import Printed, Result
from duetime.targets.command.supervising import Order, Supervision, SupervisorDied
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.python.middleware import with_middleware
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import AttemptHandle, Stop
from duetime.targets.templates import Facts, TextTemplate
from duetime.targets.typed import PlainPayloads

RETRY_DELAY = 60.0  # seconds until a command runs again whose exit code means "retry"


class CommandFailed(Exception):
    """A command did not succeed; middleware sees it as an exception, as it does around a Python function."""

    def __init__(self, ended: Ended) -> None:
        super().__init__("the command did not succeed" if ended.error is None else ended.error.message)
        self.ended = ended


class _Run(msgspec.Struct, eq=False):
    """A command that runs."""

    supervision: Supervision
    stopped: Stop | None = None


class CommandTarget:
    """Runs each attempt's command below a supervisor. Stopping sends the command's signal, and kills it after its grace."""

    direct_call = None

    def __init__(self, command: Command, payloads: PlainPayloads, handler: HandlerSpec, host: TargetHost) -> None:
        self._command = command
        self._payloads = payloads
        self._handler = handler
        self._host = host
        self._limits = {} if command.sandbox is None else command.sandbox.limits()
        self._folder = f"{tempfile.gettempdir()}/duetime-{secrets.token_hex(8)}"  # a name that nobody can take before
        self._running: dict[str, _Run] = {}

    async def perform(self, attempt: AttemptHandle) -> Ended:
        if not self._host.middleware:
            return await self._perform(attempt)
        performed: list[Ended] = []

        async def call() -> Any:
            performed.append(ended := await self._perform(attempt))
            if ended.outcome is not Outcome.SUCCEEDED:
                raise CommandFailed(ended)
            return None if ended.result is None else msgspec.json.decode(ended.result)

        try:
            value = await with_middleware(self._host.middleware, attempt.context, call)
        except CommandFailed as failure:
            return failure.ended
        return msgspec.structs.replace(succeeded(value), detail=performed[-1].detail if performed else None)

    async def _perform(self, attempt: AttemptHandle) -> Ended:
        wanted = self._command.artifact
        if wanted is None:
            return await self._run(attempt, None)
        try:
            async with self._host.artifacts.using(wanted) as ready:
                return await self._run(attempt, ready)
        except Unusable as unusable:
            error = ErrorInfo(unusable.kind, str(unusable))
            return Ended(Outcome.FATAL if unusable.fatal else Outcome.FAILED, error=error, detail=detail_of({"artifact": str(wanted)}))

    async def _run(self, attempt: AttemptHandle, ready: Ready | None) -> Ended:
        claimed = attempt.claimed
        order = await self._order(attempt, ready)
        printed, result = Printed(attempt.sink, attempt.report), Result()
        try:
            supervision = self._host.supervisors.take()
        except OSError as problem:
            return Ended(Outcome.FAILED, error=ErrorInfo("CommandNotStarted", f"no command can be started here: {problem}"))
        run = self._running[claimed.id] = _Run(supervision)
        try:
            report = await supervision.run(order, printed.take, result.take)
        except SupervisorDied as died:
            if run.stopped is not None:
                raise
            error = ErrorInfo("SupervisorDied", f"the supervisor of the command died: {died}", printed.tail)
            return Ended(Outcome.LOST, error=error, crashed=not supervision.killed_on_purpose, alone=True)
        finally:
            del self._running[claimed.id]
            printed.end()
        self._host.supervisors.put_back(supervision)
        return end_of(
            report,
            self._command.exits,
            result=result.data,
            result_type=self._command.result,
            printed=printed.tail,
            retry_delay=RETRY_DELAY,
            stopped=run.stopped,
            timeout=(attempt.deadline_at - attempt.started_at) / SECOND,
            artifact=None if ready is None else ready.artifact,
        )

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        run = self._running.get(attempt.claimed.id)
        if run is None:  # middleware is at work, before or after it
            attempt.cancel()
            return 0.0
        grace = 0.0 if reason is Stop.LOST else self._command.grace
        run.stopped = reason
        run.supervision.stop(self._command.stop, grace)
        return grace

    def _arguments(self, ready: Ready | None) -> tuple[TextTemplate, ...]:
        """Return the program and its arguments: those of the command, or else those of its artifact."""
        if self._command.argv or ready is None:
            return self._command.argv
        artifact = ready.artifact
        if not artifact.run and artifact.kind != "file":
            raise Fatal(f"neither {self._handler.name} nor the artifact {artifact.reference} says what to run: put it again with --run")
        try:
            return arguments(artifact.reference, artifact.run or ("{artifact}",), None, artifact=True)
        except InvalidValue as error:
            raise Fatal(f"what the artifact says to run cannot be run: {error}") from None

    async def _order(self, attempt: AttemptHandle, ready: Ready | None) -> Order:
        """Return what an attempt runs; Fatal if a reference leads nowhere or to what cannot be an argument."""
        command, claimed = self._command, attempt.claimed
        payload = self._payloads.plain(claimed.payload)
        facts = Facts(claimed, payload, attempt.started_at, uuid4, None if ready is None else ready.path)
        templates = self._arguments(ready)
        argv = [each.fill(facts) for each in templates]
        for template, argument in zip(templates, argv, strict=True):
            if "\0" in argument:
                raise Fatal(f"{template.where} would contain a NUL character, which no program can be given")
        return Order(
            handler=self._handler.name,
            argv=argv,
            env={
                **{name: os.environ[name] for name in command.keep_env if name in os.environ},
                **{name: await _value(value, attempt) for name, value in command.env.items()},
                "DUETIME_TASK": claimed.id,
                "DUETIME_ATTEMPT": str(claimed.attempt),
                "DUETIME_FENCE": str(claimed.fence),
                "DUETIME_DEADLINE": to_datetime(attempt.deadline_at).isoformat(),
            },
            folder=f"{self._folder}-{claimed.id}-{claimed.attempt}",
            limits=self._limits,
            stdin=None if command.stdin is None else _text(command.stdin.fill(facts)),
            links={} if ready is None else ready.links,
        )


async def _value(value: str | Secret, attempt: AttemptHandle) -> str:
    """Return the value of a variable: of a secret the newest one, which is blanked from now on in all that is kept of the attempt."""
    if isinstance(value, str):
        return value
    revealed = (await attempt.reveal(value))[0]
    if "\0" in revealed:
        raise Fatal(f"{value!r} contains a NUL character, which no variable can hold; put another value")
    return revealed


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
