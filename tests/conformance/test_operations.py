"""Operations: an act on all tasks that match, planned and performed batch by batch, each task acted on and counted once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from duetime.clock import ManualClock
from duetime.duties.operations import step
from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.model.operation import ENDED, Canary, Changes, Operation, OperationSpec, OperationState, Verb, ended, in_state
from duetime.model.query import Query
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import HintKind
from tests.conformance.build import Worker, get, new_task, state_of, task_in
from tests.conformance.build import ended as end_of
from tests.conformance.conftest import Another


def operation(verb: Verb = Verb.CANCEL, changes: Changes | None = None, rate: float | None = None, **filters: object) -> Operation:
    query = Query(**(filters or {"handler": "work"}))  # type: ignore[arg-type]
    return Operation(id=new_id(), spec=OperationSpec(verb=verb, query=query, changes=changes, rate=rate, made_by="ops"))


async def start(store: Store, *args: object, **options: object) -> Operation:
    return await store.add_operation(operation(*args, **options))  # type: ignore[arg-type]


async def perform(store: Store, started: Operation) -> Operation:
    """Perform an operation to its end."""
    while started.state not in ENDED:
        started = (await step(store, started)).operation
    return started


async def add_many(store: Store, number: int, handler: str = "work") -> list[str]:
    return [added.record.id for added in await store.add([new_task(handler) for _ in range(number)])]


async def states(store: Store, ids: list[str]) -> Counter[str]:
    return Counter("gone" if record is None else record.state.value for record in await store.get(ids))


# ---- what it does ----


async def test_a_cancel_ends_all_that_wait_and_tells_what_runs_to_stop(store: Store, worker: Worker) -> None:
    running = await task_in(store, worker, State.RUNNING)
    blocked = await task_in(store, worker, State.BLOCKED)
    others = await add_many(store, 3, "other")
    waiting = await add_many(store, 5)
    done = await perform(store, await start(store, handler="work"))
    assert done.state is OperationState.DONE
    assert await states(store, waiting) == {"cancelled": 5}
    assert await states(store, others) == {"pending": 3}
    assert await state_of(store, blocked) is State.CANCELLED
    assert (await get(store, running)).cancelling
    assert done.progress.answers["cancelling"] >= 1
    assert done.count == sum(done.progress.answers.values())
    assert "finished" not in done.progress.answers


async def test_a_task_that_was_told_to_stop_is_counted_once(store: Store, worker: Worker) -> None:
    await task_in(store, worker, State.RUNNING)
    done = await perform(store, await start(store, handler="work"))
    assert done.progress.answers == {"cancelling": 1}
    again = await perform(store, await start(store, handler="work"))
    assert again.progress.answers == {}


async def test_a_retry_takes_back_what_failed_before_it_started(store: Store, worker: Worker, clock: ManualClock) -> None:
    failed = await task_in(store, worker, State.FAILED)
    cancelled = await task_in(store, worker, State.CANCELLED)
    started = await start(store, Verb.RETRY, handler="work")
    clock.advance(1)
    later = await task_in(store, worker, State.FAILED)
    done = await perform(store, started)
    assert done.progress.answers == {"changed": 1}
    assert [await state_of(store, each) for each in (failed, cancelled, later)] == [State.PENDING, State.CANCELLED, State.FAILED]


async def test_what_fails_again_is_not_retried_again(store: Store, worker: Worker, clock: ManualClock) -> None:
    failed = await task_in(store, worker, State.FAILED)
    started = await start(store, Verb.RETRY, handler="work")
    clock.advance(1)
    planned = (await step(store, started)).operation
    assert planned.batch == (failed.id,)
    acted = (await step(store, planned)).operation
    [claimed] = await worker.take()
    await store.settle(worker.id, [end_of(claimed, State.FAILED, at=store.now())])
    done = await perform(store, acted)
    assert done.progress.answers == {"changed": 1}
    assert await state_of(store, failed) is State.FAILED


async def test_an_edit_changes_waiting_tasks_and_leaves_others(store: Store, worker: Worker) -> None:
    running = await task_in(store, worker, State.RUNNING)
    ids = await add_many(store, 4)
    done = await perform(store, await start(store, Verb.EDIT, Changes(priority=9, collection="eu"), handler="work", state=State.PENDING))
    changed = [record for record in await store.get(ids) if record is not None and record.state is State.PENDING]
    assert done.progress.answers == {"changed": len(changed)}
    assert {(record.priority, record.collection) for record in changed} == {(9, "eu")}
    assert (await get(store, running)).priority != 9


async def test_nothing_that_is_submitted_after_its_start_is_touched(store: Store, clock: ManualClock) -> None:
    early = await add_many(store, 600)
    started = await start(store, handler="work")
    clock.advance(1)
    planned = (await step(store, started)).operation
    assert len(planned.batch) == 500
    late = await add_many(store, 20)
    done = await perform(store, planned)
    assert done.progress.answers == {"cancelled": 600}
    assert await states(store, early) == {"cancelled": 600}
    assert await states(store, late) == {"pending": 20}


# ---- once each ----


async def test_a_batch_that_is_planned_is_acted_on_by_whoever_comes_next(store: Store, another: Another) -> None:
    ids = await add_many(store, 7)
    planned = (await step(store, await start(store, handler="work"))).operation
    other = await another()
    found = await other.operation(planned.id)
    assert found == planned, "all that is needed to go on is stored"
    done = await perform(other, planned)
    assert done.progress.answers == {"cancelled": 7}
    assert await states(store, ids) == {"cancelled": 7}


async def test_two_who_act_at_once_count_each_task_once(store: Store, another: Another) -> None:
    ids = await add_many(store, 300)
    planned = (await step(store, await start(store, handler="work"))).operation
    other = await another()
    both = await asyncio.gather(store.act(planned.id), other.act(planned.id))
    assert sum(len(each.answers) for each in both if each is not None) == 300
    done = await store.operation(planned.id)
    assert done is not None
    assert (done.batch, done.progress.answers) == ((), {"cancelled": 300})
    assert await states(store, ids) == {"cancelled": 300}


async def test_two_who_perform_at_once_count_each_task_once(store: Store, another: Another) -> None:
    ids = await add_many(store, 1_200)
    started = await start(store, handler="work")
    other = await another()
    await asyncio.gather(perform(store, started), perform(other, started))
    done = await store.operation(started.id)
    assert done is not None
    assert done.progress.answers == {"cancelled": 1_200}
    assert await states(store, ids) == {"cancelled": 1_200}


async def test_only_one_of_two_plans_a_batch(store: Store) -> None:
    started = await start(store, handler="work")
    assert await store.save_operation(replace(started, version=1, batch=("a",)))
    assert not await store.save_operation(replace(started, version=1, batch=("b",)))
    found = await store.operation(started.id)
    assert found is not None
    assert found.batch == ("a",)


async def test_what_is_gone_is_counted_as_that(store: Store) -> None:
    ids = await add_many(store, 3)
    planned = (await step(store, await start(store, handler="work"))).operation
    await store.delete(ids[:1])
    await store.cancel(ids[1:2])
    done = await perform(store, planned)
    assert done.progress.answers == {"unknown": 1, "finished": 1, "cancelled": 1}


# ---- stopping and pausing ----


@pytest.mark.parametrize("state", [OperationState.PAUSED, OperationState.STOPPED])
async def test_one_that_does_not_run_acts_on_nothing(store: Store, state: OperationState) -> None:
    ids = await add_many(store, 3)
    planned = (await step(store, await start(store, handler="work"))).operation
    halted = in_state(planned, state) if state is OperationState.PAUSED else ended(planned, state, store.now())
    assert await store.save_operation(halted)
    done = await store.act(planned.id)
    assert done is not None
    assert done.answers == {}
    assert await states(store, ids) == {"pending": 3}


async def test_one_that_is_resumed_goes_on_with_its_batch(store: Store) -> None:
    ids = await add_many(store, 3)
    planned = (await step(store, await start(store, handler="work"))).operation
    paused = in_state(planned, OperationState.PAUSED)
    assert await store.save_operation(paused)
    resumed = in_state(paused, OperationState.RUNNING)
    assert await store.save_operation(resumed)
    assert (await perform(store, resumed)).progress.answers == {"cancelled": 3}
    assert await states(store, ids) == {"cancelled": 3}


async def test_a_rate_bounds_the_batches_and_when_they_come(store: Store, clock: ManualClock) -> None:
    ids = await add_many(store, 5)
    started = await start(store, rate=2.0, handler="work")
    for done in (2, 4, 5):
        planned = (await step(store, (await step(store, started)).operation)).operation
        assert planned.count == done
        waits = await step(store, planned)
        started = waits.operation
        if done < 5:
            assert not started.batch, "not before a second has passed"
            assert waits.pause == 1.0
            clock.advance(1)
    assert await states(store, ids) == {"cancelled": 5}
    clock.advance(1)
    assert (await perform(store, started)).state is OperationState.DONE


# ---- how it is kept ----


async def test_one_whose_id_is_stored_is_a_repeat(store: Store) -> None:
    asked = operation(handler="work")
    first = await store.add_operation(asked)
    assert first.started_at == store.now()
    assert await store.add_operation(replace(asked, spec=replace(asked.spec, made_by="another"))) == first


async def test_operations_are_listed_latest_first_and_live_ones_alone(store: Store, clock: ManualClock) -> None:
    started = []
    for _ in range(3):
        clock.advance(1)
        started.append(await start(store, handler="work"))
    assert await store.save_operation(ended(started[1], OperationState.STOPPED, store.now(), "why not"))
    found = await store.operations(10)
    assert [each.id for each in found] == [each.id for each in reversed(started)]
    assert (found[1].state, found[1].progress.note) == (OperationState.STOPPED, "why not")
    assert [each.id for each in await store.operations(10, live=True)] == [started[2].id, started[0].id]
    assert [each.id for each in await store.operations(1)] == [started[2].id]
    assert [each.id for each in await store.operations(10, before=(started[2].started_at, started[2].id))] == [started[1].id, started[0].id]


async def test_only_ended_ones_are_pruned(store: Store, clock: ManualClock) -> None:
    live, over = await start(store, handler="work"), await start(store, handler="work")
    assert await store.save_operation(ended(over, OperationState.DONE, store.now()))
    assert await store.prune_operations(store.now(), 10) == 0
    clock.advance(1)
    assert await store.prune_operations(store.now(), 10) == 1
    assert [each.id for each in await store.operations(10)] == [live.id]


async def test_an_unknown_id_is_answered_with_none(store: Store) -> None:
    assert await store.operation("nobody") is None
    assert await store.act("nobody") is None
    assert not await store.save_operation(replace(operation(handler="work"), version=1))


async def test_listeners_hear_of_a_start_and_an_end(store: Store) -> None:
    heard = asyncio.Event()
    listener = store.listen(lambda hint: heard.set() if hint.kind is HintKind.OPERATIONS else None)
    try:
        started = await start(store, handler="work")
        await asyncio.wait_for(heard.wait(), 30)
        heard.clear()
        await store.save_operation(ended(started, OperationState.DONE, store.now()))
        await asyncio.wait_for(heard.wait(), 30)
    finally:
        listener.close()


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(InvalidValue, match="needs at least one filter"):
        OperationSpec(verb=Verb.CANCEL, query=Query())
    with pytest.raises(InvalidValue, match="cannot be changed so"):
        OperationSpec(verb=Verb.CANCEL, query=Query(state=State.FAILED))
    with pytest.raises(InvalidValue, match="an edit needs something to change"):
        OperationSpec(verb=Verb.EDIT, query=Query(handler="work"))
    with pytest.raises(InvalidValue, match="rate must be more than 0"):
        OperationSpec(verb=Verb.CANCEL, query=Query(handler="work"), rate=0)


# ---- a canary ----


async def _fail_all(worker: Worker) -> int:
    claimed = await worker.take()
    for each in claimed:
        await worker.end(each, State.FAILED)
    return len(claimed)


async def _replay(store: Store, worker: Worker, clock: ManualClock, number: int) -> Operation:
    await add_many(store, number)
    assert await _fail_all(worker) == number
    clock.advance(1)
    query = Query(handler="work")
    spec = OperationSpec(verb=Verb.RETRY, query=query, canary=Canary())
    started = await store.add_operation(Operation(id=new_id(), spec=spec))
    clock.advance(1)
    return started


async def _until_it_waits(store: Store, started: Operation) -> Operation:
    while started.state not in ENDED:
        done = await step(store, started)
        started = done.operation
        if done.pause:
            break
    return started


async def test_a_replay_that_fails_again_stops_after_its_first_task(store: Store, worker: Worker, clock: ManualClock) -> None:
    waiting = await _until_it_waits(store, await _replay(store, worker, clock, 200))
    assert waiting.count == 1, "it waits for the end of the first"
    assert await _fail_all(worker) == 1
    done = await _until_it_waits(store, waiting)
    assert (done.state, done.count) == (OperationState.STOPPED, 1)
    assert "1 of 1 tasks failed again" in done.progress.note


async def test_a_replay_that_fails_in_its_second_stage_leaves_the_rest_alone(store: Store, worker: Worker, clock: ManualClock) -> None:
    waiting = await _until_it_waits(store, await _replay(store, worker, clock, 200))
    [first] = await worker.take()
    await worker.end(first, State.SUCCEEDED)
    waiting = await _until_it_waits(store, waiting)
    assert waiting.count == 3, "one, and then one percent of 200"
    assert await _fail_all(worker) == 2
    done = await _until_it_waits(store, waiting)
    assert (done.state, done.count) == (OperationState.STOPPED, 3)
    assert await worker.take() == []


async def test_a_replay_whose_stages_succeed_retries_all(store: Store, worker: Worker, clock: ManualClock) -> None:
    waiting = await _until_it_waits(store, await _replay(store, worker, clock, 200))
    for _ in range(2):
        for each in await worker.take():
            await worker.end(each, State.SUCCEEDED)
        waiting = await _until_it_waits(store, waiting)
    assert (waiting.state, waiting.progress.answers) == (OperationState.DONE, {"changed": 200})
