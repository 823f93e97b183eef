"""The parts of a worker for the kit: the real ones, driven step by step instead of by background services."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from duetime.app.app import App
from duetime.clock import Instant, ManualClock
from duetime.model.gate import Gate
from duetime.model.outcome import Ended, Outcome
from duetime.model.query import MAX_PAGE, Query
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, NewTask, TaskRecord, due_of, expiry_of
from duetime.runtime.service import Alarms
from duetime.store.schedules import ScheduleWrite
from duetime.store.sqlite import read
from duetime.store.sqlite.records import records_by_id
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import Added, CancelVerdict, ClaimedTask
from duetime.targets.host import TargetHost
from duetime.targets.python.function import PythonFunction
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, AttemptHandle, Stop
from duetime.worker.attempt import Attempt
from duetime.worker.executor import Executor
from duetime.worker.queues import HandlerQueue
from duetime.worker.settler import Settler


class SteppedStore(SqliteStore):
    """The SQLite store. It reports gates, cancels and expiries to the kit at once; a worker learns of them in the background."""

    def __init__(self, path: str, clock: ManualClock) -> None:
        super().__init__(path, synchronous="normal", clock=clock)
        self._expiries: list[Instant] = []
        self.has_schedules = False  # or had some: otherwise looking for due ones is not worth the time
        self.apply_gates: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.stop: Callable[[str], None] | None = None

    def look(self, query: Query) -> list[TaskRecord]:
        """Return all tasks that match, in the order of submitting. Runs in the caller's thread: an assertion must not need an await."""
        wanted = query.state
        query = msgspec.structs.replace(query, state=None, limit=MAX_PAGE)  # a page of a final state has another order
        found: list[TaskRecord] = []
        while True:
            page = self.read_now(partial(read.page, query=query))
            found.extend(page.items)
            if page.next is None:
                break
            query = msgspec.structs.replace(query, cursor=page.next)
        return [record for record in reversed(found) if wanted in (None, record.state)]

    def look_at(self, task_id: str) -> TaskRecord | None:
        return self.read_now(partial(records_by_id, ids=[task_id])).get(task_id)

    def next_expiry(self, now: Instant) -> Instant | None:
        """Return the next instant at which a task may expire; finished ones are included, because an extra look is harmless."""
        while self._expiries and self._expiries[0] <= now:
            heapq.heappop(self._expiries)
        return self._expiries[0] if self._expiries else None

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        return self._with_expiries(await super().add(tasks))

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        return self._with_expiries(await super().add_on(connection, tasks))

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        accepted = await super().write_schedules(writes, together=together)
        self.has_schedules = True
        for task in [task for write, stored in zip(writes, accepted, strict=True) if stored for task in write.tasks]:
            expires_at = expiry_of(task, due_of(task, self.now()))
            if expires_at is not None:
                heapq.heappush(self._expiries, expires_at)
        return accepted

    def _with_expiries(self, answers: list[Added]) -> list[Added]:
        for added in answers:
            if added.record.expires_at is not None:
                heapq.heappush(self._expiries, added.record.expires_at)
        return answers

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        verdicts = await super().cancel(ids)
        for task_id, verdict in zip(ids, verdicts, strict=True):
            if verdict is CancelVerdict.CANCELLING and self.stop is not None:
                asyncio.get_running_loop().call_soon(self.stop, task_id)  # not inside the code that is to stop
        return verdicts

    async def put_gate(self, gate: Gate) -> int:
        version = await super().put_gate(gate)
        if self.apply_gates is not None:
            await self.apply_gates()
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await super().remove_gate(handler, collection)
        if self.apply_gates is not None:
            await self.apply_gates()
        return version


_End = tuple[Ended, BaseException | None]


