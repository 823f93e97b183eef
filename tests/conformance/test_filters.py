"""Filters over tasks: what each finds, in lists, brief lists and counts, and where looking one by one ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duetime.clock import SECOND
from duetime.errors import InvalidValue
from duetime.model.outcome import Outcome
from duetime.model.query import BRIEF, MAX_PAGE_BYTES, Page, Query, TaskCount
from duetime.model.task import FINAL, State, TaskRecord
from duetime.store import Store
from duetime.store.values import Declaration
from tests.conformance.build import Worker, add, error, get, new_task, task_in

LIVE = tuple(state for state in State if state not in FINAL)


async def every_state(store: Store, worker: Worker) -> dict[State, TaskRecord]:
    """Bring a task of a handler of its own into each state."""
    return {state: await task_in(store, worker, state, f"shop.{state}") for state in State}


async def ids(store: Store, query: Query) -> list[str]:
    """Return all that match, page by page, each once."""
    found: list[str] = []
    while True:
        page = await store.page(query)
        found += [record.id for record in page.items]
        if page.next is None:
            assert len(found) == len(set(found))
            return found
        query = msgspec.structs.replace(query, cursor=page.next)


async def both(store: Store, **parts: Any) -> list[str]:
    """Return what a filter finds in one page, and in pages of one, which is what it counts."""
    found = await ids(store, Query(**parts))
    assert await ids(store, Query(**parts, limit=1)) == found
    assert await ids(store, Query(**parts, brief=True)) == found
    assert await store.count(Query(**parts)) == TaskCount(len(found), False)
    return found


@pytest.mark.parametrize(
    "states",
    [
        (State.FAILED, State.CANCELLED),
        LIVE,
        (State.PENDING, State.RUNNING),
        tuple(FINAL),
        (State.PENDING, State.FAILED),
        (State.FAILED,),
        tuple(State),
    ],
    ids=lambda states: "+".join(sorted(states)),
)
async def test_several_states_are_listed_together(store: Store, worker: Worker, states: tuple[State, ...]) -> None:
    tasks = await every_state(store, worker)
    found = await both(store, states=states, handler="shop.*")
    assert set(found) == {task.id for state, task in tasks.items() if state in states}
    records = [await get(store, task_id) for task_id in found]
    if all(state in FINAL for state in states):
        assert [record.finished_at for record in records] == sorted((record.finished_at or 0 for record in records), reverse=True)
    else:
        assert [record.submitted_at for record in records] == sorted((record.submitted_at for record in records), reverse=True)


async def test_a_state_and_several_states_must_both_hold(store: Store, worker: Worker) -> None:
    tasks = await every_state(store, worker)
    assert await both(store, state=State.FAILED, states=(State.FAILED, State.PENDING)) == [tasks[State.FAILED].id]
    assert await both(store, state=State.FAILED, states=(State.RUNNING, State.PENDING)) == []


async def test_parked_tasks_are_found_among_several_states(store: Store, worker: Worker) -> None:
    parked = await add(store)
    claimed = await worker.take_one()
    await worker.end(claimed, State.PENDING, outcome=Outcome.PARKED, refused_by="digest", tries=0)
    due = await add(store)
    assert await both(store, states=(State.PENDING, State.BLOCKED)) == [due.id, parked.id]
    assert await both(store, states=(State.PENDING, State.BLOCKED), parked=True) == [parked.id]
    assert await both(store, states=(State.PENDING, State.BLOCKED), parked=False) == [due.id]


async def test_a_handler_may_be_a_pattern(store: Store) -> None:
    names = ("shop.charge", "shop.ship", "shop", "workshop.ship", "shop.*")
    tasks = {name: (await add(store, name)).id for name in names}
    for pattern, fitting in {
        "shop.*": ("shop.charge", "shop.ship", "shop.*"),
        "*ship": ("shop.ship", "workshop.ship"),
        "*": names,
        "shop.*ip": ("shop.ship",),
        "*.*i*": ("shop.ship", "workshop.ship"),
        "no*": (),
        "shop": ("shop",),
    }.items():
        assert set(await both(store, handler=pattern)) == {tasks[name] for name in fitting}, pattern


async def test_a_pattern_is_for_the_present_names_of_handlers(store: Store) -> None:
    task = await add(store, "former.charge", key="order-7")
    await store.declare([Declaration(name="shop.charge", aliases=("former.charge",))])
    assert await both(store, handler="shop.*") == [task.id]
    assert await both(store, handler="shop.*", key="order-7") == [task.id]
    assert await both(store, handler="former.*") == []


async def test_a_range_of_priorities_includes_its_ends(store: Store, worker: Worker) -> None:
    tasks = [(await add(store, priority=priority)).id for priority in range(10)]
    await worker.take(wants={"work": 3})  # the highest ones run
    assert await both(store, priority_min=7) == tasks[:6:-1]
    assert await both(store, priority_max=1) == [tasks[1], tasks[0]]
    assert await both(store, priority_min=5, priority_max=5) == [tasks[5]]
    assert await both(store, priority_min=6, state=State.RUNNING) == tasks[:6:-1]
    assert await both(store, priority_min=6, priority_max=5) == []
    with pytest.raises(InvalidValue, match="priority must be 0–9, got 10"):
        Query(priority_min=10)


async def test_a_worker_is_told_by_how_its_id_begins(store: Store, worker: Worker) -> None:
    running, ended, _ = [(await add(store)).id for _ in range(3)]
    first = await worker.take_one()
    second = await worker.take_one()
    assert (first.id, second.id) == (running, ended)
    await worker.end(second, State.SUCCEEDED)
    for beginning in (worker.id, worker.id[:12]):
        assert await both(store, worker=beginning) == [ended, running]
        assert await both(store, worker=beginning, state=State.RUNNING) == [running]
    assert await both(store, worker="another") == []


async def test_who_submitted_a_task_is_a_filter(store: Store) -> None:
    ours, _ = await add(store, submitted_by="anna@shop"), await add(store, submitted_by="bob@shop")
    assert await both(store, submitted_by="anna@shop") == [ours.id]
    assert await both(store, submitted_by="anna") == []


async def test_entries_of_meta_must_all_hold(store: Store, worker: Worker) -> None:
    one = await add(store, meta={"tenant": "acme", "region": "eu"})
    two = await add(store, meta={"tenant": "acme"}, key="k")
    await add(store)
    assert await both(store, meta={"tenant": "acme"}) == [two.id, one.id]
    assert await both(store, meta={"tenant": "acme", "region": "eu"}) == [one.id]
    assert await both(store, meta={"tenant": "other"}) == []
    await worker.end(await worker.take_one(), State.FAILED)
    assert await both(store, meta={"tenant": "acme"}, state=State.FAILED) == [one.id]


async def test_the_payload_is_compared_at_a_path(store: Store, worker: Worker) -> None:
    lines = [{"sku": "a.1"}, {"sku": "b"}]
    payload = {
        "order": {"id": 7, "lines": lines, "paid": False, "note": None},
        "a.b": "dotted",
        "text": "nul \0 ünï",
    }
    await add(store, payload=b'{"order": {"id": 8}}')
    task = await add(store, payload=msgspec.json.encode(payload))
    for _ in range(2):
        for path, text in {
            "order.id": "7",
            "order.lines.0.sku": "a.1",
            "order.paid": "false",
            "order.note": "null",
            "a.b": "dotted",
            "text": "nul \0 ünï",
            "order.lines.1": '{"sku":"b"}',
        }.items():
            assert await both(store, payload={path: text}) == [task.id], path
        for path, text in {"order.id": "07", "order.lines.2.sku": "b", "order.lines.x": "b", "order": "7", "": "7", "none": ""}.items():
            assert await both(store, payload={path: text}) == [], path
        await worker.take()  # and once more while they run


async def test_an_error_is_searched_for_in_tasks_that_have_ended(store: Store, worker: Worker) -> None:
    for kind, message in (("ValueError", "no such ÖRDER"), ("TimeoutError", "stock service")):
        await add(store)
        await worker.end(await worker.take_one(), State.FAILED, error=error(kind, message))
    [timeout, value] = await both(store, state=State.FAILED)
    assert await both(store, error="such örder") == [value]
    assert await both(store, error="timeoutERROR: stock", state=State.FAILED) == [timeout]
    assert await both(store, error="Traceback", states=(State.FAILED, State.PENDING)) == [timeout, value]
    assert await both(store, error="nothing of it") == []
    await add(store)
    await worker.end(await worker.take_one(), State.PENDING, error=error())
    assert await both(store, error="no such order", state=State.PENDING) == []


async def test_a_page_ends_after_so_many_tasks_that_were_looked_at(store: Store) -> None:
    wanted = await add(store, meta={"tenant": "acme"})
    await store.add([new_task() for _ in range(25)])
    query = Query(meta={"tenant": "acme"}, scan=10)
    found = await store.page(query)
    assert (found.items, found.looked) == ([], 10)
    assert found.next is not None
    found = await store.page(msgspec.structs.replace(query, cursor=found.next))
    assert (found.items, found.looked) == ([], 10)
    found = await store.page(msgspec.structs.replace(query, cursor=found.next))
    assert ([record.id for record in found.items], found.next, found.looked) == ([wanted.id], None, None)
    for scan in (1, 3, 25, 26, 1_000):
        assert await ids(store, msgspec.structs.replace(query, scan=scan)) == [wanted.id]
    with pytest.raises(InvalidValue, match="scan must lie between 1 and 1,000,000, got 0"):
        Query(scan=0)


async def test_a_page_that_is_full_before_says_nothing_of_looking(store: Store) -> None:
    await store.add([new_task(submitted_by="anna") for _ in range(5)])
    found = await store.page(Query(submitted_by="anna", limit=2, scan=10))
    assert (len(found.items), found.looked) == (2, None)
    assert found.next is not None


async def test_counting_ends_at_its_limit(store: Store, worker: Worker) -> None:
    await store.add([new_task(submitted_by="anna") for _ in range(12)])
    await worker.take(wants={"work": 5})
    live = (State.PENDING, State.RUNNING)
    for query in (Query(), Query(submitted_by="anna"), Query(state=State.PENDING), Query(states=live), Query(handler="w*")):
        matching = 7 if query.state else 12
        assert await store.count(query) == TaskCount(matching, False)
        assert await store.count(query, matching) == TaskCount(matching, False)
        assert await store.count(query, matching - 1) == TaskCount(matching - 1, True)
        assert await store.count(query, 0) == TaskCount(0, True)
    assert await store.count(Query(meta={"tenant": "acme"}, scan=1)) == TaskCount(0, True), "ten pages of one were looked at"
    assert await store.count(Query(meta={"tenant": "acme"}, scan=2)) == TaskCount(0, False)
    assert await store.count(Query(submitted_after=store.now() + SECOND)) == TaskCount(0, False)


async def test_counts_are_those_of_lists_for_every_state(store: Store, worker: Worker) -> None:
    await every_state(store, worker)
    for state in State:
        await both(store, state=state)
    await both(store, handler="shop.*")
    await both(store, submitted_before=store.now() + 1)
    await both(store, due_before=store.now() + 1)
    await both(store, retrying=False)


async def test_a_brief_list_has_the_beginnings_of_payloads_and_neither_results_nor_tracebacks(store: Store, worker: Worker) -> None:
    long = {"text": "ü" * 5_000}
    for payload in (b'{"a":1}', msgspec.json.encode(long)):
        await add(store, payload=payload)
        await worker.end(await worker.take_one(), State.FAILED, error=error(), result=b'"large"')
    await add(store, payload=msgspec.json.encode(long))
    cut, whole = (await store.page(Query(state=State.FAILED, brief=True))).items
    assert whole.payload == b'{"a":1}'
    assert msgspec.json.decode(cut.payload) == {"…": msgspec.json.encode(long).decode()[:BRIEF]}
    for record in (cut, whole):
        assert record.error == msgspec.structs.replace(error(), traceback="")
        assert record.result is None
    [waiting] = (await store.page(Query(state=State.PENDING, brief=True))).items
    assert waiting.payload == cut.payload
    assert (await store.page(Query(brief=True, payload={"text": "ü" * 5_000}))).items[0].payload == cut.payload


async def test_a_brief_page_is_full_however_large_the_payloads_are(store: Store) -> None:
    large = msgspec.json.encode({"text": "x" * (MAX_PAGE_BYTES // 4)})
    for _ in range(6):
        await add(store, payload=large)
    assert len((await store.page(Query())).items) < 6
    page: Page = await store.page(Query(brief=True))
    assert (len(page.items), page.next) == (6, None)


async def test_of_a_flood_only_so_many_due_tasks_are_counted(store: Store) -> None:
    await store.add([new_task(due_at=store.now() - number) for number in range(5)])
    await store.add([new_task("calm"), new_task("calm", delay=60 * SECOND)])
    for limit, due, more in ((4, 4, True), (5, 5, False), (1_000, 5, False)):
        lanes = {lane.handler: lane for lane in (await store.counts(limit)).lanes}
        assert (lanes["work"].due, lanes["work"].more, lanes["work"].oldest_due_at) == (due, more, store.now() - 4)
        assert (lanes["calm"].due, lanes["calm"].later, lanes["calm"].more) == (1, 1, False)
