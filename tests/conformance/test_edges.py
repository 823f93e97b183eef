"""Tasks that wait for other tasks: when they are freed, and when they can no longer run."""

from __future__ import annotations

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import TaskNotFound
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.task import FINAL, LIVE, Edge, State, TaskRecord
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict
from tests.conformance.build import PLENTY, Worker, add, ended, get, needs, new_task, put, state_of, task_in


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("state", sorted(LIVE))
async def test_a_task_is_blocked_while_its_parent_is_not_final(store: Store, worker: Worker, state: State, end: bool) -> None:
    parent = await task_in(store, worker, state)
    child = await add(store, "child", edges=(needs(parent, end=end),))
    assert child.state is State.BLOCKED
    assert await worker.take("child") == []


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_an_end_that_has_come_already_blocks_nothing(store: Store, worker: Worker, state: State) -> None:
    parent = await task_in(store, worker, state)
    child = await add(store, "child", edges=(needs(parent, end=True),))
    assert child.state is State.PENDING
    assert [task.id for task in await worker.take("child")] == [child.id]


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_task_that_needed_the_success_of_a_finished_parent_is_pending_or_cancelled_at_once(
    store: Store, worker: Worker, clock: ManualClock, state: State
) -> None:
    parent = await task_in(store, worker, state)
    child = await add(store, "child", key="k", edges=(needs(parent),))
    if state is State.SUCCEEDED:
        assert child.state is State.PENDING
        return
    assert (child.state, child.finished_at) == (State.CANCELLED, clock.now())
    assert await worker.take("child") == []
    assert (await put(store, "child", key="k")).record.state is State.PENDING


async def finish(store: Store, worker: Worker, parent: TaskRecord, state: State) -> None:
    """End a pending parent of handler `work` in a final state."""
    match state:
        case State.CANCELLED:
            await store.cancel([parent.id])
        case State.DROPPED:
            await store.put_gate(Gate(handler="work", action=GateAction.DROP))
            assert await store.drop(PLENTY) == 1
        case State.EXPIRED:
            assert await store.expire(PLENTY) == 1
        case _:
            await worker.run(state)
    assert await state_of(store, parent) is state


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_final_state_frees_children_whose_edges_are_met_and_cancels_the_others_with_their_own(
    store: Store, worker: Worker, clock: ManualClock, state: State
) -> None:
    parent = await add(store, expires_at=clock.now() - 1 if state is State.EXPIRED else None)
    after_end = await add(store, "child", edges=(needs(parent, end=True),))
    after_success = await add(store, "child", edges=(needs(parent),))
    grandchild = await add(store, "child", edges=(needs(after_success),))
    after_both = await add(store, "child", edges=(needs(grandchild, end=True),))
    assert {await state_of(store, task) for task in (after_end, after_success, grandchild, after_both)} == {State.BLOCKED}
    clock.advance(1)
    await finish(store, worker, parent, state)
    states = [await state_of(store, task) for task in (after_end, after_success, grandchild, after_both)]
    if state is State.SUCCEEDED:
        assert states == [State.PENDING, State.PENDING, State.BLOCKED, State.BLOCKED]
    else:
        assert states == [State.PENDING, State.CANCELLED, State.CANCELLED, State.PENDING]
        assert (await get(store, grandchild)).finished_at == clock.now()


async def test_a_task_whose_expiry_is_noticed_by_a_claim_frees_and_cancels_children_too(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    parent = await add(store, expires_at=clock.now() + SECOND)
    after_end = await add(store, "child", edges=(needs(parent, end=True),))
    after_success = await add(store, "child", edges=(needs(parent),))
    clock.advance(2)
    assert await worker.take("work") == []
    assert [await state_of(store, task) for task in (parent, after_end, after_success)] == [
        State.EXPIRED,
        State.PENDING,
        State.CANCELLED,
    ]


async def test_a_retry_does_not_free_children(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent, end=True),))
    await worker.run(State.PENDING)
    assert await state_of(store, child) is State.BLOCKED
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.PENDING


async def test_a_child_waits_for_all_of_its_parents(store: Store, worker: Worker) -> None:
    parents = [await add(store) for _ in range(3)]
    child = await add(store, "child", edges=(needs(parents[0]), needs(parents[1], end=True), needs(parents[2])))
    await worker.run(State.SUCCEEDED)
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.BLOCKED
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.PENDING
    assert [task.id for task in await worker.take("child")] == [child.id]


async def test_one_parent_that_ended_otherwise_is_enough_to_cancel(store: Store, worker: Worker) -> None:
    first = await add(store, "first")
    second = await add(store, "second")
    child = await add(store, "child", edges=(needs(first), needs(second)))
    await worker.run(State.FAILED, "first")
    assert await state_of(store, child) is State.CANCELLED
    await worker.run(State.SUCCEEDED, "second")
    assert await state_of(store, child) is State.CANCELLED


async def test_a_met_and_an_unmet_edge_leave_a_new_task_blocked_and_a_broken_one_cancels_it(store: Store, worker: Worker) -> None:
    done = await task_in(store, worker, State.SUCCEEDED)
    failed = await task_in(store, worker, State.FAILED)
    waiting = await add(store)
    assert (await add(store, "child", edges=(needs(done), needs(waiting)))).state is State.BLOCKED
    assert (await add(store, "child", edges=(needs(waiting), needs(failed)))).state is State.CANCELLED
    assert (await add(store, "child", edges=(needs(failed, end=True), needs(done)))).state is State.PENDING