class SteppedTarget:
    """A handler's own target, which first raises the failures that a test has injected."""

    direct_call = None

    def __init__(self, spec: HandlerSpec, host: TargetHost, failures: deque[BaseException]) -> None:
        self._spec = spec
        self._host = host
        self._failures = failures
        own = spec.target
        if isinstance(own, PythonFunction):
            # a child process would import another copy of the app, with another store
            own = msgspec.structs.replace(own, isolation="auto")
        self._own = own.open(spec, host)

    def perform(self, attempt: AttemptHandle) -> Coroutine[Any, Any, Ended | Accepted]:
        if not self._failures:
            return self._own.perform(attempt)
        raising = PythonFunction(function=_raising(self._failures.popleft()), takes_context=False, is_async=True)
        return raising.open(self._spec, self._host).perform(attempt)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        return self._own.stop(attempt, reason)


class SteppedExecutor(Executor):
    """The real executor. It reports how each attempt ended, retries without jitter, and can inject faults."""

    def __init__(
        self,
        store: SteppedStore,
        alarms: Alarms,
        settler: Settler,
    ) -> None:
        super().__init__(
            store,
            {},
            alarms,
            TargetHost(),
            settler,
            concurrency=1 << 30,  # the slots of each handler are the limit
            output=None,  # what handlers print belongs to the test's output
            freed=lambda: None,
            stuck=self._give_up,
        )
        self.failures: dict[str, deque[BaseException]] = {}
        self.crashes: dict[str, int] = {}
        self._ends: dict[str, asyncio.Future[_End]] = {}
        self._errors: dict[str, BaseException] = {}

    def learn(self, app: App) -> bool:
        """Add queues for new handlers; return whether there were any."""
        self.host.middleware = list(app.middlewares)
        new = [(name, spec) for name, spec in app.specs.items() if name not in self.queues.by_name]
        for name, spec in new:
            queue = next((queue for queue in self.queues.by_name.values() if queue.spec.name == spec.name), None)
            if queue is None:
                failures = self.failures.setdefault(spec.name, deque())
                queue = HandlerQueue(spec, SteppedTarget(spec, self.host, failures))
                queue.settles_directly = False  # `expect` must see every end
            self.queues.by_name[name] = queue
        return bool(new)

    def ready(self) -> Mapping[str, int]:
        """Return the handlers that have a free slot."""
        return {name: 1 for name, queue in self.queues.by_name.items() if queue.free > 0}

    def expect(self, claimed: ClaimedTask) -> asyncio.Future[_End]:
        """Start an attempt. The future is set when the settler has its outcome."""
        self._ends[claimed.id] = end = asyncio.get_running_loop().create_future()
        self.offer([claimed])
        return end

    def release(self, task_id: str) -> None:
        """Stop an attempt that nobody waits for any more. Its task goes back."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.RELEASE)

    def _policy(self, attempt: Attempt) -> RetryPolicy:
        return msgspec.structs.replace(super()._policy(attempt), jitter=0.0)

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Ended:
        self._errors[attempt.claimed.id] = error
        return super()._ended_by(attempt, error)

    def _conclude(self, attempt: Attempt, ended: Ended, started_at: Instant | None, now: Instant | None = None) -> None:
        task_id, name = attempt.claimed.id, attempt.spec.name
        error = self._errors.pop(task_id, None)
        if self.crashes.get(name, 0) and started_at is not None:
            self.crashes[name] -= 1
            died = ErrorInfo("WorkerDied", f"the worker died while it ran this task: crash_next({name})")
            ended, error = Ended(Outcome.LOST, error=died, crashed=True, alone=True), None
        super()._conclude(attempt, ended, started_at, now)
        end = self._ends.pop(task_id, None)
        if end is not None and not end.done():
            end.set_result((ended, error))

    def _give_up(self, attempt: Attempt) -> None:
        end = self._ends.pop(attempt.claimed.id, None)
        if end is not None and not end.done():
            end.set_exception(RuntimeError(f"an attempt of {attempt.spec.name} was told to stop but its code does not end"))


def _raising(error: BaseException) -> Callable[..., Coroutine[Any, Any, None]]:
    async def handler(*args: object, **kwargs: object) -> None:
        raise error

    return handler
