"""Where handlers are declared: an App, or a group that an App includes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, get_args, overload

import msgspec

from duetime.app.alerts import DeclaresAlerts
from duetime.app.commands import DeclaresCommands
from duetime.app.flows import DeclaresFlows, FlowHandler
from duetime.app.handlers import AnyHandler, Handler, not_negative, one_of, whole_number
from duetime.app.hooks import DeclaresHooks
from duetime.app.http import DeclaresHttp
from duetime.app.options import checked_spec
from duetime.app.publish import DeclaresPublish
from duetime.client.activity import USUAL_UPCOMING
from duetime.client.flows import Flow, Flows
from duetime.client.insight import HandlerDetails
from duetime.client.schedules.schedule import Schedule, rule_from
from duetime.clock import Seconds
from duetime.config import parse_size
from duetime.errors import InvalidHandler, InvalidValue
from duetime.model.alerts.rule import AlertRule
from duetime.model.fairness import Fair
from duetime.model.limit import Limit
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.rules import Rule
from duetime.model.task import NewTask, Task, check_name
from duetime.store.flows import NewFlow
from duetime.targets.context import Context
from duetime.targets.hooks import Hook
from duetime.targets.payload import FunctionPayloads
from duetime.targets.policies import own_retention
from duetime.targets.python.function import KILL_AFTER, Isolation, PythonFunction, function_of
from duetime.targets.signature import default_name, examine
from duetime.targets.spec import DEFAULT_CONCURRENCY, DEFAULT_PROCESSES, DEFAULT_TIMEOUT, HandlerSpec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """The options of a declared handler; `Registry.task` explains them."""

    name: str | None
    aliases: Sequence[str]
    timeout: Seconds
    retry: RetryPolicy | None
    concurrency: int | None
    priority: int
    limits: Sequence[Limit]
    reserve: Mapping[int, int] | None
    fair: Fair | None
    quota: Quota | None
    start_within: Seconds | None
    isolation: Isolation
    recycle_after: int | None
    max_memory: int | str | None
    kill_after: Seconds | None
    keep_succeeded: Seconds | None
    keep_failed: Seconds | None
    keep_cancelled: Seconds | None
    keep_dropped: Seconds | None
    keep_expired: Seconds | None


class ScheduleOptions(TaskOptions, total=False):
    """The options of a declared schedule besides those of its handler; `Schedule` explains them."""

    cron: str
    every: Seconds
    at: Iterable[datetime]
    after_end: Seconds
    rule: Rule | str
    tz: str
    payload: Mapping[str, Any]
    calendars: str | Sequence[str]
    start: datetime
    end: datetime
    count: int
    jitter: Seconds
    missed: str
    overlap: str
    grace: Seconds
    pause_after: int
    collection: str
    expires: Seconds
    meta: Mapping[str, str]
    note: str


class ScheduleDecorator(Protocol):
    """The result of `app.schedule(…)`: a decorator with the overloads of `app.task`, and one for flows."""

    @overload
    def __call__(self, function: FlowHandler[P, R], /) -> FlowHandler[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], AsyncIterator[T]], /
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], AsyncIterator[T]]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> Handler[P, list[T], Callable[P, AsyncIterator[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Iterator[T]], /
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], Iterator[T]]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> Handler[P, list[T], Callable[P, Iterator[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Handler[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R, Callable[P, R]]: ...


class TaskDecorator(Protocol):
    """The result of `app.task(…)` with options: a decorator with the same overloads as `app.task` itself."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], AsyncIterator[T]], /
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], AsyncIterator[T]]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> Handler[P, list[T], Callable[P, AsyncIterator[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Iterator[T]], /
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], Iterator[T]]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> Handler[P, list[T], Callable[P, Iterator[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Handler[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R, Callable[P, R]]: ...


class Registry(DeclaresHttp, DeclaresCommands, DeclaresPublish, DeclaresFlows, DeclaresHooks, DeclaresAlerts):
    """Declares handlers by name: an App, or a group of Handlers that an App includes."""

    def __init__(self, prefix: str = "") -> None:
        self.user = ""
        self._prefix = prefix
        self._handlers: dict[str, AnyHandler] = {}
        self._schedules: dict[str, Schedule] = {}
        self._event_hooks: dict[str, Hook] = {}
        self._alert_rules: dict[str, AlertRule] = {}

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], AsyncIterator[T]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], AsyncIterator[T]]]: ...
    @overload
    def task(
        self, function: Callable[P, AsyncIterator[T]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, list[T], Callable[P, AsyncIterator[T]]]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Iterator[T]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, list[T], Callable[Concatenate[Context, P], Iterator[T]]]: ...
    @overload
    def task(
        self, function: Callable[P, Iterator[T]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, list[T], Callable[P, Iterator[T]]]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], R], /, **options: Unpack[TaskOptions]
    ) -> Handler[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def task(self, function: Callable[P, R], /, **options: Unpack[TaskOptions]) -> Handler[P, R, Callable[P, R]]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        timeout: Seconds = DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        concurrency: int | None = None,
        priority: int = 5,
        limits: Sequence[Limit] = (),
        reserve: Mapping[int, int] | None = None,
        fair: Fair | None = None,
        quota: Quota | None = None,
        start_within: Seconds | None = None,
        isolation: Isolation = "auto",
        recycle_after: int | None = None,
        max_memory: int | str | None = None,
        kill_after: Seconds | None = None,
        keep_succeeded: Seconds | None = None,
        keep_failed: Seconds | None = None,
        keep_cancelled: Seconds | None = None,
        keep_dropped: Seconds | None = None,
        keep_expired: Seconds | None = None,
    ) -> Any:
        """Declare a handler, as `@app.task`, `@app.task(…)` or `app.task(function, …)`.

        `concurrency` is the number of slots in each worker process: 50, or as many as there are cores with `isolation="process"`.
        `reserve={9: 5}` keeps five of the slots for tasks of priority 9, so that long tasks of lower ones cannot hold them up.
        `fair="collection"` lets its collections share its starts, by `app.weights`, so that a flood of one does not hold up the others.
        `quota=Quota(1_000, per=60)` bounds how many are submitted, by all programs together; more are refused with QuotaExceeded.
        `start_within` is an objective, in seconds after they are due, that nothing enforces: later ones are told by the verdict.
        `limits` bound how many run at once in the whole fleet. `aliases` are names that the handler had before; tasks stored under them
        still find it. `isolation` is "auto" (`async def` on the
        event loop, `def` in a thread), "thread" or "process" (a sub-process, which can be killed). Sub-processes are used again;
        `recycle_after` replaces one after so many attempts, and `max_memory` (bytes, or "500MB") one that uses more after an attempt.
        An attempt in one that is told to stop, at its timeout too, is interrupted by AttemptCancelled (a coroutine is cancelled), and
        `kill_after` seconds later (1) killed with all that it has started; 0 kills it at once.
        `keep_succeeded` and the like: how long its finished tasks are
        kept, where that differs from the setting of the same name.
        """
        keep = own_retention(keep_succeeded, keep_failed, keep_cancelled, keep_dropped, keep_expired)

        def declare(function: Callable[..., Any]) -> AnyHandler:
            full = check_name(self._prefix + (name if name is not None else default_name(function)), "the name of a handler")
            shape = examine(full, function)
            one_of("isolation", isolation, get_args(Isolation))
            if shape.is_async and isolation == "thread":
                raise InvalidHandler(f'{full} is an `async def` and runs on the event loop; make it a `def`, or use isolation="process"')
            process = isolation == "process"
            for given, value in (("recycle_after", recycle_after), ("max_memory", max_memory), ("kill_after", kill_after)):
                if value is not None and not process:
                    raise InvalidHandler(f'{full} has {given}=, which is for sub-processes: add isolation="process"')
            payloads = FunctionPayloads(full, function, shape.parameters)
            payloads.check()
            spec = checked_spec(
                full,
                PythonFunction(
                    function=function,
                    takes_context=shape.takes_context,
                    is_async=shape.is_async,
                    yields=shape.yields,
                    isolation=isolation,
                    recycle_after=None if recycle_after is None else whole_number(recycle_after, "recycle_after"),
                    max_memory=None if max_memory is None else whole_number(parse_size(max_memory, "max_memory"), "max_memory"),
                    kill_after=KILL_AFTER if kill_after is None else not_negative(kill_after, "kill_after"),
                ),
                payloads,
                prefix=self._prefix,
                timeout=timeout,
                retry=retry,
                concurrency=(DEFAULT_PROCESSES if process else DEFAULT_CONCURRENCY) if concurrency is None else concurrency,
                priority=priority,
                limits=limits,
                reserve=reserve,
                fair=fair,
                quota=quota,
                start_within=start_within,
                aliases=aliases,
                keep=keep,
                doc=getattr(function, "__doc__", None) or "",
            )
            return self.register(spec)

        return declare if function is None else declare(function)

    def schedule(self, rule: Rule | str | None = None, /, **options: Unpack[ScheduleOptions]) -> ScheduleDecorator:
        """Declare a handler and a schedule of it, both under the handler's name.

        For example `@app.schedule(cron="*/5 * * * *", tz="Europe/Berlin")`, or in short `@app.schedule("*/5 * * * *")`.

        The rule comes first, or is given by one of `cron`, `every`, `at`, `after_end` and `rule`; the other options are those of `task` and
        of `Schedule`. Every parameter but the context needs a default, or a value in `payload`. Applied to a handler that is declared
        already, it adds another schedule, which needs its own `name`; above `@app.flow` it schedules the flow. Workers store declared
        schedules when they start; a program that only submits does not.
        """
        if callable(rule):
            raise InvalidHandler(
                'a schedule needs a rule: write @app.schedule("0 9 * * *"), or @app.schedule(every=600), above the function'
            )
        if rule is not None and "rule" in options:
            raise InvalidValue("the rule is given twice, by position and as rule=; leave one of them out")
        own = TaskOptions.__annotations__.keys()
        by_rule: Any = {name: options.pop(name) for name in ("cron", "every", "at", "after_end", "rule", "tz") if name in options}
        chosen = rule_from(**by_rule if rule is None else {"rule": rule, **by_rule})
        of_task: Any = {name: value for name, value in options.items() if name in own}
        of_schedule: Any = {name: value for name, value in options.items() if name not in own}

        def declare(function: Any) -> Any:
            if isinstance(function, FlowHandler):
                declare(function.task)
                return function
            again = isinstance(function, Handler)
            if again and of_task.keys() - {"name"}:
                raise InvalidHandler(f"{function.name} is declared already; {min(of_task.keys() - {'name'})} belongs where that is done")
            if again and function.spec is None:
                raise InvalidHandler(f"{function.name} is known by name only; use app.schedules.put or declare for it")
            full = f"{self._prefix}{of_task.get('name')}" if again and of_task.get("name") else None
            called = function_of(function.spec) if again else function
            title = function.name if again else self._prefix + (of_task.get("name") or default_name(function))
            if called is not None:
                _refuse_unfilled(title, called, of_schedule.get("payload", {}))
            schedule = Schedule(full or title, title, chosen, **of_schedule)
            self.refuse_taken_schedule(schedule.name)
            handler = function if again else self.task(**of_task)(function)
            self._schedules[schedule.name] = schedule
            self.changed()
            return handler

        return declare

    def declared_schedules(self) -> Iterator[Schedule]:
        """Return all schedules that are declared here."""
        yield from self._schedules.values()

    def refuse_taken_schedule(self, name: str) -> None:
        """Raise InvalidHandler if a schedule of that name is declared already."""
        if any(schedule.name == name for schedule in self.declared_schedules()):
            raise InvalidHandler(f"a schedule called {name} is already declared; give one of them another name=")

    def declared(self) -> Iterator[HandlerSpec]:
        """Return all handlers that are declared here."""
        for handler in self._handlers.values():
            if handler.spec is not None:
                yield handler.spec

    def submit(self, task: NewTask[R], /, *, connection: object | None = None, allow_unknown: bool = False) -> Coroutine[Any, Any, Task[R]]:
        raise NotImplementedError

    async def handler_info(self, name: str) -> HandlerDetails:
        raise NotImplementedError

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[Task[Any]]:
        raise NotImplementedError

    def register(self, spec: HandlerSpec) -> AnyHandler:
        """Declare a handler, whatever its target; `task` does so for Python functions."""
        self.refuse_taken(spec)
        handler: AnyHandler = Handler(spec.name, spec.payloads, self, spec=spec)
        self._handlers[spec.name] = handler
        self.changed()
        return handler

    def changed(self) -> None:
        """Note that a handler was declared."""

    def refuse_taken(self, spec: HandlerSpec) -> None:
        """Raise InvalidHandler if a name of this handler is one of another's."""
        for other in self.declared():
            twice = {spec.name, *spec.aliases} & {other.name, *other.aliases}
            if twice:
                function = function_of(other)
                where = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', other.name)}"
                raise InvalidHandler(f"a handler called {min(twice)} is already declared by {where}; give one of them another name=")
        refuse_other_limit(spec, self.declared())
        refuse_unknown_key(spec)


