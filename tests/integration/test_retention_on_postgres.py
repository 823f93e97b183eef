"""What only the PostgreSQL store has: tables of history that are dropped whole, and tasks that outlive them in another one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from duetime.clock import DAY, SECOND, ManualClock
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.output import OutputChunk, OutputPosition
from duetime.store.values import ChangeVerdict, NewWorker
from tests.conformance.build import Worker, add, error, task_in
from tests.integration.postgres import admin, schema_of
from tests.servers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MONTH = 30 * DAY

PRUNING = """
import asyncio, sys
from duetime.clock import ManualClock
from duetime.model.task import State
from duetime.store.open import store_from_url

async def main(url, now, state, before):
    store = store_from_url(url, clock=ManualClock(int(now)))
    await store.open()
    await store.prune(State(state), int(before), 2, but=["audit"])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(postgres_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_from_url(postgres_url, clock=clock)
    await store.open()
    yield store
    assert await store.inspect(repair=False) == []
    await store.close()


@pytest.fixture
async def worker(store: Store) -> Worker:
    return Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 10})))


async def failed_twice(worker: Worker, store: Store, handler: str) -> TaskRecord:
    record = await add(store, handler)
    await worker.run(State.PENDING, handler, error=error())
    await worker.run(State.FAILED, handler)
    [found] = await store.get([record.id])
    assert found is not None
    return found


def count(connection: psycopg.Connection[tuple[object, ...]], text: str) -> object:
    [[found]] = connection.execute(text.encode()).fetchall()
    return found


async def prune_all(store: Store, before: int) -> None:
    for _ in range(2):
        while await store.prune(State.FAILED, before, 2, but=["audit"]):
            pass


def table_of(connection: psycopg.Connection[tuple[object, ...]], schema: str, task: TaskRecord) -> object:
    return count(connection, f"select tableoid::regclass::text from {schema}.history where id = '{task.id}'")


async def is_whole(store: Store, audit: list[TaskRecord], usual: list[TaskRecord]) -> None:
    """Check that all of one handler is as it was, attempts included, and all of another gone."""
    assert await store.get([task.id for task in audit]) == audit
    assert [len(await store.attempts(task.id)) for task in audit] == [2] * len(audit)
    assert await store.get([task.id for task in usual]) == [None] * len(usual)
    assert {(each.handler, each.count) for each in (await store.counts()).finals if each.count} == {("audit", len(audit))}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["while it sets tasks aside", "between taking the table out and dropping it"])
async def test_a_process_that_is_killed_loses_nothing(
    postgres_url: str, store: Store, worker: Worker, clock: ManualClock, killed: str
) -> None:
    audit = [await failed_twice(worker, store, "audit") for _ in range(5)]
    usual = [await task_in(store, worker, State.FAILED, handler="usual") for _ in range(5)]
    clock.advance(MONTH / SECOND)
    schema, before = schema_of(postgres_url), clock.now() - 15 * DAY
    in_the_way = f"select from {schema}.history where id = '{audit[2].id}' for update"
    if not killed.startswith("while"):
        in_the_way = f"lock table {schema}.tally"
    with admin(postgres_url) as connection, psycopg.connect(postgres_url.partition("?")[0]) as holding:
        table = table_of(connection, schema, usual[0])
        holding.execute(in_the_way.encode())
        arguments = [postgres_url, str(clock.now()), "failed", str(before)]
        process = subprocess.Popen([sys.executable, "-c", PRUNING, *arguments], cwd=ROOT)  # noqa: ASYNC220 - nothing else runs
        blocked = f"from pg_stat_activity where {holding.info.backend_pid} = any (pg_blocking_pids(pid))"
        await asyncio.to_thread(wait_until, "the pruner waits", lambda: count(connection, f"select count(*) {blocked}"))
        process.kill()
        process.wait()
        connection.execute(f"select pg_terminate_backend(pid) {blocked}".encode())
        await asyncio.to_thread(wait_until, "its session ends", lambda: not count(connection, f"select count(*) {blocked}"))
        attached = count(connection, f"select count(*) from pg_inherits where inhrelid = '{table}'::regclass")
        assert attached == (1 if killed.startswith("while") else 0)
        assert await store.get([task.id for task in audit]) == audit, "nothing is hidden meanwhile"
    await prune_all(store, before)
    await is_whole(store, audit, usual)