async def test_the_same_parent_may_be_named_twice(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent), needs(parent, end=True)))
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.PENDING


async def test_two_parents_that_end_in_one_call_free_their_child_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    first, second = await add(store), await add(store)
    child = await add(store, "child", edges=(needs(first), needs(second)))
    claimed = await worker.take()
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in claimed])
    assert [task.id for task in await worker.take("child")] == [child.id]


async def test_a_freed_child_still_waits_for_its_due_time(store: Store, worker: Worker, clock: ManualClock) -> None:
    parent = await add(store)
    child = await add(store, "child", delay=60 * SECOND, edges=(needs(parent),))
    await worker.run(State.SUCCEEDED)
    assert await worker.take("child") == []
    clock.advance(60)
    assert [task.id for task in await worker.take("child")] == [child.id]


async def test_a_freed_child_stands_behind_tasks_that_were_due_before(store: Store, worker: Worker, clock: ManualClock) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    clock.advance(1)
    earlier = await add(store, "child")
    clock.advance(1)
    await worker.run(State.SUCCEEDED)
    assert [task.id for task in await worker.take("child")] == [earlier.id, child.id]


async def test_a_chain_can_be_added_in_one_call(store: Store, worker: Worker) -> None:
    first = new_task("step")
    second = new_task("step", edges=(needs(first),))
    third = new_task("step", edges=(needs(second),))
    answers = await store.add([first, second, third])
    assert [added.record.state for added in answers] == [State.PENDING, State.BLOCKED, State.BLOCKED]
    for expected in (first, second, third):
        assert (await worker.run(State.SUCCEEDED, "step")).id == expected.id


async def test_a_chain_whose_head_can_never_run_is_cancelled_in_one_call(store: Store, worker: Worker) -> None:
    failed = await task_in(store, worker, State.FAILED)
    first = new_task("step", edges=(needs(failed),))
    second = new_task("step", edges=(needs(first),))
    third = new_task("step", edges=(needs(second, end=True),))
    answers = await store.add([first, second, third])
    assert [added.record.state for added in answers] == [State.CANCELLED, State.CANCELLED, State.PENDING]


async def test_a_long_chain_is_cancelled_to_its_end(store: Store, worker: Worker) -> None:
    chain = [new_task()]
    for _ in range(300):
        chain.append(new_task("step", edges=(needs(chain[-1]),)))
    await store.add(chain)
    await worker.run(State.FAILED)
    records = await store.get([submitted.id for submitted in chain])
    assert [record.state for record in records if record is not None] == [State.FAILED] + [State.CANCELLED] * 300


async def test_an_unknown_parent_refuses_the_whole_call(store: Store) -> None:
    new_tasks = [new_task(), new_task(edges=(Edge(new_id()),)), new_task()]
    with pytest.raises(TaskNotFound):
        await store.add(new_tasks)
    assert await store.get([submitted.id for submitted in new_tasks]) == [None, None, None]


async def test_a_task_cannot_wait_for_itself(store: Store) -> None:
    id = new_id()
    with pytest.raises(TaskNotFound):
        await store.add([new_task(id=id, edges=(Edge(id),))])
    assert await store.get([id]) == [None]


async def test_a_pruned_parent_is_unknown(store: Store, worker: Worker, clock: ManualClock) -> None:
    parent = await task_in(store, worker, State.SUCCEEDED)
    await store.prune(State.SUCCEEDED, clock.now() + 1, PLENTY)
    with pytest.raises(TaskNotFound):
        await store.add([new_task(edges=(needs(parent),))])


async def test_a_child_is_a_repeat_although_its_parent_has_been_pruned(store: Store, worker: Worker, clock: ManualClock) -> None:
    parent = await add(store)
    submitted = new_task("child", edges=(needs(parent),))
    [added] = await store.add([submitted])
    await worker.run(State.SUCCEEDED)
    await store.prune(State.SUCCEEDED, clock.now() + 1, PLENTY)
    [again] = await store.add([submitted])
    assert (again.verdict, again.record.id) == (AddVerdict.REPEATED, added.record.id)


async def test_a_cancelled_child_is_not_revived_by_its_parent(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    assert await store.cancel([child.id]) == [CancelVerdict.CANCELLED]
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.CANCELLED
    assert await worker.take("child") == []


async def test_a_child_retried_by_an_operator_runs_without_its_parent(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    await worker.run(State.FAILED)
    assert await state_of(store, child) is State.CANCELLED
    await store.retry([child.id])
    assert [task.id for task in await worker.take("child")] == [child.id]


async def test_a_blocked_child_survives_its_replacement(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", key="k", edges=(needs(parent),))
    await put(store, "child", key="k", if_exists="replace", payload=b'{"new": 1}')
    assert await worker.take("child") == []
    await worker.run(State.SUCCEEDED)
    [task] = await worker.take("child")
    assert (task.id, task.payload) == (child.id, '{"new": 1}')
