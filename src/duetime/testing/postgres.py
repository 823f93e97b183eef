"""The kit's store on PostgreSQL: a schema of the test's own. Apart from the others, because asyncpg may not be installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from duetime.clock import ManualClock
from duetime.model.disabling import Observed
from duetime.model.gate import Gate
from duetime.model.query import Page, Query
from duetime.model.steps import NewSignal, NewStep, StepRecord
from duetime.model.targets import NewTarget, StoredTarget
from duetime.model.task import NewTask, TaskRecord
from duetime.runtime.portal import Portal
from duetime.store.flows import FlowRecord, NewFlow
from duetime.store.intents import Intent
from duetime.store.postgres.address import Address
from duetime.store.postgres.store import PostgresStore
from duetime.store.postgres.temporary import TemporarySchema
from duetime.store.postgres.work import Claims
from duetime.store.schedules import ScheduleWrite
from duetime.store.values import Added, CancelVerdict, Declaration
from duetime.testing.stores import Notices, SteppedStore, all_pages

# Assertions read in a thread of its own: that of `app.sync` may be the one that waits for them.
_READING = Portal()


class SteppedPostgres(PostgresStore):
    """The PostgreSQL store. A second one, in another thread, reads for assertions, which must not need an await."""

    def __init__(self, address: Address, *, clock: ManualClock) -> None:
        super().__init__(address, clock=clock)
        self.notices = Notices(clock.now)
        self._reader = PostgresStore(msgspec.structs.replace(address, connections=1), clock=clock)

    async def _open(self, migrate: bool) -> None:
        await super()._open(migrate)
        # where wake-ups are off, claims ask to be repeated after a while, which on the test's clock would be a step of its own
        self._claims = Claims(self._opened, self._sql, self._lanes, self._clock, polls=False)

    async def close(self) -> None:
        _READING.block_on(self._reader.close())
        await super().close()

    def look(self, query: Query) -> list[TaskRecord]:
        return all_pages(query, lambda page: _READING.block_on(self._page(page)))

    async def _page(self, query: Query) -> Page:
        await self._reader.open(migrate=False)
        return await self._reader.page(query)

    def look_at(self, task_id: str) -> TaskRecord | None:
        async def find() -> TaskRecord | None:
            await self._reader.open(migrate=False)
            [record] = await self._reader.get([task_id])
            return record

        return _READING.block_on(find())

    async def add(self, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        return self.notices.added(await super().add(tasks))

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        return self.notices.added(await super().add_on(connection, tasks))

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        self.notices.flow_added(flow)
        return await super().add_flow(flow)

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        self.notices.flow_added(flow)
        return await super().add_flow_on(connection, flow)

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        self.notices.stepped(steps)
        return await super().save_steps(worker, steps)

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
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
async def stepped_schema(url: str, clock: ManualClock) -> AsyncIterator[SteppedStore]:
    """Lend a store in a new schema of a database; the schema is dropped at the end, also of a test that fails."""
    schema = TemporarySchema(Address.from_url(url))
    await schema.hold()
    try:
        store = SteppedPostgres(schema.address, clock=clock)
        try:
            yield store
        finally:
            await store.close()
    finally:
        await schema.remove()