async def test_what_is_written_into_a_table_after_the_others_were_set_aside_is_saved(
    postgres_url: str, store: Store, worker: Worker, clock: ManualClock
) -> None:
    """As if the table had been taken out just after they were written; nobody had set them aside."""
    audit = [await failed_twice(worker, store, "audit") for _ in range(3)]
    usual = [await task_in(store, worker, State.FAILED, handler="usual") for _ in range(3)]
    late = audit[0].id
    await store.keep_output([OutputChunk(late, 1, 0, "one word", last=True)])
    clock.advance(MONTH / SECOND)
    with admin(postgres_url) as connection:
        schema = schema_of(postgres_url)
        table = table_of(connection, schema, audit[0])
        connection.execute(f"alter table {schema}.history_failed_recent detach partition {table} concurrently".encode())
        assert await store.get([late]) == [None]
    await prune_all(store, clock.now() - 15 * DAY)
    await is_whole(store, audit, usual)
    assert [each.text for each in await store.output(late, None, OutputPosition(), 10)] == ["one word"]


async def test_a_retry_that_waits_for_a_task_on_its_way_aside_finds_it_there(
    postgres_url: str, store: Store, worker: Worker, clock: ManualClock
) -> None:
    task = await failed_twice(worker, store, "audit")
    schema = schema_of(postgres_url)
    with admin(postgres_url) as connection, psycopg.connect(postgres_url.partition("?")[0]) as moving:
        moving.execute(f"select {schema}.make_kept('history_failed'), {schema}.make_kept('attempt')".encode())
        moving.commit()
        moving.execute(f"update {schema}.history_failed set kept = true where id = '{task.id}'".encode())
        retry = asyncio.create_task(store.retry([task.id]))
        blocked = f"select count(*) from pg_stat_activity where {moving.info.backend_pid} = any (pg_blocking_pids(pid))"
        await asyncio.to_thread(wait_until, "the retry waits", lambda: count(connection, blocked))
        moving.commit()
        assert await retry == [ChangeVerdict.CHANGED]
    assert (await worker.take_one("audit")).attempt == 3


async def test_attempts_that_were_set_aside_go_with_a_task_that_was_retried(
    postgres_url: str, store: Store, worker: Worker, clock: ManualClock
) -> None:
    task = await failed_twice(worker, store, "audit")
    kept = f"select count(*) from {schema_of(postgres_url)}.attempt where kept"
    clock.advance(MONTH / SECOND)
    await prune_all(store, clock.now() - 15 * DAY)
    with admin(postgres_url) as connection:
        assert count(connection, kept) == 1
        await store.retry([task.id])
        await worker.run(State.SUCCEEDED, "audit")
        for _ in range(3):
            await task_in(store, worker, State.SUCCEEDED, handler="usual")
        clock.advance(MONTH / SECOND)
        assert await store.prune(State.SUCCEEDED, clock.now() - 15 * DAY, 2) == [], "its table goes whole"
        assert await store.get([task.id]) == [None]
        assert count(connection, kept) == 0


async def test_without_a_handler_that_keeps_longer_there_is_no_table_for_its_tasks(
    postgres_url: str, store: Store, worker: Worker, clock: ManualClock
) -> None:
    """Such a table would be opened by every look-up of an id."""
    for _ in range(5):
        await task_in(store, worker, State.FAILED, handler="usual")
    clock.advance(MONTH / SECOND)
    await prune_all(store, clock.now() - 15 * DAY)
    named = "relname ~ '^(history|attempt).*_kept$'"
    kept = f"select count(*) from pg_class where relnamespace = '{schema_of(postgres_url)}'::regnamespace and {named}"
    with admin(postgres_url) as connection:
        assert count(connection, kept) == 0
