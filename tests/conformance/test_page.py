"""Pages: order, every filter, and pages that visit each task once whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.model import query as query_module
from duetime.model.query import MAX_PAGE_BYTES, MIN_ID_PREFIX, Query, write_cursor
from duetime.model.task import FINAL, State, TaskRecord
from duetime.store import Store
from tests.conformance.build import PLENTY, Worker, add, ended, error, get, new_task, task_in


async def ids(store: Store, limit: int = 100, **filters: Any) -> list[str]:
    """List all pages of a query."""
    found: list[str] = []
    cursor = None
    for _ in range(1000):
        page = await store.page(Query(limit=limit, cursor=cursor, **filters))
        assert len(page.items) <= limit
        found += [record.id for record in page.items]
        if page.next is None:
            return found
        assert page.items, "an empty page must be the last"
        cursor = page.next
    raise AssertionError("a list without end")


async def test_an_empty_store_lists_nothing(store: Store) -> None:
    page = await store.page(Query())
    assert (page.items, page.next) == ([], None)


async def test_newest_submitted_comes_first_whatever_the_state(store: Store, worker: Worker, clock: ManualClock) -> None:
    records: list[TaskRecord] = []
    for state in [*State, *reversed(State)]:
        records.append(await task_in(store, worker, state, handler=f"{state}-{len(records)}"))
        clock.advance(1)
    listed = [id for id in await ids(store) if id in {record.id for record in records}]
    assert listed == [record.id for record in reversed(records)]


async def test_a_page_holds_whole_records(store: Store, worker: Worker) -> None:
    records = {(await task_in(store, worker, state, handler=state, key="k", meta={"a": "b"})).id for state in State}
    page = await store.page(Query())
    for record in page.items:
        assert record == await get(store, record)
    assert records <= {record.id for record in page.items}


@pytest.mark.parametrize("state", sorted({State.SUCCEEDED, State.FAILED, State.CANCELLED}))
async def test_latest_finished_comes_first_when_one_final_state_is_asked_for(
    store: Store, worker: Worker, clock: ManualClock, state: State
) -> None:
    for _ in range(5):
        await add(store)
        clock.advance(1)
    claimed = await worker.take()
    finished = [claimed[index] for index in (3, 0, 4, 1, 2)]
    for task in finished:
        clock.advance(1)
        await worker.end(task, state)
    expected = [task.id for task in reversed(finished)]
    assert await ids(store, state=state) == expected
    assert await ids(store, limit=2, state=state) == expected


@pytest.mark.parametrize("limit", [1, 2, 7, 49, 50, 51, 1000])
async def test_pages_of_any_size_visit_each_task_once(store: Store, worker: Worker, clock: ManualClock, limit: int) -> None:
    """All are submitted and finished at the same instant, so that order must be settled by something else."""
    answers = await store.add([new_task() for _ in range(50)])
    everything = {added.record.id for added in answers}
    listed = await ids(store, limit=limit)
    assert (len(listed), set(listed)) == (50, everything)
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in await worker.take()])
    for state in (None, State.SUCCEEDED):
        listed = await ids(store, limit=limit, state=state)
        assert (len(listed), set(listed)) == (50, everything)


async def test_a_full_last_page_has_no_next(store: Store) -> None:
    await store.add([new_task() for _ in range(4)])
    assert len((await store.page(Query(limit=4))).items) == 4
    assert len(await ids(store, limit=4)) == 4
    assert (await store.page(Query(limit=5))).next is None


@pytest.mark.parametrize("limit", [1, 3, 10])
async def test_pages_are_stable_while_tasks_are_added(store: Store, clock: ManualClock, limit: int) -> None:
    before = []
    for _ in range(30):
        before.append((await add(store)).id)
        clock.advance(0.1)
    found: list[str] = []
    cursor = None
    while True:
        page = await store.page(Query(limit=limit, cursor=cursor))
        found += [record.id for record in page.items]
        if page.next is None:
            break
        cursor = page.next
        await store.add([new_task(), new_task(delay=SECOND)])
        clock.advance(0.1)
    assert [id for id in found if id in before] == list(reversed(before))
    assert len(found) == len(set(found))


async def test_pages_are_stable_while_tasks_finish_and_come_back(store: Store, worker: Worker, clock: ManualClock) -> None:
    """A list without a state matches a task throughout, even if it moves from waiting to history between two pages."""
    before = []
    for _ in range(40):
        before.append((await add(store)).id)
        clock.advance(0.1)
    found: list[str] = []
    cursor = None
    step = 0
    while True:
        page = await store.page(Query(limit=4, cursor=cursor))
        found += [record.id for record in page.items]
        if page.next is None:
            break
        cursor = page.next
        for task in await worker.take(wants={"work": 5}):
            await worker.end(task, (State.SUCCEEDED, State.FAILED, State.PENDING)[step % 3])
            step += 1
        await store.retry(before[::7])
        clock.advance(0.1)
    assert found == list(reversed(before))


async def test_pages_of_a_final_state_are_stable_while_more_finish(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(40)])
    finished = []
    for task in await worker.take(wants={"work": 20}):
        await worker.end(task, State.FAILED)
        finished.append(task.id)
        clock.advance(0.1)
    found: list[str] = []
    cursor = None
    while True:
        page = await store.page(Query(limit=3, cursor=cursor, state=State.FAILED))
        found += [record.id for record in page.items]
        if page.next is None:
            break
        cursor = page.next
        await worker.run(State.FAILED)
        clock.advance(0.1)
    assert found == list(reversed(finished))


async def test_filter_by_state(store: Store, worker: Worker) -> None:
    records = {state: await task_in(store, worker, state, handler=state) for state in State}
    for state, record in records.items():
        assert record.id in await ids(store, state=state)
        assert {found.state for found in (await store.page(Query(state=state))).items} == {state}


async def test_filter_by_handler_collection_key_and_schedule(store: Store, worker: Worker) -> None:
    wanted: dict[str, Any] = {"handler": "a", "collection": "eu", "key": "k", "schedule": "nightly"}
    for state in (State.PENDING, State.SUCCEEDED):
        match = await task_in(store, worker, state, planned_at=1, **wanted)
        others = [
            await task_in(store, worker, state, **(wanted | {name: "other", "handler": f"{name}-{state}"}))
            for name in ("collection", "key", "schedule")
        ]
        assert await ids(store, state=state, **wanted) == [match.id]
        assert await ids(store, state=state, handler="a") == [match.id]
        for name, other in zip(("collection", "key", "schedule"), others, strict=True):
            other_value: dict[str, Any] = {name: "other"}
            same_value: dict[str, Any] = {name: wanted[name]}
            assert await ids(store, state=state, **other_value) == [other.id]
            assert match.id in await ids(store, state=state, **same_value)
            assert other.id not in await ids(store, state=state, **same_value)
        await store.cancel([match.id])


async def test_filter_by_the_beginning_of_an_id(store: Store, worker: Worker) -> None:
    records = {state: await task_in(store, worker, state, handler=state) for state in State}
    records[State.PENDING] = await add(store, "keyed", key="k")
    for state, record in records.items():
        for given in ({}, {"state": state}, {"handler": record.handler}, {"key": record.key}):
            filters: dict[str, Any] = {"id_prefix": record.id} | given
            assert await ids(store, **filters) == [record.id]
    everything = sorted((await ids(store)), reverse=True)
    prefix = everything[0]
    while prefix:
        prefix = prefix[:-1]
        if len(prefix) >= MIN_ID_PREFIX:
            matching = [id for id in everything if id.startswith(prefix)]
            assert sorted(await ids(store, id_prefix=prefix), reverse=True) == matching
            assert sorted(await ids(store, limit=1, id_prefix=prefix), reverse=True) == matching


async def test_ids_beyond_a_beginning_are_not_listed(store: Store) -> None:
    """The least and the greatest ids that begin so are listed, and their neighbours are not."""
    tail = "7000-8000-000000000000"
    inside = [f"01a1e112-0000-{tail}", "01a1e112-ffff-7fff-bfff-ffffffffffff"]
    outside = ["01a1e111-ffff-7fff-bfff-ffffffffffff", f"01a1e113-0000-{tail}"]
    for id in inside + outside:
        await add(store, id=id)
    assert sorted(await ids(store, id_prefix="01a1e112")) == inside
    assert sorted(await ids(store, id_prefix="01a1e112-")) == inside
    assert await ids(store, id_prefix="01a1e112-00") == inside[:1]


async def test_filter_by_retrying(store: Store, worker: Worker, clock: ManualClock) -> None:
    retrying = await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + SECOND)
    fresh = await add(store)
    assert await ids(store, state=State.PENDING, retrying=True) == [retrying.id]
    assert await ids(store, state=State.PENDING, retrying=False) == [fresh.id]
    assert await ids(store, retrying=True) == [retrying.id]
    assert len(await ids(store, state=State.PENDING)) == 2


@pytest.mark.parametrize("state", [None, State.PENDING])
async def test_filter_by_due_time(store: Store, clock: ManualClock, state: State | None) -> None:
    start = clock.now()
    records = [await add(store, due_at=start + number) for number in range(5)]
    inside = {record.id for record in records[1:3]}
    assert set(await ids(store, state=state, due_after=start + 1, due_before=start + 3)) == inside
    assert set(await ids(store, state=state, due_after=start + 3)) == {record.id for record in records[3:]}
    assert set(await ids(store, state=state, due_before=start + 1)) == {records[0].id}


@pytest.mark.parametrize("state", [None, State.PENDING, State.FAILED])
async def test_filter_by_submission(store: Store, worker: Worker, clock: ManualClock, state: State | None) -> None:
    start = clock.now()
    records = []
    for _ in range(5):
        records.append(await add(store))
        if state is State.FAILED:
            await worker.run(State.FAILED)
        clock.advance(1)
    at = [start + number * SECOND for number in range(5)]
    assert set(await ids(store, state=state, submitted_after=at[1], submitted_before=at[3])) == {record.id for record in records[1:3]}
    assert set(await ids(store, state=state, submitted_after=at[4])) == {records[4].id}
    assert set(await ids(store, state=state, submitted_before=at[0])) == set()


@pytest.mark.parametrize("state", [None, State.SUCCEEDED])
async def test_filter_by_finish(store: Store, worker: Worker, clock: ManualClock, state: State | None) -> None:
    start = clock.now()
    records = []
    for _ in range(5):
        records.append(await task_in(store, worker, State.SUCCEEDED))
        clock.advance(1)
    await add(store)
    at = [start + number * SECOND for number in range(5)]
    assert set(await ids(store, state=state, finished_after=at[1], finished_before=at[3])) == {record.id for record in records[1:3]}
    assert set(await ids(store, state=state, finished_after=at[4])) == {records[4].id}
    assert set(await ids(store, state=state, finished_before=at[4])) == {record.id for record in records[:4]}


async def test_filter_by_error(store: Store, worker: Worker) -> None:
    found = []
    for kind in ("TimeoutError", "KeyError"):
        record = await add(store)
        await worker.run(State.FAILED, error=error(kind, "it went wrong"))
        found.append(record.id)
    await task_in(store, worker, State.FAILED)
    await task_in(store, worker, State.PENDING)
    assert await ids(store, error="TimeoutError") == [found[0]]
    assert await ids(store, error="KeyError", state=State.FAILED) == [found[1]]
    assert await ids(store, error="Nothing") == []


async def test_filters_that_match_nothing_give_an_empty_page(store: Store, worker: Worker) -> None:
    await task_in(store, worker, State.SUCCEEDED)
    await task_in(store, worker, State.PENDING)
    nothing: list[dict[str, Any]] = [
        {"handler": "x"},
        {"collection": "x"},
        {"key": "x"},
        {"schedule": "x"},
        {"due_before": 1},
        {"submitted_before": 1},
        {"finished_before": 1},
    ]
    for filters in nothing:
        for state in (None, State.PENDING, State.SUCCEEDED):
            assert await ids(store, state=state, **filters) == []


async def test_filters_hold_on_every_page(store: Store, worker: Worker) -> None:
    await store.add([new_task("a" if number % 3 else "b", collection="eu" if number % 2 else None) for number in range(60)])
    listed = await ids(store, limit=3, handler="a", collection="eu")
    assert len(listed) == len(set(listed)) == 20


async def test_a_cursor_that_was_not_given_out_is_refused(store: Store, worker: Worker) -> None:
    for state in (None, State.PENDING, *sorted(FINAL)):
        too_large = (write_cursor(2**64 - 1), write_cursor(2**64 - 1, 2**64 - 1), write_cursor(-(2**63) - 1))
        for cursor in (*too_large, "x", "not a cursor", "bm9wZQ", "W10", "WzEsMiwzLDQsNSw2XQ", "' or 1=1 --", "é"):
            with pytest.raises(InvalidValue, match="cursor"):
                await store.page(Query(state=state, cursor=cursor))


async def test_a_pruned_task_is_listed_no_more(store: Store, worker: Worker, clock: ManualClock) -> None:
    await task_in(store, worker, State.SUCCEEDED)
    kept = await add(store)
    await store.prune(State.SUCCEEDED, clock.now() + 1, PLENTY)
    assert await ids(store) == [kept.id]


# ---- how large a page may be ----

LARGE = b'{"text": "%b"}' % (b"x" * 990_000)


@pytest.mark.parametrize("filters", [{}, {"handler": "large"}, {"state": State.PENDING}, {"state": State.SUCCEEDED}], ids=str)
async def test_a_page_ends_before_it_has_too_many_bytes(store: Store, worker: Worker, clock: ManualClock, filters: dict[str, Any]) -> None:
    added = []
    for _ in range(20):
        added.append((await add(store, handler="large", payload=LARGE)).id)
        clock.advance(1)
    if filters.get("state") is State.SUCCEEDED:
        for _ in added:
            await worker.run(State.SUCCEEDED, "large", result=LARGE)
    most = MAX_PAGE_BYTES // ((1 + (filters.get("state") is State.SUCCEEDED)) * len(LARGE))
    page = await store.page(Query(limit=100, **filters))
    assert len(page.items) == most
    assert page.next is not None
    assert sorted(await ids(store, **filters)) == sorted(added)


async def test_a_page_has_a_task_however_large_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "MAX_PAGE_BYTES", 10)
    added = [(await add(store, handler="large", payload=b'{"text": "longer than ten bytes"}')).id for _ in range(3)]
    assert [len((await store.page(Query())).items), sorted(await ids(store))] == [1, sorted(added)]


async def test_small_tasks_fill_a_page_to_its_limit(store: Store) -> None:
    added = [(await add(store, payload=LARGE if number == 5 else b"{}")).id for number in range(10)]
    page = await store.page(Query(limit=10))
    assert (len(page.items), page.next) == (10, None)
    assert {record.id for record in page.items} == set(added)
