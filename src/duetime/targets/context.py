"""What a handler gets besides its arguments."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from duetime.clock import Seconds, to_datetime
from duetime.errors import AttemptCancelled, InvalidValue
from duetime.model.limit import Limit
from duetime.model.outcome import Outcome
from duetime.model.shapes import derive
from duetime.model.task import NewTask, State, Task, TaskRecord, shown, with_extras
from duetime.store.values import ClaimedTask
from duetime.targets.occurrence import Occurrence, occurrence_of
from duetime.targets.output import Printing, current_attempt
from duetime.targets.permits import LimitUse, PermitSource

if TYPE_CHECKING:
    from duetime.targets.steps import StepDoor, Stepper

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger("duetime.task")


class Resources:
    """What the lifespan provided, found by type."""

    def __init__(self, provided: object = None) -> None:
        if provided is None:
            self._things: list[object] = []
        elif isinstance(provided, list | tuple | set | frozenset):
            self._things = list(cast(Iterable[object], provided))
        else:
            self._things = [provided]

    def get(self, kind: type[T]) -> T:
        """Return the resource of exactly this type, or else the first that is an instance of it."""
        for thing in self._things:
            if type(thing) is kind:
                return thing
        for thing in self._things:
            if isinstance(thing, kind):
                return thing
        offered = ", ".join(type(thing).__name__ for thing in self._things) or "nothing"
        raise InvalidValue(f"the lifespan provides no {kind.__name__}; it provides {offered}. Yield one from App(lifespan=…)")


class Inside(Printing, Protocol):
    """Anything that has a context. Most attempts never read it, and then it is never made."""

    @property
    def context(self) -> Context: ...


class Context:
    """One attempt, seen from inside: the task, its fence, its deadline, and ways to report.

    Not generic on purpose: with a type parameter mypy loses the result type of plain `def` handlers.
    """

    __slots__ = (
        "_cancelled",
        "_claimed",
        "_deadline",
        "_door",
        "_log",
        "_permits",
        "_progress",
        "_resources",
        "_started_at",
        "_stepper",
        "_task",
        "stopped_as",
    )

    def __init__(
        self,
        claimed: ClaimedTask,
        *,
        started_at: int,
        deadline_at: int,
        resources: Resources,
        progress: Callable[[float, str], None],
        door: StepDoor | None = None,
        permits: PermitSource | None = None,
    ) -> None:
        self._claimed = claimed
        self._started_at = started_at
        self._deadline = deadline_at
        self._resources = resources
        self._progress = progress
        self._permits = permits
        self._cancelled = False
        self.stopped_as: Outcome | None = None
        self._task: Task[Any] | None = None
        self._log: _TaskLog | None = None
        self._door = door
        self._stepper: Stepper | None = None

    @property
    def task(self) -> Task[Any]:
        """The task that runs, as it was when it was claimed."""
        if self._task is None:
            self._task = shown(as_record(self._claimed, self._started_at))
        return self._task

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; no number is used twice."""
        return self._claimed.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every attempt, also after a fail-over: pass it to resources that can refuse older writers."""
        return self._claimed.fence

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task."""
        return self._claimed.id

    @property
    def occurrence(self) -> Occurrence | None:
        """Which planned instant of which schedule this task is for, and how the run before it went; None for a task of no schedule."""
        claimed = self._claimed
        if claimed.schedule is None or claimed.planned_at is None:
            return None
        return occurrence_of(claimed.schedule, claimed.planned_at, claimed.meta)

    @property
    def deadline(self) -> datetime:
        """When the timeout ends this attempt."""
        return to_datetime(self._deadline)

    @property
    def cancelled(self) -> bool:
        """Whether the attempt has been told to stop: a cancel, its timeout or a shutdown."""
        return self._cancelled

    def check(self) -> None:
        """Raise AttemptCancelled if the attempt has been told to stop; for loops in `def` handlers."""
        if self._cancelled:
            raise AttemptCancelled("the attempt was told to stop")

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the task and attempt."""
        if self._log is None:
            self._log = _TaskLog(_logger, log_fields(self._claimed))
        return self._log

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, from 0 to 1; shown beside the task while it runs."""
        if not 0 <= fraction <= 1:
            raise InvalidValue(f"progress is a fraction from 0 to 1, got {fraction}")
        self._progress(fraction, text)

    def get(self, kind: type[T]) -> T:
        """Return what the lifespan provided, by type."""
        return self._resources.get(kind)

    # ---- steps ----

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once for the task: its value is saved under the name before this returns, and later attempts get that.

        `account = await ctx.step("account", create_account, user)`; in a `def` handler `ctx.sync(ctx.step(…))`. The value is JSON, read
        as what the function is annotated to return. The call runs at least once until it is saved: if the worker dies in between, again.
        """
        return await self.steps.step(name, function, args, kwargs)

    async def sleep(self, name: str, duration: Seconds, /) -> None:
        """Pause without a slot, as long as seconds or a timedelta say from the first time on. The attempt ends, and a later one goes on."""
        await self.steps.sleep(name, duration)

    @overload
    async def wait(self, name: str, signal: str, type: type[T], /, *, timeout: Seconds | None = None) -> T: ...
    @overload
    async def wait(self, name: str, signal: str, /, *, timeout: Seconds | None = None) -> Any: ...
    async def wait(self, name: str, signal: str, type: Any = Any, /, *, timeout: Seconds | None = None) -> Any:
        """Wait without a slot for a signal (`app.signals.send`), and return its value. One that came earlier and is kept is found.

        Raises TimeoutError if none comes within `timeout` from the first time on; so do all later attempts.
        """
        return await self.steps.wait(name, signal, type, timeout)

    @overload
    async def call(self, name: str, task: NewTask[T], /) -> T: ...
    @overload
    async def call(self, name: str, tasks: Sequence[NewTask[T]], /) -> list[T]: ...
    async def call(self, name: str, tasks: Any, /) -> Any:
        """Submit tasks as children of this one, wait for them without a slot, and return their results in order.

        `sizes = await ctx.call("import", [load.new(part=p) for p in parts])`. Raises TaskFailed or TaskCancelled for the first child that
        did not succeed. They are cancelled when this task ends before them.
        """
        return await self.steps.call(name, tasks)

    def sync(self, call: Coroutine[Any, Any, T], /) -> T:
        """Run a step, sleep, wait or call in a `def` handler: `account = ctx.sync(ctx.step("account", create_account, user))`."""
        from duetime.targets.driving import drive

        return drive(call)

    @property
    def steps(self) -> Stepper:
        """What the methods above are made of."""
        if self._stepper is None:
            from duetime.targets.steps import Stepper  # which needs what encodes payloads, and that needs this module

            self._stepper = Stepper(self._claimed, self._door)
        return self._stepper

    def limit(self, limit: Limit | str, /, *, timeout: Seconds | None = None) -> LimitUse:
        """Hold a part of a limit of the whole fleet for a block: `async with ctx.limit("erp", timeout=30):`, or `with` in `def` handlers.

        The name is that of a limit which a handler of this worker has; otherwise give the Limit itself. Waits until there is room, and
        raises TimeoutError if there is none within `timeout`. The attempt keeps its slot meanwhile; `raise RetryLater(…)` frees it.
        """
        return LimitUse(self._permits, limit, timeout)

    def tell_to_stop(self, stopped_as: Outcome = Outcome.CANCELLED) -> None:
        """Set `cancelled`, and keep how the attempt will count if its code ends because of that."""
        self._cancelled = True
        self.stopped_as = stopped_as


def log_fields(claimed: ClaimedTask) -> dict[str, object]:
    """Return the fields of log records that name an attempt."""
    return {"duetime_task": claimed.id, "duetime_handler": claimed.handler, "duetime_attempt": claimed.attempt}


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def current() -> Context:
    """Return the context of the attempt that this code runs in."""
    inside = current_attempt.get()
    if inside is None:
        raise InvalidValue("no task runs here: duetime.current() works only inside a handler")
    return cast(Inside, inside).context


_as_record = derive(ClaimedTask, TaskRecord, dict.fromkeys(("payload", "retry"), str.encode), given=("state", "started_at"))


def as_record(claimed: ClaimedTask, started_at: int | None = None) -> TaskRecord:
    """Return a claimed task as the running task that it is."""
    return with_extras(_as_record(claimed, State.RUNNING, started_at), claimed.extras)
