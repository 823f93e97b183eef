"""`@app.on`: hooks on events, on an App and on Handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from duetime.errors import InvalidHandler, InvalidValue
from duetime.model.event import (
    EventFilter,
    GateEvent,
    GateEventName,
    ScheduleEvent,
    ScheduleEventName,
    TaskEvent,
    TaskEventName,
    WorkerEvent,
    WorkerEventName,
    check_events,
    check_pattern,
)
from duetime.model.task import check_name
from duetime.targets.hooks import Hook, check_function, hook_name

Done: TypeAlias = Awaitable[None] | None
T = TypeVar("T", bound=Callable[[TaskEvent], Done])
S = TypeVar("S", bound=Callable[[ScheduleEvent], Done])
W = TypeVar("W", bound=Callable[[WorkerEvent], Done])
G = TypeVar("G", bound=Callable[[GateEvent], Done])


class OnTask(Protocol):
    """What `app.on("task.…")` returns: a decorator of functions of a TaskEvent."""

    def __call__(self, function: T, /) -> T: ...


class OnSchedule(Protocol):
    """What `app.on("schedule.…")` returns: a decorator of functions of a ScheduleEvent."""

    def __call__(self, function: S, /) -> S: ...


class OnWorker(Protocol):
    """What `app.on("worker.…")` returns: a decorator of functions of a WorkerEvent."""

    def __call__(self, function: W, /) -> W: ...


class OnGate(Protocol):
    """What `app.on("gate.…")` returns: a decorator of functions of a GateEvent."""

    def __call__(self, function: G, /) -> G: ...


class DeclaresHooks:
    """The part of a registry that declares hooks."""

    _prefix: str
    _event_hooks: dict[str, Hook]

    @overload
    def on(self, event: TaskEventName, /, *more: TaskEventName, handler: str | None = None, name: str | None = None) -> OnTask: ...
    @overload
    def on(
        self, event: ScheduleEventName, /, *more: ScheduleEventName, handler: str | None = None, name: str | None = None
    ) -> OnSchedule: ...
    @overload
    def on(self, event: WorkerEventName, /, *more: WorkerEventName, name: str | None = None) -> OnWorker: ...
    @overload
    def on(self, event: GateEventName, /, *more: GateEventName, handler: str | None = None, name: str | None = None) -> OnGate: ...
    def on(self, event: str, /, *more: str, handler: str | None = None, name: str | None = None) -> Any:
        """Call a function with each event of these names, after the fact: `@app.on("task.failed", handler="shop.*")`.

        Workers call it, one of them at a time: at least once for each event, in order for each task, and again after a failure. It
        cannot change what happened. `handler` is a name, or a prefix with `*`; in a group of Handlers it is one of the group's, by
        default all of them. Where a hook stands is kept under its `name`, by default that of the function.
        """
        names = check_events([event, *more])
        nouns = {each.partition(".")[0] for each in names}
        if len(nouns) > 1:
            raise InvalidValue(f"a hook is for events of one noun, got {', '.join(sorted(nouns))}; declare one for each")
        if nouns == {"worker"}:
            if handler is not None:
                raise InvalidValue("events of workers are of no handler; leave handler= out")
            pattern = None
        else:
            pattern = f"{self._prefix}{handler or '*'}" if self._prefix else handler
        wanted = EventFilter(names=names, handler=check_pattern(pattern))

        def declare(function: Any) -> Any:
            check_function(function)
            own = check_name(name if name is not None else hook_name(function), "the name of a hook")
            self.refuse_taken_hook(own)
            self._event_hooks[own] = Hook(own, wanted, function)
            self.changed()
            return function

        return declare

    def declared_hooks(self) -> Iterator[Hook]:
        """Return all hooks that are declared here."""
        yield from self._event_hooks.values()

    def refuse_taken_hook(self, name: str) -> None:
        """Raise InvalidHandler if a hook of that name is declared already."""
        if any(hook.name == name for hook in self.declared_hooks()):
            raise InvalidHandler(f"a hook called {name} is already declared; give one of them another name=")

    def changed(self) -> None:
        """Note that something was declared."""
