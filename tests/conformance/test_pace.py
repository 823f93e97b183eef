"""Debounced and throttled submissions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duetime.clock import MILLISECOND, SECOND, Instant, ManualClock, to_datetime
from duetime.model.merging import Pace
from duetime.model.task import FINAL, LIVE, NewTask, State
from duetime.store import Store
from duetime.store.values import Added, AddVerdict
from tests.conformance.build import Worker, add, get, new_task, state_of, task_in
from tests.conformance.conftest import Another

DEBOUNCE = Pace(debounce=30 * SECOND, max_wait=100 * SECOND)
THROTTLE = Pace(throttle=60 * SECOND)


def payload(number: int) -> bytes:
    return b'{"n": %d}' % number


def made_at(task: NewTask[object], at: Instant) -> NewTask[object]:
    """Return a task with the id that it would have got on a host whose clock showed this instant."""
    ms = at // MILLISECOND
    return msgspec.structs.replace(task, id=f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-{task.id[14:]}")


def debounced(number: int, pace: Pace = DEBOUNCE) -> NewTask[object]:
    return new_task(key="k", if_exists="queue_one", payload=payload(number), pace=pace)


def throttled(number: int, key: str = "k") -> NewTask[object]:
    return new_task(key=key, if_exists="keep", payload=payload(number), pace=THROTTLE)


async def put(store: Store, task: NewTask[object]) -> Added:
    [added] = await store.add([task])
    return added


async def test_a_debounced_task_is_due_once_its_key_was_quiet(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = await put(store, debounced(1))
    assert (first.verdict, first.record.due_at) == (AddVerdict.ADDED, clock.now() + 30 * SECOND)
    clock.advance(20)
    second = await put(store, debounced(2))
    assert (second.verdict, second.record.id, second.record.due_at) == (AddVerdict.REPLACED, first.record.id, clock.now() + 30 * SECOND)
    clock.advance(29)
    assert await worker.take() == []
    clock.advance(1)
    [task] = await worker.take()
    assert (task.id, task.payload.encode()) == (first.record.id, payload(2))


async def test_it_starts_at_most_so_long_after_the_first_submission(store: Store, worker: Worker, clock: ManualClock) -> None:
    began = clock.now()
    for number in range(1, 7):
        record = (await put(store, debounced(number))).record
        assert record.due_at == min(clock.now() + 30 * SECOND, began + 100 * SECOND)
        assert record.merged is not None
        assert (record.merged.submissions, record.merged.latest_at) == (number, to_datetime(began + 100 * SECOND))
        clock.advance(18)
    assert [task.payload.encode() for task in await worker.take()] == [payload(6)]


async def test_without_a_bound_it_waits_as_long_as_its_key_is_busy(store: Store, worker: Worker, clock: ManualClock) -> None:
    for number in range(20):
        await put(store, debounced(number, Pace(debounce=30 * SECOND)))
        clock.advance(29)
        assert await worker.take() == []
    clock.advance(1)
    assert [task.payload.encode() for task in await worker.take()] == [payload(19)]


async def test_while_it_runs_submissions_make_exactly_one_more(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = await put(store, debounced(1))
    clock.advance(30)
    [running] = await worker.take()
    made = [await put(store, debounced(number)) for number in (2, 3, 4)]
    assert [each.verdict for each in made] == [AddVerdict.ADDED, AddVerdict.REPLACED, AddVerdict.REPLACED]
    [more] = {each.record.id for each in made}
    assert more != first.record.id
    assert await state_of(store, more) is State.BLOCKED
    clock.advance(10)
    await worker.end(running, State.SUCCEEDED)
    assert await worker.take() == []
    clock.advance(20)
    assert [(task.id, task.payload.encode()) for task in await worker.take()] == [(more, payload(4))]


async def test_one_that_waits_for_its_next_attempt_begins_a_new_wait(store: Store, worker: Worker, clock: ManualClock) -> None:
    await put(store, debounced(1))
    clock.advance(30)
    await worker.run(State.PENDING)
    clock.advance(90)
    record = (await put(store, debounced(2))).record
    assert record.merged is not None
    assert (record.due_at, record.merged.latest_at) == (clock.now() + 30 * SECOND, to_datetime(clock.now() + 100 * SECOND))


async def test_the_newest_arguments_win_also_in_parallel(store: Store, another: Another, clock: ManualClock) -> None:
    stores = [store, await another()]
    tasks = [debounced(number) for number in range(20)]
    answers = await asyncio.gather(*[stores[number % 2].add([task]) for number, task in enumerate(tasks)])
    [id] = {answer[0].record.id for answer in answers}
    assert (await get(store, id)).payload == payload(19)
    assert [answer[0].verdict for answer in answers].count(AddVerdict.ADDED) == 1


async def test_a_repeat_and_a_late_one_change_nothing(store: Store, clock: ManualClock) -> None:
    tasks = [made_at(debounced(number), clock.now() - 3 * SECOND + number * MILLISECOND) for number in range(3)]
    for task in (tasks[0], tasks[2]):
        await put(store, task)
    clock.advance(5)
    before = await get(store, tasks[0])
    for task in (tasks[1], tasks[2]):
        assert await put(store, task) == Added(AddVerdict.KEPT, before)
    assert await put(store, tasks[0]) == Added(AddVerdict.REPEATED, before)


@pytest.mark.parametrize("wrong", [-3600, -61, 5, 3600])
async def test_where_a_clock_is_wrong_the_order_of_arrival_counts(store: Store, clock: ManualClock, wrong: int) -> None:
    await put(store, made_at(debounced(1), clock.now()))
    for number in (2, 3, 4):
        clock.advance(1)
        task = made_at(debounced(number), clock.now() + (wrong if number % 2 else 0) * SECOND)
        assert (await put(store, task)).verdict is AddVerdict.REPLACED
    assert (await store.find("work", "k") or task).payload == payload(4)


async def test_its_expiry_counts_from_where_it_is_put_off_to(store: Store, clock: ManualClock) -> None:
    await put(store, debounced(1))
    clock.advance(10)
    task = new_task(key="k", if_exists="queue_one", pace=DEBOUNCE, expires_in=5 * SECOND)
    assert (await put(store, task)).record.expires_at == clock.now() + 35 * SECOND


@pytest.mark.parametrize("state", sorted(LIVE | FINAL))
async def test_within_the_window_the_answer_is_the_first(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    first = await task_in(store, worker, state, key="k", pace=THROTTLE, if_exists="keep")
    clock.advance(59)
    assert await put(store, throttled(1)) == Added(AddVerdict.KEPT, await get(store, first))


async def test_after_the_window_the_next_one_opens_another(store: Store, worker: Worker, clock: ManualClock, another: Another) -> None:
    first = (await put(store, throttled(1))).record
    await worker.run(State.SUCCEEDED)
    clock.advance(60)
    second = await put(store, throttled(2))
    assert (second.verdict, second.record.payload) == (AddVerdict.ADDED, payload(2))
    other = await another()  # what another process, or one after a restart, finds
    clock.advance(59)
    assert (await put(other, throttled(3))).record.id == second.record.id
    assert (await put(other, throttled(4, key="other"))).verdict is AddVerdict.ADDED
    assert first.id != second.record.id


async def test_if_the_first_lives_longer_than_the_window_it_is_the_answer(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = (await put(store, throttled(1))).record
    [running] = await worker.take()
    clock.advance(61)
    assert (await put(store, throttled(2))).record.id == first.id
    await worker.end(running, State.SUCCEEDED)
    clock.advance(58)
    assert (await put(store, throttled(3))).record.id == first.id
    clock.advance(2)
    assert (await put(store, throttled(4))).verdict is AddVerdict.ADDED


async def test_at_once_one_opens_the_window(store: Store, another: Another, clock: ManualClock) -> None:
    stores = [store, await another()]
    answers = await asyncio.gather(*[stores[number % 2].add([throttled(number)]) for number in range(20)])
    assert len({answer[0].record.id for answer in answers}) == 1
    assert [answer[0].verdict for answer in answers].count(AddVerdict.ADDED) == 1


async def test_in_one_call_the_first_opens_the_window(store: Store) -> None:
    tasks = [throttled(1), throttled(2), throttled(3, key="other"), throttled(4)]
    answers = await store.add([*tasks, tasks[0]])
    verdicts = [AddVerdict.ADDED, AddVerdict.KEPT, AddVerdict.ADDED, AddVerdict.KEPT, AddVerdict.REPEATED]
    assert [answer.verdict for answer in answers] == verdicts
    assert [answer.record.id for answer in answers] == [tasks[index].id for index in (0, 0, 2, 0, 0)]


async def test_if_the_first_is_deleted_the_next_opens_another_window(store: Store, clock: ManualClock) -> None:
    first = (await put(store, throttled(1))).record
    await store.delete([first.id])
    second = await put(store, throttled(2))
    assert second.verdict is AddVerdict.ADDED
    clock.advance(59)
    assert (await put(store, throttled(3))).record.id == second.record.id


async def test_tidying_forgets_only_windows_that_are_over(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = (await put(store, throttled(1))).record
    await worker.run(State.SUCCEEDED)
    clock.advance(59)
    await store.tidy()
    assert (await put(store, throttled(2))).record.id == first.id
    clock.advance(1)
    await store.tidy()
    assert (await put(store, throttled(3))).verdict is AddVerdict.ADDED


async def test_a_task_may_be_debounced_where_one_without_a_pace_waits(store: Store, clock: ManualClock) -> None:
    plain = await add(store, key="k", delay=3600 * SECOND)
    answer = await put(store, debounced(1))
    assert (answer.verdict, answer.record.id, answer.record.due_at) == (AddVerdict.REPLACED, plain.id, clock.now() + 30 * SECOND)
