"""Lists by the time of submitting on PostgreSQL: where their walk begins, and how little has to be remembered for that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from duetime.clock import DAY, SECOND, Instant, ManualClock
from duetime.model.query import Query, write_cursor
from duetime.model.task import State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.postgres import read
from duetime.store.postgres.statements import statements
from tests.conformance.build import new_task
from tests.conformance.test_submitted import HOUR, check, id_at


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(postgres_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_from_url(postgres_url, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def schema(postgres_url: str) -> str:
    return postgres_url.partition("schema=")[2]


@pytest.fixture
def admin(store: Store, postgres_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:
        yield connection


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the nodes of a plan that walk along rows by their ids, newest first."""
    if plan.get("Scan Direction") == "Backward":
        yield plan
    for part in plan.get("Plans", []):
        yield from scans(part)


@pytest.mark.parametrize("by", ["submitted_before", "cursor"])
@pytest.mark.parametrize("state", [None, State.PENDING, State.BLOCKED])
async def test_the_walk_begins_at_the_instant(
    store: Store, clock: ManualClock, admin: psycopg.Connection[tuple[Any, ...]], schema: str, state: State | None, by: str
) -> None:
    """Otherwise a page passes everything that is newer: a second for every million tasks."""
    await store.tidy()  # makes the tables of history
    query = Query(state=state, cursor=write_cursor(id_at(clock.now())))
    if by == "submitted_before":
        query = Query(state=state, submitted_before=clock.now())
    composition = read._Composition(statements(schema), query, None)
    text = composition.text.replace("$limit", "51")
    for number, value in enumerate(composition.parameters, start=1):
        text = text.replace(f"${number}::", f"'{value}'::")
    for method in ("seqscan", "bitmapscan", "sort", "hashjoin", "nestloop" if state else "mergejoin"):
        admin.execute(f"set enable_{method} = off".encode())
    row = admin.execute(f"explain (format json) {text}".encode()).fetchone()
    assert row is not None
    [plan] = row[0] if isinstance(row[0], list) else json.loads(row[0])
    # the last attempt of a task on the page is looked up by the task: that is no walk along ids
    walks = [walk for walk in scans(plan["Plan"]) if not walk["Relation Name"].startswith("attempt")]
    assert {walk["Relation Name"].partition("_")[0] for walk in walks} == {
        None: {"task", "due", "history"},
        State.PENDING: {"due", "task", "held"},  # also those that are parked
        State.BLOCKED: {"task", "held"},
    }[state]
    for walk in walks:
        assert walk.get("Index Cond", "").startswith("(id <"), walk


def remembered(admin: psycopg.Connection[tuple[Any, ...]], schema: str) -> list[tuple[Any, ...]]:
    return admin.execute(f"select lead, until from {schema}.ahead order by 1, 2".encode()).fetchall()


def last_id(admin: psycopg.Connection[tuple[Any, ...]], schema: str, instant: Instant) -> str:
    row = admin.execute(f"select {schema}.last_id_before(%s)::text".encode(), [instant]).fetchone()
    assert row is not None
    return str(row[0])


async def test_nothing_is_written_while_clocks_agree_and_little_when_they_do_not(
    store: Store, clock: ManualClock, admin: psycopg.Connection[tuple[Any, ...]], schema: str
) -> None:
    for _ in range(20):
        await store.add([new_task(id=id_at(clock.now() - 1_000)), new_task(id=id_at(clock.now()), key=id_at(0))])
        clock.advance(0.01)
    assert remembered(admin, schema) == []
    for lead in [*range(1_000, 300_000, 7_000), *range(300_000, 1_000, -7_000)]:
        await store.add([new_task(id=id_at(clock.now() + lead))])
        clock.advance(60)
    assert len(remembered(admin, schema)) == 6, "a row for each power of two"
    await store.tidy()
    assert remembered(admin, schema) == [(2**19, 2**63 - 1)]
    await store.add([new_task(id=id_at(clock.now() + 400_000))])
    assert len(remembered(admin, schema)) == 1
    await check(store)


async def test_a_clock_that_was_wrong_for_a_while_does_not_widen_lists_of_other_times(
    store: Store, clock: ManualClock, admin: psycopg.Connection[tuple[Any, ...]], schema: str
) -> None:
    for _ in range(30):
        await store.add([new_task(id=id_at(clock.now() + HOUR)), new_task(id=id_at(clock.now()))])
        clock.advance(60)
    wrong_until = clock.now()
    assert len(remembered(admin, schema)) == 1
    clock.advance(2 * 86_400)
    await store.add([new_task(id=id_at(clock.now()))])
    assert last_id(admin, schema, clock.now())[:13] == id_at(clock.now() - 1)[:13]
    assert last_id(admin, schema, wrong_until)[:13] > id_at(wrong_until + HOUR)[:13]
    assert last_id(admin, schema, wrong_until - DAY)[:13] < id_at(wrong_until)[:13]
    await check(store)


async def test_what_is_remembered_of_some_ids_is_not_taken_for_others(
    store: Store, clock: ManualClock, admin: psycopg.Connection[tuple[Any, ...]], schema: str
) -> None:
    """Neither that some were a long way ahead for a while, nor that others are always a little."""
    for lead in (HOUR, SECOND // 2, SECOND // 2, 2 * SECOND, HOUR, HOUR):
        await store.add([new_task(id=id_at(clock.now() + lead))])
        await store.tidy()
        await check(store)
        clock.advance(2 * 3_600)
    assert [until == 2**63 - 1 for _, until in remembered(admin, schema)] == [True, False]


async def test_nobody_waits_for_a_callers_transaction_with_such_ids(
    store: Store, postgres_url: str, clock: ManualClock, admin: psycopg.Connection[tuple[Any, ...]], schema: str
) -> None:
    with psycopg.connect(postgres_url.partition("?")[0], options="-c lock_timeout=5s") as caller:
        caller.execute("select")
        await store.add_on(caller, [new_task(id=id_at(clock.now() + HOUR))])
        await store.add([new_task(id=id_at(clock.now() + HOUR))])
        await store.tidy()
        clock.advance(1)
        await check(store)
        caller.commit()
    assert len(remembered(admin, schema)) == 2, "neither has seen the other's"
    await check(store)
    await store.tidy()
    assert len(remembered(admin, schema)) == 1
    await check(store)
