"""The stores of the kit: the real ones, on the test's clock. They tell the kit at once what a worker learns in the background."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.clock import Clock, Instant, ManualClock
from duetime.errors import InvalidValue
from duetime.model.disabling import Observed
from duetime.model.gate import Gate
from duetime.model.query import MAX_PAGE, Page, Query
from duetime.model.steps import NewSignal, NewStep, StepRecord
from duetime.model.targets import NewTarget, StoredTarget
from duetime.model.task import NewTask, TaskRecord, due_of, expiry_of
from duetime.store import Store
from duetime.store.flows import FlowRecord, NewFlow
from duetime.store.intents import Intent
from duetime.store.open import engine_of
from duetime.store.schedules import ScheduleWrite
from duetime.store.sqlite import read
from duetime.store.sqlite.records import records_by_id
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import Added, CancelVerdict, Declaration

Answers = TypeVar("Answers", bound=Sequence[Added])
NOT_IN_MEMORY = (
    "connection= cannot be part of a store in memory, which is what using(app) gives to a test; name the database that your "
    "code connects to: using(app, url='postgresql://…/shop_test'), or for SQLite using(app, file=tmp_path / 'shop.db')"
)


class SteppedStore(Store, Protocol):
    """A store that can be looked into without an event loop, and reports what happens there."""

    notices: Notices

    def look(self, query: Query) -> list[TaskRecord]:
        """Return all tasks that match, in the order of submitting. Runs in the caller's thread: an assertion must not need an await."""
        ...

    def look_at(self, task_id: str) -> TaskRecord | None:
        """Return a task, likewise."""
        ...


class Notices:
    """What the kit hears of its store: expiries, schedules, cancels, gates and stored targets."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._expiries: list[Instant] = []
        self.has_schedules = False  # or had some: otherwise looking for due ones is not worth the time
        self.has_intents = False  # or had some
        self.has_flows = False  # or had some
        self.has_waits = False  # or had some, or signals
        self.apply_gates: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.serve_targets: Callable[[], Coroutine[Any, Any, object]] | None = None
        self.stop: Callable[[str], None] | None = None

    def next_expiry(self, now: Instant) -> Instant | None:
        """Return the next instant at which a task may expire.

        Finished tasks are included, and those of a transaction that was rolled back, because an extra look is harmless.
        """
        while self._expiries and self._expiries[0] <= now:
            heapq.heappop(self._expiries)
        return self._expiries[0] if self._expiries else None

    def added(self, answers: Answers) -> Answers:
        for added in answers:
            self._expires(added.record.expires_at)
        return answers

    def flow_added(self, flow: NewFlow) -> None:
        """Look into flows from now on, also at the flow's deadline."""
        self.has_flows = True
        if flow.deadline_in is not None:
            self._expires(self._now() + flow.deadline_in)

    def stepped(self, steps: Sequence[NewStep]) -> None:
        """Look at waits from now on, also when their time is over."""
        for step in steps:
            if step.signal is not None or step.children:
                self.has_waits = True
                self._expires(step.wake_at)

    def wrote_schedules(self, writes: Sequence[ScheduleWrite], accepted: list[bool]) -> list[bool]:
        self.has_schedules = True
        for task in [task for write, stored in zip(writes, accepted, strict=True) if stored for task in write.tasks]:
            self._expires(expiry_of(task, due_of(task, self._now())))
        return accepted

    def _expires(self, at: Instant | None) -> None:
        if at is not None:
            heapq.heappush(self._expiries, at)

    def cancelled(self, ids: Sequence[str], verdicts: list[CancelVerdict]) -> list[CancelVerdict]:
        for task_id, verdict in zip(ids, verdicts, strict=True):
            if verdict is CancelVerdict.CANCELLING and self.stop is not None:
                asyncio.get_running_loop().call_soon(self.stop, task_id)  # not inside the code that is to stop
        return verdicts

    async def gates_changed(self) -> None:
        if self.apply_gates is not None:
            await self.apply_gates()

    async def targets_changed(self) -> None:
        if self.serve_targets is not None:
            await self.serve_targets()


def all_pages(query: Query, page_of: Callable[[Query], Page]) -> list[TaskRecord]:
    """Return all tasks that match, in the order of submitting."""
    if query.nothing:
        return []
    wanted = query.wanted
    query = msgspec.structs.replace(query, state=None, states=(), limit=MAX_PAGE)  # a page of final states has another order
    found: list[TaskRecord] = []
    while True:
        page = page_of(query)
        found.extend(page.items)
        if page.next is None:
            break
        query = msgspec.structs.replace(query, cursor=page.next)
    return [record for record in reversed(found) if not wanted or record.state in wanted]


class SteppedSqlite(SqliteStore):
    """The SQLite store, in memory or in a file."""

    def __init__(self, path: str, *, synchronous: str = "normal", patience: float = 30.0, clock: Clock | None = None) -> None:
        super().__init__(path, synchronous=synchronous, patience=patience, clock=clock)
        self.notices = Notices(self.now)

    def look(self, query: Query) -> list[TaskRecord]:
        return all_pages(query, lambda page: self.read_now(partial(read.page, query=page)))

    def look_at(self, task_id: str) -> TaskRecord | None:
        return self.read_now(partial(records_by_id, ids=[task_id])).get(task_id)

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        return self.notices.added(await super().add(tasks))

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        if self._path == ":memory:":
            raise InvalidValue(NOT_IN_MEMORY)
        return self.notices.added(await super().add_on(connection, tasks))

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        self.notices.flow_added(flow)
        return await super().add_flow(flow)

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        if self._path == ":memory:":
            raise InvalidValue(NOT_IN_MEMORY)
        self.notices.flow_added(flow)
        return await super().add_flow_on(connection, flow)

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        self.notices.stepped(steps)
        return await super().save_steps(worker, steps)

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        if self._path == ":memory:":
            raise InvalidValue(NOT_IN_MEMORY)
        self.notices.has_waits = True
        return await super().send_signals_on(connection, signals)

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        await super().intend(connection, intents)
        self.notices.has_intents = True

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        return self.notices.wrote_schedules(writes, await super().write_schedules(writes, together=together))

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        return self.notices.cancelled(ids, await super().cancel(ids))

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        changed = await super().observe(worker, observed)
        if changed:
            await self.notices.gates_changed()
        return changed

    async def put_gate(self, gate: Gate) -> int:
        version = await super().put_gate(gate)
        await self.notices.gates_changed()
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await super().remove_gate(handler, collection)
        await self.notices.gates_changed()
        return version

    async def put_target(self, target: NewTarget, declaration: Declaration, seen: int | None = None) -> StoredTarget | None:
        stored = await super().put_target(target, declaration, seen)
        await self.notices.targets_changed()
        return stored

    async def remove_target(self, name: str, seen: int | None = None) -> bool | None:
        removed = await super().remove_target(name, seen)
        await self.notices.targets_changed()
        return removed


@asynccontextmanager
async def closing(store: SteppedSqlite) -> AsyncIterator[SteppedStore]:
    """Lend a SQLite store; its file stays."""
    try:
        yield store
    finally:
        await store.close()


def stepped_store(url: str, clock: ManualClock) -> AbstractAsyncContextManager[SteppedStore]:
    """Lend the store that a URL names: a SQLite file as it is, of a PostgreSQL database a new schema."""
    engine, url = engine_of(url)
    if engine == "sqlite":
        return closing(SteppedSqlite.from_url(url, clock=clock))
    from duetime.testing.postgres import stepped_schema

    return stepped_schema(url, clock)
