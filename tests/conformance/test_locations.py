"""A live task is in one of few locations; every verb that names a task finds it there, whichever it is.

A new location (an accepted attempt, a parked task) is added to LOCATIONS, and every verb is asked about it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.query import Query
from duetime.model.steps import NewStep, StepKind, Suspension
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, DeleteVerdict, Edit, NewWorker
from tests.conformance.build import Worker, add, error, get, needs, new_task, put, state_of


@dataclass(frozen=True)
class Location:
    """How a task comes there, its state, and what operators' verbs answer."""

    bring: Callable[[Store, Worker, NewTask[object]], Awaitable[None]]
    state: State
    cancel: CancelVerdict = CancelVerdict.CANCELLED
    edit: ChangeVerdict = ChangeVerdict.CHANGED
    parked: bool = False
    begun: bool = False  # part of its work is saved


async def stay(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])


async def hold(store: Store, worker: Worker, task: NewTask[object]) -> None:
    parent = await add(store, "parent")
    await store.add([with_edge(task, parent.id)])


def with_edge(task: NewTask[object], parent: str) -> NewTask[object]:
    return msgspec.structs.replace(task, edges=(needs(new_task(id=parent)),))


async def claim(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    assert (await worker.take_one()).id == task.id


async def try_again(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    await worker.run(State.PENDING)


async def claim_again(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await try_again(store, worker, task)
    assert (await worker.take_one()).attempt == 2


async def park(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    await worker.run(State.PENDING, outcome=Outcome.PARKED, refused_by="old", error=error())


async def claim_parked(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await park(store, worker, task)
    [claimed] = await worker.take_parked("new")
    assert (claimed.id, claimed.attempt) == (task.id, 2)


async def claim_among_others(store: Store, worker: Worker, task: NewTask[object]) -> None:
    """Others of the same claim have ended."""
    others = [new_task(), new_task()]
    await store.add([others[0], task, others[1]])
    for each in await worker.take():
        if each.id != task.id:
            await worker.end(each, State.SUCCEEDED)


async def hand_over(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    assert await worker.hand_over(await worker.take_one()) is SettleVerdict.ACCEPTED


async def hand_over_again(store: Store, worker: Worker, task: NewTask[object]) -> None:
    """It was tried before, others of the same claim run, and the worker that handed it over has gone."""
    await try_again(store, worker, task)
    others = [new_task(), new_task()]
    await store.add(others)
    claimed = await worker.take()
    for each in claimed:
        if each.id == task.id:
            assert await worker.hand_over(each) is SettleVerdict.ACCEPTED
        else:
            await worker.end(each, State.SUCCEEDED)
    await store.unregister(worker.id)
    await store.register(NewWorker(id=worker.id, host="h", pid=1, slots={"work": 1}))


async def wait_for_a_signal(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    wait = NewStep(task=task.id, attempt=claimed.attempt, name="wait", kind=StepKind.SIGNAL, done=False, signal="go")
    await store.save_steps(worker.id, [wait])
    await worker.end(claimed, State.BLOCKED, outcome=Outcome.SUSPENDED, suspension=Suspension("wait"))


async def wait_for_a_child(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    child = await add(store, "called")
    call = NewStep(task=task.id, attempt=1, name="call", kind=StepKind.CALL, done=False, children=(child.id,))
    await store.save_steps(worker.id, [call])
    await worker.end(claimed, State.BLOCKED, outcome=Outcome.SUSPENDED, suspension=Suspension("call", children=(child.id,)))


async def sleep(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    pause = NewStep(task=task.id, attempt=1, name="nap", kind=StepKind.SLEEP, done=False, wake_at=store.now())
    await store.save_steps(worker.id, [pause])
    await worker.end(claimed, State.PENDING, outcome=Outcome.SUSPENDED, suspension=Suspension("nap", store.now()))


LOCATIONS = {
    "due": Location(stay, State.PENDING),
    "due after a try": Location(try_again, State.PENDING),
    "held": Location(hold, State.BLOCKED),
    "waits for a signal": Location(wait_for_a_signal, State.BLOCKED, begun=True),
    "waits for a child": Location(wait_for_a_child, State.BLOCKED, begun=True),
    "sleeps": Location(sleep, State.PENDING, begun=True),
    "parked": Location(park, State.PENDING, parked=True),
    "claimed when parked": Location(claim_parked, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "claimed": Location(claim, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "claimed after a try": Location(claim_again, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "claimed, others ended": Location(claim_among_others, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "accepted": Location(hand_over, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
    "accepted after a try": Location(hand_over_again, State.RUNNING, CancelVerdict.CANCELLING, ChangeVerdict.REFUSED),
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
    assert (record.id, record.state, record.key, record.parked) == (task.id, location.state, task.key, location.parked)
    for query in (Query(), Query(state=location.state), Query(handler="work"), Query(parked=location.parked)):
        assert record in (await store.page(query)).items
    for state in {State.PENDING, State.BLOCKED, State.RUNNING} - {location.state}:
        assert record not in (await store.page(Query(state=state))).items
    for state_too in (None, location.state):
        assert record not in (await store.page(Query(parked=not location.parked, state=state_too))).items
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


async def test_another_payload_meets_it_or_is_refused(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    payload = b'{"text": "%s"}' % (b"x" * 2_000)
    assert await store.edit([Edit(id=task.id, payload=payload)]) == [location.edit]
    record = await get(store, task)
    changed = location.edit is ChangeVerdict.CHANGED
    assert (record.payload == payload, record.state, record.parked) == (changed, location.state, False)
    if location.state is State.PENDING:
        assert (await worker.take_one()).payload == payload.decode()


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
    [lane] = [lane for lane in (await store.counts()).lanes if lane.handler == "work"]
    assert lane.due + lane.later + lane.blocked + lane.running + lane.parked == 1
    assert lane.parked == location.parked


async def test_its_expiry_ends_it_unless_it_runs(store: Store, worker: Worker, clock: ManualClock, location: Location) -> None:
    task = new_task(expires_at=clock.now() + 60 * SECOND)
    await location.bring(store, worker, task)
    clock.advance(61)
    expected = State.RUNNING if location.state is State.RUNNING else State.EXPIRED
    assert await store.expire(10) == (expected is State.EXPIRED)
    assert await state_of(store, task) is expected


async def test_a_drop_gate_ends_it_if_only_time_or_code_holds_it_back(
    store: Store, worker: Worker, location: Location, task: NewTask[object]
) -> None:
    await location.bring(store, worker, task)
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    expected = State.DROPPED if location.state is State.PENDING else location.state
    assert await store.drop(10) == (expected is State.DROPPED)
    assert await state_of(store, task) is expected


async def test_a_replacement_takes_it_over_unless_it_has_begun(store: Store, worker: Worker, location: Location) -> None:
    task = new_task(key="k")
    await location.bring(store, worker, task)
    added = await put(store, key="k", if_exists="replace", payload=b'{"n": 2}')
    if location.state is State.RUNNING or location.begun:
        assert added.verdict is AddVerdict.DUPLICATE
        return
    assert added.verdict is AddVerdict.REPLACED
    record = await get(store, task)
    assert (record.payload, record.state, record.parked) == (b'{"n": 2}', location.state, False)
    assert await store.inspect(repair=False) == []
    if location.state is State.PENDING:
        assert (await worker.take_one()).id == task.id


async def test_a_delete_removes_it_unless_it_runs(store: Store, worker: Worker, location: Location, task: NewTask[object]) -> None:
    await location.bring(store, worker, task)
    expected = DeleteVerdict.RUNNING if location.state is State.RUNNING else DeleteVerdict.DELETED
    assert await store.delete([task.id]) == [expected]
    assert [record is None for record in await store.get([task.id])] == [expected is DeleteVerdict.DELETED]
    assert await store.inspect(repair=False) == []
