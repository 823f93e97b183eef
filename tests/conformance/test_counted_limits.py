"""Limits that the store counts at each claim: what is handed out, what is parked, and who goes on when an attempt has ended."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.limit import CountedLimit, Over, RateRule
from duetime.model.outcome import Outcome
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.accepting import OpenAttempt
from duetime.store.values import ClaimedTask, Edit
from tests.conformance.build import Worker, add, ended, get, new_task, state_of
from tests.conformance.conftest import Dead, Hire
from tests.servers.waiting import PATIENCE


def limit(
    running: int = 1,
    by: str | None = "user",
    *,
    name: str = "per-user",
    over: Over = "wait",
    rates: Sequence[RateRule] = (),
    uses: dict[str, int] | None = None,
) -> CountedLimit:
    return CountedLimit(name=name, running=running, uses=uses or {"work": 1}, by=by, rates=rates, over=over)


async def declare(store: Store, *limits: CountedLimit, handlers: Sequence[str] = ("work",)) -> None:
    await store.declare_counted(handlers, limits)


async def of(store: Store, user: object, handler: str = "work", **options: Any) -> TaskRecord:
    return await add(store, handler, msgspec.json.encode({"user": user}), **options)


async def take(worker: Worker, *handlers: str) -> list[ClaimedTask]:
    """Claim until nothing more is handed out, as a worker does that is told to look again."""
    tasks: list[ClaimedTask] = []
    for _ in range(20):
        claim = await worker.claim(*handlers)
        tasks += claim.tasks
        if not claim.tasks and (claim.next_at is None or claim.next_at > claim.now):
            break
    return tasks


async def test_of_each_value_only_so_many_run_and_the_next_goes_on_when_one_ends(store: Store, worker: Worker) -> None:
    await declare(store, limit(2))
    sevens = [await of(store, 7) for _ in range(4)]
    [eight] = [await of(store, "8")]
    taken = await take(worker)
    assert [task.id for task in taken] == [sevens[0].id, sevens[1].id, eight.id]
    assert [task.attempt for task in taken] == [1, 1, 1]
    waiting = await get(store, sevens[2])
    assert (waiting.state, waiting.parked, waiting.attempt) == (State.PENDING, True, 0)
    assert await take(worker) == []
    await worker.end(taken[1], State.SUCCEEDED)
    [third] = await take(worker)
    assert (third.id, third.attempt) == (sevens[2].id, 1)
    await worker.end(taken[0], State.FAILED)
    await worker.end(third, State.SUCCEEDED)
    assert [task.id for task in await take(worker)] == [sevens[3].id]
    [record] = await store.limits()
    assert (record.name, record.by, record.counted, record.parked) == ("per-user", "user", 2, 0)


async def test_whoever_waits_keeps_the_order_and_a_newcomer_does_not_overtake(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit())
    first, second = await of(store, 7), await of(store, 7)
    [running] = await take(worker)
    await worker.end(running, State.SUCCEEDED)
    assert running.id == first.id
    urgent = await of(store, 7, priority=9)  # of a lane of its own, which is claimed first
    assert [task.id for task in await take(worker)] == [second.id]
    assert (await get(store, urgent)).parked
    later = await of(store, 7)
    await take(worker)
    await worker.end((await hold(store, worker, second))[0], State.SUCCEEDED)
    assert [task.id for task in await take(worker)] == [urgent.id]
    assert (await get(store, later)).parked


async def hold(store: Store, worker: Worker, record: TaskRecord) -> list[ClaimedTask]:
    """Return a running task as its worker has it."""
    [found] = await store.open_attempts([record.id])
    return [as_claimed(found)]


def as_claimed(found: OpenAttempt) -> ClaimedTask:
    return ClaimedTask(*msgspec.structs.astuple(found.task)[: len(ClaimedTask.__struct_fields__)])


async def test_a_retry_gives_its_share_to_who_waits(store: Store, worker: Worker) -> None:
    await declare(store, limit())
    first, second = await of(store, 7), await of(store, 7)
    [running] = await take(worker)
    await worker.end(running, State.PENDING)
    [taken] = await take(worker)
    assert taken.id == second.id
    await worker.end(taken, State.SUCCEEDED)
    [again] = await take(worker)
    assert (again.id, again.attempt) == (first.id, 2)


async def test_what_a_dead_worker_had_is_free(store: Store, worker: Worker, dead_worker: Dead) -> None:
    await declare(store, limit())
    first, second = await of(store, 7), await of(store, 7)
    dead = await dead_worker(holding=1)
    assert await take(worker) == []
    [found] = [each for each in await store.workers() if each.id == dead]
    await store.reap(dead, found.beat)
    await store.look_at_limits()
    taken = await take(worker)
    assert len(taken) == 1
    assert taken[0].id in (first.id, second.id)


async def test_accepted_work_counts_until_it_has_ended(store: Store, worker: Worker) -> None:
    await declare(store, limit())
    await of(store, 7)
    second = await of(store, 7)
    [running] = await take(worker)
    await worker.hand_over(running)
    await store.look_at_limits()
    assert await take(worker) == []
    await store.complete([ended(running, State.SUCCEEDED, at=store.now())])
    assert [task.id for task in await take(worker)] == [second.id]


async def test_two_limits_are_kept_together_and_who_waits_holds_nothing(store: Store, worker: Worker) -> None:
    await declare(store, limit(1), limit(2, "collection", name="tenant"))
    tasks = [await of(store, user, collection="eu") for user in (1, 1, 2, 3)]
    taken = await take(worker)
    assert [task.id for task in taken] == [tasks[0].id, tasks[2].id]
    await worker.end(taken[0], State.SUCCEEDED)
    more = await take(worker)
    assert len(more) == 1
    assert more[0].id in (tasks[1].id, tasks[3].id)
    await worker.end(taken[1], State.SUCCEEDED)
    await worker.end(more[0], State.SUCCEEDED)
    assert len(await take(worker)) == 1
    assert sorted((each.name, each.counted, each.parked) for each in await store.limits()) == [("per-user", 1, 0), ("tenant", 1, 0)]


async def test_a_part_of_the_metadata_a_nested_field_and_a_missing_one(store: Store, worker: Worker) -> None:
    await declare(store, limit(1, "meta.tenant"), limit(1, "order.id", name="order"))
    for tenant, order in (("a", 1), ("a", 2), ("b", 1), ("c", None)):
        payload = {} if order is None else {"order": {"id": order}}
        await add(store, payload=msgspec.json.encode(payload), meta={"tenant": tenant})
    await take(worker)
    assert {each.name: (each.counted, each.parked) for each in await store.partitions("order")} == {"": (1, 0), "1": (1, 1)}
    assert {each.name: (each.counted, each.parked) for each in await store.partitions("per-user")} == {"a": (1, 1), "c": (1, 0)}
    [one] = await store.partitions("order", only="1")
    assert (one.running, len(one.tasks), one.oldest_due_at is not None) == (1, 1, True)
    assert [each.name for each in await store.partitions("order", after="", limit=1)] == ["1"]


async def test_an_attempt_that_takes_many_is_waited_for(store: Store, worker: Worker) -> None:
    await declare(store, limit(3, None, name="pool", uses={"small": 1, "large": 3}), handlers=("small", "large"))
    limits = limit(3, "user", name="pool", uses={"small": 1, "large": 3})
    await declare(store, limits, handlers=("small", "large"))
    small = [await of(store, 1, "small") for _ in range(2)]
    taken = await take(worker, "small")
    large = await of(store, 1, "large")
    assert await take(worker, "large") == []
    await of(store, 1, "small")
    assert await take(worker, "small") == []  # there is enough left for it, but another one was first
    for each in taken:
        await worker.end(each, State.SUCCEEDED)
    assert [task.id for task in await take(worker, "small", "large")] == [large.id]
    assert len(small) == 2


async def test_a_lowered_number_holds_at_once_and_a_partition_can_have_its_own(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit(2))
    for _ in range(5):
        await of(store, 7)
    taken = await take(worker)
    assert len(taken) == 2
    await store.put_limit("per-user", 1, until_at=None, note="", set_by="ada")
    await worker.end(taken[0], State.SUCCEEDED)
    assert await take(worker) == []
    assert await store.put_partition("per-user", "7", 3, until_at=clock.now() + SECOND, note="for today", set_by="ada")
    assert len(await take(worker)) == 2
    [record] = await store.partitions("per-user", only="7")
    assert (record.running, record.own, record.note, record.counted, record.parked) == (3, 3, "for today", 3, 1)
    clock.advance(1)
    [record] = await store.partitions("per-user", only="7")
    assert (record.running, record.own) == (1, None)
    assert not await store.put_partition("unknown", "7", 3, until_at=None, note="", set_by="")


async def test_parked_tasks_are_cancelled_edited_expired_and_dropped_like_others(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit())
    running = await of(store, 7)
    cancelled, moved, prompt = [await of(store, 7) for _ in range(3)]
    expiring = await of(store, 7, expires_at=clock.now() + SECOND)
    [taken] = await take(worker)
    assert taken.id == running.id
    await store.cancel([cancelled.id])
    assert await state_of(store, cancelled) is State.CANCELLED
    await store.edit([Edit(id=moved.id, payload=b'{"user":8}')])
    assert [task.id for task in await take(worker)] == [moved.id]
    await store.edit([Edit(id=prompt.id, due_at=clock.now() + 5 * SECOND)])
    clock.advance(2)
    await store.expire(10)
    assert await state_of(store, expiring) is State.EXPIRED
    await worker.end(taken, State.SUCCEEDED)
    assert await take(worker) == []  # nothing is due
    clock.advance(4)
    [last] = await take(worker)
    assert last.id == prompt.id
    dropped = await of(store, 7)
    await take(worker)
    await store.put_gate(Gate(handler="work", collection=None, action=GateAction.DROP, set_at=clock.now()))
    await store.drop(10)
    assert await state_of(store, dropped) is State.DROPPED


async def test_who_could_go_on_but_is_gated_lets_others_go(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit(uses={"work": 1, "other": 1}), handlers=("work", "other"))
    first = await of(store, 7)
    waiting = await of(store, 7)
    other = await of(store, 7, "other")
    [taken] = await take(worker, "work")
    assert await take(worker, "other") == []
    await store.put_gate(Gate(handler="work", collection=None, action=GateAction.PAUSE, set_at=clock.now()))
    await worker.end(taken, State.SUCCEEDED)
    await store.look_at_limits()
    assert [task.id for task in await take(worker, "work", "other")] == [other.id]
    assert await state_of(store, waiting) is State.PENDING
    assert taken.id == first.id


async def test_what_newer_code_does_not_limit_goes_on(store: Store, worker: Worker) -> None:
    await declare(store, limit())
    tasks = [await of(store, 7) for _ in range(3)]
    assert len(await take(worker)) == 1
    await declare(store, limit(1, "collection"))
    assert len(await take(worker)) == 1  # of the collection without a name
    await declare(store)
    assert len(await take(worker)) == 1
    assert len(tasks) == 3


async def test_the_duty_repeats_every_look(store: Store, worker: Worker, another: object) -> None:
    """What a process left behind that died between the end of an attempt and its look."""
    await declare(store, limit())
    await of(store, 7)
    second = await of(store, 7)
    [running] = await take(worker)
    other = await another()  # type: ignore[operator]
    await other.settle(worker.id, [ended(running, State.SUCCEEDED, at=store.now())])  # it does not know what was admitted
    await store.look_at_limits()
    assert [task.id for task in await take(worker)] == [second.id]


@pytest.mark.parametrize("crossed", [False, True])
async def test_never_more_than_allowed_whoever_claims_and_ends_at_once(store: Store, hire: Hire, crossed: bool) -> None:
    """Without a look of the duty; `crossed`: under two limits, of which each task has another pair of values."""
    workers = [await hire() for _ in range(4)]
    await declare(store, limit(2), *([limit(1, "collection", name="tenant")] if crossed else []))
    chance = random.Random(21)
    many = 24 if crossed else 60
    for number in range(many):
        await of(store, number % 3, collection=f"tenant {number % 4}")
    running: Counter[str | None] = Counter()
    done = 0

    async def work(worker: Worker) -> None:
        nonlocal done
        mine: list[ClaimedTask] = []
        while done < many:
            for task in (await worker.claim(wants={"work": chance.randint(1, 4)}, total=4)).tasks:
                running[task.payload] += 1
                running[task.collection] += 1
                assert running[task.payload] <= 2
                assert not crossed or running[task.collection] == 1
                mine.append(task)
            chance.shuffle(mine)
            for task in [mine.pop() for _ in range(chance.randint(0, len(mine)))]:
                running[task.payload] -= 1
                running[task.collection] -= 1
                again = chance.random() < 0.2
                outcome = Outcome.RETRY_LATER if again else None
                await worker.end(task, State.PENDING if again else State.SUCCEEDED, outcome=outcome)
                done += not again
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(work, workers))


async def test_over_drop_drops_and_over_cancel_running_stops(store: Store, worker: Worker) -> None:
    await declare(store, limit(over="drop"), handlers=("work",))
    first, second = await of(store, 7), await of(store, 7)
    [taken] = await take(worker)
    assert (taken.id, await state_of(store, second)) == (first.id, State.DROPPED)
    await worker.end(taken, State.SUCCEEDED)
    await declare(store, limit(over="cancel_running"))
    old, middle = await of(store, 7), None
    [taken] = await take(worker)
    middle = await of(store, 7)
    await take(worker)
    newest = await of(store, 7)
    await take(worker)
    assert (taken.id, await state_of(store, middle)) == (old.id, State.DROPPED)
    [found] = await store.open_attempts([old.id])
    assert found.task.cancelling
    assert (await get(store, newest)).parked
    await worker.end(taken, State.CANCELLED)
    assert [task.id for task in await take(worker)] == [newest.id]


async def test_a_rate_lets_a_burst_start_and_then_one_after_another(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit(0, None, name="vendor", rates=[RateRule(10, SECOND, 3)]))
    for _ in range(40):
        await add(store)
    starts = []
    for _ in range(200):
        starts += [clock.now()] * len(await take(worker))
        clock.advance(0.02)
        await store.look_at_limits()
    began = starts[0]
    assert starts.count(began) == 3
    for at in starts:
        assert sum(at <= each < at + SECOND for each in starts) <= 10 + 3 + 1
    assert len(starts) == 40
    assert starts[-1] - began <= 4 * SECOND


async def test_a_token_that_was_not_used_in_time_is_void(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit(0, "user", name="vendor", rates=[RateRule(10, SECOND)]))
    for _ in range(30):
        await of(store, 7)
    assert len(await take(worker)) == 1
    await store.look_at_limits()
    clock.advance(10)  # nobody claimed anything
    assert len(await take(worker)) <= 2


@pytest.mark.parametrize("step", [-3_600, 3_600])
async def test_a_clock_that_is_set_holds_a_rate_back_for_no_longer_than_a_burst(
    store: Store, worker: Worker, clock: ManualClock, step: float
) -> None:
    await declare(store, limit(0, "user", name="vendor", rates=[RateRule(10, SECOND, 3)]))
    for _ in range(20):
        await of(store, 7)
    assert len(await take(worker)) == 3
    clock.advance(step)
    for _ in range(3):  # what comes now is in the place of what went on by the clock of before
        await of(store, 7)
    taken = []
    for _ in range(30):
        taken += [clock.now()] * len(await take(worker))
        await store.look_at_limits()
        clock.advance(0.05)
    for at in taken:
        assert sum(at <= each < at + SECOND for each in taken) <= 10 + 3 + 1
    assert len(taken) >= 3


async def test_every_attempt_takes_a_token(store: Store, worker: Worker, clock: ManualClock) -> None:
    await declare(store, limit(0, "user", name="vendor", rates=[RateRule(1, 3_600 * SECOND, 3)]))
    first = await of(store, 7)
    for number in range(1, 4):
        [taken] = await take(worker)
        assert (taken.id, taken.attempt) == (first.id, number)
        await worker.end(taken, State.PENDING, outcome=Outcome.RETRY_LATER)
    assert await take(worker) == []
    assert (await get(store, first)).parked


async def test_a_parked_task_is_replaced_by_a_newer_one_of_its_key(store: Store, worker: Worker) -> None:
    await declare(store, limit())
    await of(store, 7)
    parked = await of(store, 7, key="order-1")
    assert len(await take(worker)) == 1
    [replaced] = await store.add([new_task("work", b'{"user":8}', key="order-1", if_exists="replace")])
    assert replaced.record.id == parked.id
    [taken] = await take(worker)
    assert (taken.id, taken.payload) == (parked.id, '{"user":8}')


async def test_a_rate_per_day_begins_anew_at_midnight(store: Store, worker: Worker, clock: ManualClock) -> None:
    day = 86_400 * SECOND
    await declare(store, limit(0, None, name="vendor", rates=[RateRule(2, 0)]))
    for _ in range(5):
        await add(store)
    assert len(await take(worker)) == 2
    clock.advance((day - clock.now() % day) / SECOND - 1)
    await store.look_at_limits()
    assert await take(worker) == []
    clock.advance(1)
    await store.look_at_limits()
    assert len(await take(worker)) == 2
