"""A live task is in one of few locations; every verb that names a task finds it there, whichever it is.

A new location (an accepted attempt, a parked task) is added to LOCATIONS, and every verb is asked about it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from duetime.clock import SECOND
from duetime.model.query import Query
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, Edit
from tests.conformance.build import Worker, add, get, needs, new_task, put, state_of


@dataclass(frozen=True)
class Location:
    """How a task comes there, its state, and what operators' verbs answer."""

    bring: Callable[[Store, Worker, NewTask[object]], Awaitable[None]]
    state: State
    cancel: CancelVerdict = CancelVerdict.CANCELLED
    edit: ChangeVerdict = ChangeVerdict.CHANGED


async def stay(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])


async def hold(store: Store, worker: Worker, task: NewTask[object]) -> None:
    parent = await add(store, "parent")
    await store.add([with_edge(task, parent.id)])


def with_edge(task: NewTask[object], parent: str) -> NewTask[object]:
    return new_task(id=task.id, key=task.key, edges=(needs(new_task(id=parent)),))


async def claim(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    assert (await worker.take_one()).id == task.id


async def try_again(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    await worker.run(State.PENDING)


async def claim_again(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await try_again(store, worker, task)
    assert (await worker.take_one()).attempt == 2


async def claim_among_others(store: Store, worker: Worker, task: NewTask[object]) -> None:
    """Others of the same claim have ended."""
    others = [new_task(), new_task()]
    await store.add([others[0], task, others[1]])
    for each in await worker.take():
        if each.id != task.id:
            await worker.end(each, State.SUCCEEDED)


LOCATIONS = {
    "due": Location(stay, State.PENDING),
    "due after a try": Location(try_again, State.PENDING),
    "held": Location(hold, State.BLOCKED),
    "claimed": Location(claim, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "claimed after a try": Location(claim_again, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "claimed, others ended": Location(claim_among_others, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
}


@pytest.fixture(params=LOCATIONS)
def location(request: pytest.FixtureRequest) -> Location:
    return LOCATIONS[request.param]


@pytest.fixture(params=["plain", "keyed"])
def task(request: pytest.FixtureRequest) -> NewTask[object]:
    """One that needs no row of its own, and one that does."""
    return new_task() if request.param == "plain" else new_task(key="k")


async def test_it_is_read_there_and_found_by_lists(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    record = await get(store, task)
    assert (record.id, record.state, record.key) == (task.id, location.state, task.key)
    for query in (Query(), Query(state=location.state), Query(handler="work")):
        assert record in (await store.page(query)).items
    if task.key is not None:
        assert await store.find("work", task.key) == record


async def test_a_repeat_of_its_id_is_no_second_task(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    before = await store.counts()
    for again in ([task], [task, new_task("other")]):
        assert (await store.add(again))[0].verdict is AddVerdict.REPEATED
    after = await store.counts()
    assert [lane for lane in after.lanes if lane.handler != "other"] == before.lanes
    assert await state_of(store, task) is location.state


async def test_its_key_is_taken(store: Store, worker: Worker, location: Location) -> None:
    task = new_task(key="k")
    await location.bring(store, worker, task)
    added = await put(store, key="k")
    assert (added.verdict, added.record.id) == (AddVerdict.DUPLICATE, task.id)


async def test_a_cancel_meets_it(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    assert await store.cancel([task.id]) == [location.cancel]
    record = await get(store, task)
    assert record.state is (State.CANCELLED if location.cancel is CancelVerdict.CANCELLED else State.RUNNING)
    assert record.cancelling == (location.cancel is CancelVerdict.CANCELLING)


async def test_an_edit_meets_it_or_is_refused(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    due_at = store.now() + 60 * SECOND
    assert await store.edit([Edit(id=task.id, due_at=due_at, priority=7)]) == [location.edit]
    record = await get(store, task)
    assert (record.due_at == due_at, record.priority == 7) == (location.edit is ChangeVerdict.CHANGED,) * 2


async def test_an_operators_retry_is_refused(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    assert await store.retry([task.id]) == [ChangeVerdict.REFUSED]
    assert await state_of(store, task) is location.state


async def test_its_children_wait_and_no_duty_takes_them_for_orphans(
    store: Store, worker: Worker, location: Location, task: NewTask[object]
) -> None:
    await location.bring(store, worker, task)
    child = await add(store, "child", edges=(needs(task, end=True),))
    assert child.state is State.BLOCKED
    await store.tidy()
    assert await store.inspect(repair=True) == []
    assert await state_of(store, child) is State.BLOCKED
    assert await worker.take("child") == []


async def test_an_inspection_finds_nothing_wrong_with_it(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    assert await store.inspect(repair=False) == []
    assert sum(lane.due + lane.later + lane.blocked + lane.running for lane in (await store.counts()).lanes if lane.handler == "work") == 1