def refuse_unknown_key(spec: HandlerSpec) -> None:
    """Raise InvalidHandler if a limit is by a field that the handler's payload cannot have."""
    for limit in spec.limits:
        if limit.by is None or limit.by == "collection" or limit.by.startswith("meta."):
            continue
        fields = msgspec.json.decode(spec.payloads.schema()).get("properties")
        if fields and limit.by.partition(".")[0] not in fields:
            said = f"the limit {limit.name} is by {limit.by}, but {spec.name} takes {', '.join(fields)}"
            raise InvalidHandler(f"{said}; name one of these, collection, or meta.NAME")


def refuse_other_limit(spec: HandlerSpec, others: Iterable[HandlerSpec]) -> None:
    """Raise InvalidHandler if another handler declares a limit of the same name differently."""
    known = {limit.name: (limit, other.name) for other in others for limit in other.limits}
    for limit in spec.limits:
        there, other = known.get(limit.name, (limit, ""))
        if not there.bounds_as(limit):
            said = f"the limit {limit.name} allows {limit} in {spec.name} and {there} in {other}"
            raise InvalidHandler(f"{said}; declare it once and give it to both")


class Handlers(Registry):
    """A group of handlers that some module declares and exactly one App includes."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(prefix)
        self._home: Registry | None = None

    def belong_to(self, home: Registry) -> None:
        """Use this App for submitting from now on; `App.include` calls it."""
        if self._home is not None:
            raise InvalidHandler("these Handlers are already included in an App; a group belongs to exactly one")
        self._home = home
        self.user = home.user

    def submit(self, task: NewTask[R], /, *, connection: object | None = None, allow_unknown: bool = False) -> Coroutine[Any, Any, Task[R]]:
        return self._included(task.handler).submit(task, connection=connection, allow_unknown=allow_unknown)

    def submit_flow(self, flow: NewFlow, /, *, connection: object | None = None) -> Coroutine[Any, Any, Flow[Any]]:
        return self._included(flow.name).submit_flow(flow, connection=connection)

    def flow_door(self, name: str) -> Flows:
        return self._included(name).flow_door(name)

    async def handler_info(self, name: str) -> HandlerDetails:
        return await self._included(name).handler_info(name)

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[Task[Any]]:
        return await self._included(handler).upcoming(handler, limit)

    def _included(self, name: str) -> Registry:
        if self._home is None:
            raise InvalidHandler(f"{name} belongs to Handlers that no App includes yet; call app.include(…) first")
        return self._home

    def refuse_taken(self, spec: HandlerSpec) -> None:
        if self._home is None:
            super().refuse_taken(spec)
        else:
            self._home.refuse_taken(spec)

    def refuse_taken_schedule(self, name: str) -> None:
        if self._home is None:
            super().refuse_taken_schedule(name)
        else:
            self._home.refuse_taken_schedule(name)

    def refuse_taken_hook(self, name: str) -> None:
        if self._home is None:
            super().refuse_taken_hook(name)
        else:
            self._home.refuse_taken_hook(name)

    def changed(self) -> None:
        if self._home is not None:
            self._home.changed()


def _refuse_unfilled(name: str, function: Callable[..., Any], payload: Mapping[str, Any]) -> None:
    """Refuse a function with a parameter that would have no value when the schedule fires."""
    for parameter in examine(name, function).parameters:
        if parameter.default is inspect.Parameter.empty and parameter.name not in payload:
            raise InvalidHandler(
                f"{name}: nobody gives {parameter.name!r} when the schedule fires; give the parameter a default, or its value in "
                f"payload={{{parameter.name!r}: …}}"
            )
