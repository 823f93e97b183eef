"""Schedules on PostgreSQL beyond the suite: privileges, tables without functions, a lost reply to a commit, plans that last."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from duetime.clock import SECOND
from duetime.errors import StoreUnavailable
from duetime.model.rules import AfterEnd, DayCalendar
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.postgres import schedules
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Database
from duetime.store.postgres.lanes import Lanes
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.statements import in_schema, statements, steps
from duetime.store.schedules import ScheduleFilter
from tests.conformance.build import wait_until
from tests.conformance.schedules import again, bringing, new, occurrence, put, removal, schedule, skip, stored
from tests.integration.postgres import admin, opened, schema_of

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


@pytest.fixture
def postgres_url(bare_postgres_url: str) -> str:
    """These tests make the tables themselves, or change more than rows."""
    return bare_postgres_url


async def use_every_verb(store: Store) -> None:
    now = store.now()
    await put(store, bringing(new("a", now - SECOND, rule=AfterEnd(60)), occurrence("a", now), skips=(skip("a", now),)), new("b"))
    assert [record.name for record in (await store.due_schedules(10)).records] == ["a"]
    await put(store, again(await stored(store, "a"), next_at=None), removal(await stored(store, "b")))
    await store.wake_schedules(["a"])
    assert [record.name for record in await store.list_schedules(ScheduleFilter())] == ["a"]
    assert len(await store.skips("a", 10)) == await store.prune_skips(now + 1, 10) == 1
    assert await store.put_calendar("free", DayCalendar(weekdays="sun")) is False
    assert list(await store.calendars()) == ["free"]
    assert await store.put_calendar("free", None) is True
    assert (await store.take_duty("firing", "ann", 10)).granted
    await store.leave_duty("firing", "ann")
    assert [lease.granted for lease in (await store.duties()).values()] == [False]


async def test_the_documented_privileges_suffice_for_schedules(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    grants = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "postgres.md").read_text(), re.DOTALL)[0]
    schema, role = schema_of(postgres_url), f"s_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        connection.execute(grants.replace("schema duetime", f"schema {schema}").replace("duetime_app", role).encode())
    store = await opened(re.sub(r"//[^@/]+@", f"//{role}@", postgres_url))
    try:
        await use_every_verb(store)
    finally:
        await store.close()
        with admin(postgres_url) as connection:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_the_stores_own_clock_decides(postgres_url: str) -> None:
    store = await opened(postgres_url)
    try:
        await use_every_verb(store)
        lease = await store.take_duty("firing", "ann", 30)
        assert lease.until_at == lease.now + 30 * SECOND
        assert abs(lease.now - store.now()) < 60 * SECOND
        assert abs((await store.due_schedules(1)).now - store.now()) < 60 * SECOND
    finally:
        await store.close()


async def test_tables_without_functions_are_refused_until_they_are_migrated(postgres_url: str) -> None:
    schema = schema_of(postgres_url)
    with admin(postgres_url) as connection:
        connection.execute(f"create schema {schema}; {statements(schema).create_versions}".encode())
        for step in steps():
            connection.execute(f"insert into {schema}.version values ({step.version}, '{step.name}', 0)".encode())
            connection.execute(in_schema(step.text, schema).encode())
    store = store_from_url(postgres_url)
    with pytest.raises(StoreUnavailable, match="duetime migrate"):
        await store.open(migrate=False)
    await store.open()
    try:
        await use_every_verb(store)
    finally:
        await store.close()


async def test_a_lost_reply_to_a_commit_is_no_answer_that_nothing_was_written(postgres_url: str) -> None:
    """Such a verb is begun again on a new connection. It would meet its own write and take it for somebody else's."""
    store = await opened(postgres_url)
    database = Database(Address.from_url(postgres_url))
    sql = statements(schema_of(postgres_url))
    lanes = Lanes(database, sql)

    async def losing_the_reply(job: Callable[[Runner], Awaitable[T]]) -> T:
        await database.transaction(job)
        return await database.transaction(job)

    try:
        with pytest.raises(StoreUnavailable, match="not known"):
            await schedules.write(losing_the_reply, sql, lanes, [new("a")], None, together=False)
        assert (await stored(store, "a")).version == 1
    finally:
        await database.close()
        await store.close()


async def test_due_schedules_and_writes_walk_no_table(postgres_url: str) -> None:
    """The first plans are made while the table is empty, and they last."""
    await (await opened(postgres_url)).close()
    before = await reported_scans(postgres_url)
    store = await opened(postgres_url)
    now = store.now()
    for _ in range(10):
        await store.due_schedules(10, [("shut", None)])
        await store.write_schedules([removal(schedule("nobody"))])
    await put(store, *[new(f"s{number:04d}", now - SECOND, handler="shut") for number in range(2_000)], new("open", now))
    due = await store.due_schedules(10, [("shut", None)])
    assert ([record.name for record in due.records], due.next_at) == (["open"], None)
    records = (await store.due_schedules(5_000)).records
    await put(store, *[again(record) for record in records])
    await store.close()
    walks, _ = await reported_scans(postgres_url, more_than=before[1])
    assert walks == before[0]


async def reported_scans(url: str, more_than: int = -1) -> tuple[int, int]:
    """Return how often the table was walked and its indexes were searched; the server reports it some time after a session has ended."""
    told: list[tuple[int, int]] = []

    def ask() -> bool:
        with admin(url) as connection:
            table = (schema_of(url), "schedule")
            query = "select seq_scan, idx_scan from pg_stat_user_tables where schemaname = %s and relname = %s"
            told.extend(connection.execute(query, table).fetchall())  # type: ignore[arg-type]
        return told[-1][1] > more_than

    await wait_until(ask, "the server's statistics", 30)
    return told[-1]
