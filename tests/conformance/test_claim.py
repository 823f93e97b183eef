"""Claiming: what is handed out, when, to whom and in which order."""

from __future__ import annotations

from collections import Counter

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import FINAL, State
from duetime.store import Store
from duetime.store.values import AddVerdict, Edit
from tests.conformance.build import PLENTY, Worker, add, get, new_task, put, state_of, task_in
from tests.conformance.conftest import Hire


async def test_a_task_is_never_handed_out_a_microsecond_early(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, delay=SECOND)
    due_at = record.due_at
    for instant in (clock.now(), due_at - SECOND // 2, due_at - 2, due_at - 1):
        clock.set(instant)
        assert await worker.take() == []
        assert await state_of(store, record) is State.PENDING
    clock.set(due_at)
    assert [task.id for task in await worker.take()] == [record.id]


async def test_a_retry_is_never_handed_out_a_microsecond_early(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + SECOND)
    clock.advance(1)
    clock.set(clock.now() - 1)
    assert await worker.take() == []
    clock.set(clock.now() + 1)
    assert len(await worker.take()) == 1


async def test_a_claimed_task_carries_all_that_an_attempt_needs(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(
        store,
        payload=b'{"order_id": 7}',
        key="order-7",
        collection="eu",
        priority=9,
        timeout=12.5,
        retry=b'{"tries": 3}',
        expires_in=90 * SECOND,
        meta={"trace": "00-ab"},
        submitted_by="web-1",
        schedule="nightly",
        planned_at=clock.now() - 4,
    )
    clock.advance(1)
    claim = await worker.claim()
    assert claim.now == clock.now()
    [task] = claim.tasks
    assert (task.payload, task.retry) == ('{"order_id": 7}', '{"tries": 3}')
    same = "id handler due_at submitted_at submitted_by expires_at timeout meta key collection priority schedule planned_at"
    for name in same.split():
        assert getattr(task, name) == getattr(record, name), name
    assert (task.attempt, task.tries, task.crashes, task.since_at) == (1, 0, 0, record.due_at)


async def test_a_plain_task_carries_the_same_whether_alone_edited_tried_before_or_beside_others(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    """A store may hand out plain tasks by a shorter way; one that is not among them takes all to the longer one."""
    plain = await add(store, payload=b'{"n": 1}', submitted_by="web-1")
    edited = await add(store, payload=b'{"n": 2}', submitted_by="web-2")
    await store.edit([Edit(id=edited.id, due_at=plain.due_at + 1, priority=6)])
    long = await add(store, "long", payload=b'{"n": "' + b"x" * 5_000 + b'"}')
    clock.advance(1)
    for number in (1, 2):
        for handlers in (("work",), ("long",), ("work", "long")):
            tasks = {task.id: task for task in await worker.take(*handlers)}
            for record in (plain, edited, long):
                if record.handler not in handlers:
                    continue
                task, now = tasks[record.id], await get(store, record)
                assert task.payload == record.payload.decode()
                assert (task.submitted_at, task.submitted_by, task.priority) == (now.submitted_at, now.submitted_by, now.priority)
                assert task.since_at == (record.due_at if record is not edited else plain.due_at + 1)
                assert task.tries == number - 1
            for task in tasks.values():
                await worker.end(task, State.PENDING, tries=number - 1)
        for task in await worker.take("work", "long"):
            await worker.end(task, State.PENDING, tries=number)


async def test_a_claimed_task_is_running_and_owned(store: Store, worker: Worker) -> None:
    record = await add(store)
    await worker.take()
    running = await get(store, record)
    assert (running.state, running.worker, running.attempt, running.cancelling) == (State.RUNNING, worker.id, 1, False)


async def test_since_is_the_tasks_own_due_time_through_retries(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    clock.advance(3)
    await worker.run(State.PENDING, due_at=clock.now() + 5 * SECOND)
    clock.advance(5)
    task = await worker.take_one()
    assert (task.since_at, task.due_at, task.tries, task.attempt) == (record.due_at, clock.now(), 1, 2)


async def test_handlers_not_asked_for_are_left_alone(store: Store, worker: Worker) -> None:
    other = await add(store, "other")
    mine = await add(store, "mine")
    assert [task.id for task in await worker.take("mine")] == [mine.id]
    assert await worker.take("mine", "nobody") == []
    assert await state_of(store, other) is State.PENDING


async def test_a_claim_takes_at_most_what_each_handler_wants(store: Store, worker: Worker) -> None:
    await store.add([new_task(handler) for handler in ("a", "b") for _ in range(5)])
    tasks = await worker.take(wants={"a": 2, "b": 4})
    assert Counter(task.handler for task in tasks) == {"a": 2, "b": 4}


async def test_a_claim_that_wants_nothing_takes_nothing(store: Store, worker: Worker) -> None:
    await add(store)
    assert await worker.take(wants={}) == []
    assert await worker.take(wants={"work": 0}) == []
    assert await worker.take(wants={"work": 5}, total=0) == []
    assert len(await worker.take(wants={"work": 5}, total=5)) == 1


@pytest.mark.parametrize("state", sorted(set(State) - {State.PENDING}))
async def test_only_a_pending_task_is_handed_out(store: Store, worker: Worker, hire: Hire, state: State) -> None:
    record = await task_in(store, worker, state)
    assert await worker.take() == []
    assert await (await hire()).take() == []
    assert await get(store, record) == record


async def test_a_worker_that_is_not_registered_gets_nothing(store: Store, worker: Worker) -> None:
    record = await add(store)
    claim = await store.claim("nobody", 1, {"work": 10}, 10)
    assert claim.tasks == []
    assert (await get(store, record)).attempt == 0
    assert (await worker.take_one()).attempt == 1


async def test_a_worker_that_was_unregistered_gets_nothing(store: Store, hire: Hire, worker: Worker) -> None:
    gone = await hire()
    await store.unregister(gone.id)
    await add(store)
    assert await gone.take() == []
    assert len(await worker.take()) == 1


async def test_two_workers_never_share_a_task(store: Store, hire: Hire) -> None:
    await store.add([new_task() for _ in range(50)])
    workers = [await hire() for _ in range(3)]
    claimed = [task.id for _ in range(10) for worker in workers for task in await worker.take(wants={"work": 2})]
    assert len(claimed) == len(set(claimed)) == 50


async def test_attempt_numbers_grow_and_are_never_used_twice(store: Store, hire: Hire) -> None:
    record = await add(store)
    numbers: list[int] = []
    for outcome in (Outcome.FAILED, Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.TIMED_OUT, Outcome.LOST):
        worker = await hire()
        numbers.append((await worker.run(State.PENDING, outcome=outcome)).attempt)
    leaving = await hire()
    numbers.append((await leaving.take_one()).attempt)
    await store.unregister(leaving.id)
    worker = await hire()
    numbers.append((await worker.run(State.FAILED)).attempt)
    await store.retry([record.id])
    numbers.append((await worker.take_one()).attempt)
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_equal_priorities_go_in_the_order_of_due_times(store: Store, worker: Worker, clock: ManualClock) -> None:
    late, early, middle = [await add(store, delay=seconds * SECOND) for seconds in (30, 10, 20)]
    clock.advance(60)
    assert [task.id for task in await worker.take()] == [early.id, middle.id, late.id]


async def test_a_task_due_in_the_past_stands_where_it_was_inserted(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = await add(store)
    clock.advance(1)
    second = await add(store, due_at=clock.now() - 3600 * SECOND)
    clock.advance(1)
    third = await add(store, due_at=1)
    assert [task.id for task in await worker.take()] == [first.id, second.id, third.id]


async def test_a_task_that_came_due_waits_for_those_inserted_before_its_due_time_only(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    planned = await add(store, delay=5 * SECOND)
    clock.advance(3)
    before = await add(store)
    clock.advance(3)
    after = await add(store)
    assert [task.id for task in await worker.take()] == [before.id, planned.id, after.id]


async def test_a_task_that_goes_back_stands_at_the_end(store: Store, worker: Worker, clock: ManualClock) -> None:
    retried = await add(store)
    task = await worker.take_one()
    clock.advance(1)
    waiting = await add(store)
    clock.advance(1)
    await worker.end(task, State.PENDING, due_at=clock.now() - 3600 * SECOND)
    assert [task.id for task in await worker.take()] == [waiting.id, retried.id]


async def test_past_due_times_never_hide_a_task_from_claims(store: Store, worker: Worker, clock: ManualClock) -> None:
    """A store that remembers how far it has claimed must not lose what is added behind that place."""
    for step in range(30):
        record = await add(store, due_at=clock.now() - step * SECOND)
        assert [task.id for task in await worker.take()] == [record.id]
        if step % 3 == 0:
            clock.advance(0.5)


def out_of_order(priorities: list[int]) -> int:
    """Count how many must be taken away so that the rest descends: the length without its longest descending part."""
    longest: list[int] = []
    for index, priority in enumerate(priorities):
        longest.append(1 + max((longest[earlier] for earlier in range(index) if priorities[earlier] >= priority), default=0))
    return len(priorities) - max(longest)


async def test_higher_priority_goes_first(store: Store, worker: Worker, clock: ManualClock) -> None:
    for priority in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6):
        await add(store, priority=priority)
        clock.advance(0.001)
    priorities = [task.priority for task in await worker.take()]
    assert sorted(priorities) == list(range(10))
    assert out_of_order(priorities) <= 1, f"at most one place in sixteen may go to the longest waiting: {priorities}"


async def test_higher_priority_goes_first_from_claim_to_claim(store: Store, worker: Worker, clock: ManualClock) -> None:
    for priority in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6):
        await add(store, priority=priority)
        clock.advance(0.001)
    priorities = [(await worker.take_one()).priority for _ in range(10)]
    assert sorted(priorities) == list(range(10))
    assert out_of_order(priorities) <= 1


@pytest.mark.parametrize("batch", [1, 4, 16, 32])
async def test_one_start_in_sixteen_goes_to_the_longest_waiting(store: Store, worker: Worker, clock: ManualClock, batch: int) -> None:
    oldest = [await add(store, priority=0, due_at=clock.now() + index) for index in range(6)]
    clock.advance(1)
    await store.add([new_task(priority=9) for _ in range(100)])
    claimed = [task for _ in range(64 // batch) for task in await worker.take(wants={"work": batch})]
    assert len(claimed) == 64
    for start in range(0, 64, 16):
        sixteen = [task.priority for task in claimed[start : start + 16]]
        if batch <= 16:
            assert sixteen.count(0) == 1, sixteen
    assert {task.id for task in claimed if task.priority == 0} == {record.id for record in oldest[:4]}


async def test_starts_are_counted_per_handler(store: Store, worker: Worker, clock: ManualClock) -> None:
    for handler in ("a", "b"):
        await store.add([new_task(handler, priority=0) for _ in range(5)])
    clock.advance(1)
    for handler in ("a", "b"):
        await store.add([new_task(handler, priority=9) for _ in range(40)])
    claimed = [task for _ in range(16) for task in await worker.take(wants={"a": 1, "b": 1})]
    assert Counter((task.handler, task.priority) for task in claimed) == {("a", 9): 15, ("b", 9): 15, ("a", 0): 1, ("b", 0): 1}


async def test_low_priority_does_not_starve_under_a_steady_flood(store: Store, worker: Worker, clock: ManualClock) -> None:
    low = await add(store, priority=0)
    for _ in range(16):
        clock.advance(0.01)
        await store.add([new_task(priority=9), new_task(priority=9)])
        await worker.run(State.SUCCEEDED)
    assert await state_of(store, low) is State.SUCCEEDED


async def test_a_small_total_is_shared_between_handlers(store: Store, worker: Worker) -> None:
    await store.add([new_task(handler) for handler in ("a", "b", "c") for _ in range(20)])
    assert Counter(task.handler for task in await worker.take("a", "b", "c", total=6)) == {"a": 2, "b": 2, "c": 2}
    assert sorted(Counter(task.handler for task in await worker.take("a", "b", "c", total=4)).values()) == [1, 1, 2]


async def test_a_small_total_is_shared_whatever_the_priorities(store: Store, worker: Worker) -> None:
    await store.add([new_task("urgent", priority=9) for _ in range(20)])
    await store.add([new_task("calm", priority=0) for _ in range(20)])
    assert Counter(task.handler for task in await worker.take("urgent", "calm", total=8)) == {"urgent": 4, "calm": 4}


async def test_starts_that_a_handler_does_not_use_go_to_the_others(store: Store, worker: Worker) -> None:
    await store.add([new_task("few")] + [new_task("many") for _ in range(20)])
    assert Counter(task.handler for task in await worker.take("few", "many", "none", total=6)) == {"few": 1, "many": 5}
    assert Counter(task.handler for task in await worker.take(wants={"few": 3, "many": 2}, total=6)) == {"many": 2}


async def test_what_many_handlers_leave_goes_to_the_one_that_has_more_in_its_order(store: Store, worker: Worker) -> None:
    calm = [await add(store, "rich", priority=3) for _ in range(3)]
    urgent = [await add(store, "rich", priority=7) for _ in range(24)]
    await store.add([new_task(f"poor-{number}") for number in range(20)])
    claimed = await worker.take("rich", *(f"poor-{number}" for number in range(20)), "none", total=35)
    assert len({task.handler for task in claimed}) == 21
    rich = [task for task in claimed if task.handler == "rich"]
    first = [task.id for task in rich if task.priority == 7]
    assert len(rich) == 15
    assert len(first) >= 14, "at most one start in sixteen is for the task that has waited longest"
    assert first == [task.id for task in urgent[: len(first)]], "by priority, then by age"
    rest = {task.id for task in (*rich, *await worker.take("rich"))}
    assert rest == {task.id for task in (*calm, *urgent)}


async def test_a_total_of_nothing_claims_nothing(store: Store, worker: Worker) -> None:
    await store.add([new_task(handler) for handler in ("a", "b")])
    assert await worker.take("a", "b", total=0) == []
    assert len(await worker.take("a", "b")) == 2


async def test_a_total_of_one_serves_the_handlers_round_robin(store: Store, worker: Worker) -> None:
    await store.add([new_task(handler) for handler in ("a", "b", "c") for _ in range(20)])
    served = Counter([task.handler for _ in range(9) for task in await worker.take("a", "b", "c", total=1)])
    assert served == {"a": 3, "b": 3, "c": 3}


async def test_a_claim_that_first_has_to_learn_of_gates_skips_no_handler(store: Store, worker: Worker) -> None:
    """A store object may find in the middle of a claim that what it remembers is old, and choose once more."""
    names = ("a", "b", "c")
    await store.add([new_task(name) for name in names for _ in range(10)])
    served = [task.handler for _ in range(4) for task in await worker.take(*names, total=1)]
    await store.put_gate(Gate(handler="other", action=GateAction.PAUSE))
    served += [task.handler for _ in range(5) for task in await worker.take(*names, total=1)]
    assert served == [*names, *names, *names]


async def test_a_due_task_whose_expiry_has_passed_is_recorded_as_expired(store: Store, worker: Worker, clock: ManualClock) -> None:
    late = await add(store, key="k", expires_in=10 * SECOND)
    fine = await add(store, expires_in=30 * SECOND)
    clock.advance(11)
    assert [task.id for task in await worker.take()] == [fine.id]
    expired = await get(store, late)
    assert (expired.state, expired.attempt, expired.finished_at, expired.worker) == (State.EXPIRED, 0, clock.now(), None)
    assert await store.attempts(late.id) == []
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED


async def test_expired_tasks_do_not_stop_the_claims_behind_them(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task(expires_in=SECOND) for _ in range(100)])
    clock.advance(2)
    fine = await add(store)
    claimed = [task.id for _ in range(101) for task in await worker.take(wants={"work": 1})]
    assert claimed == [fine.id]


async def test_the_next_look_is_when_the_next_task_comes_due(store: Store, worker: Worker, clock: ManualClock) -> None:
    assert (await worker.claim()).next_at is None
    later = await add(store, delay=60 * SECOND)
    sooner = await add(store, delay=20 * SECOND, priority=1)
    await add(store, "other", delay=5 * SECOND)
    assert (await worker.claim()).next_at == sooner.due_at
    clock.advance(20)
    claim = await worker.claim()
    assert ([task.id for task in claim.tasks], claim.next_at) == ([sooner.id], later.due_at)
    clock.advance(40)
    claim = await worker.claim()
    assert (len(claim.tasks), claim.next_at) == (1, None)


@pytest.mark.parametrize("lanes", [1, 2])
async def test_the_next_look_is_told_although_the_claim_was_full(store: Store, worker: Worker, lanes: int) -> None:
    await store.add([new_task(priority=index) for index in range(lanes)])
    later = await add(store, priority=0, delay=20 * SECOND)
    claim = await worker.claim(wants={"work": lanes}, total=lanes)
    assert (len(claim.tasks), claim.next_at) == (lanes, later.due_at)


async def test_the_next_look_sees_a_retry(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + 7 * SECOND)
    assert (await worker.claim()).next_at == clock.now() + 7 * SECOND


async def test_finished_tasks_are_no_reason_to_look_again(store: Store, worker: Worker) -> None:
    for state in sorted(FINAL):
        await task_in(store, worker, state, handler=state)
    claim = await worker.claim(*FINAL)
    assert (claim.tasks, claim.next_at) == ([], None)


async def test_a_drained_store_hands_out_every_task_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    new_tasks = [new_task(f"h{number % 3}", priority=number % 10, delay=number % 7 * SECOND) for number in range(500)]
    await store.add(new_tasks)
    claimed: list[str] = []
    while len(claimed) < 500:
        claim = await worker.claim("h0", "h1", "h2", total=37)
        claimed += [task.id for task in claim.tasks]
        if not claim.tasks:
            assert claim.next_at is not None
            clock.set(claim.next_at)
    assert sorted(claimed) == sorted(submitted.id for submitted in new_tasks)
    assert (await worker.take("h0", "h1", "h2", total=PLENTY)) == []
