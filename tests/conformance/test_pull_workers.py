"""Pull workers: a server speaks for them. They live by beats in their rows, on every store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duetime.client.gates import barrier
from duetime.clock import SECOND, ManualClock
from duetime.duties import Reaper
from duetime.ids import new_id
from duetime.model.figures import ATTEMPTS_LOST, TASKS_FAILED, WORKERS_LOST, FigureKey
from duetime.model.gate import Gate, GateAction
from duetime.model.lifecycle import QUARANTINE_CRASHES
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.pull_workers import MOST_CLAIMED_BYTES, PullWorker, RunningTask
from duetime.store.values import ClaimedTask
from tests.conformance.build import PLENTY, Worker, add, ended, get, new_task, state_of, watch
from tests.conformance.conftest import Another, Hire

HOSTILE = "'); drop table duetime_worker; -- \" \\ {} %s $1 \N{SNOWMAN}\U0001f600"


async def enlist(store: Store, **facts: Any) -> PullWorker:
    puller = PullWorker(**{"id": new_id(), "name": "resizer", "slots": {"work": 10}, "lease": 30.0, **facts})
    await store.register_pull_worker(puller)
    return puller


async def claim(store: Store, puller: PullWorker, number: int = 1, limit: int = PLENTY) -> list[ClaimedTask]:
    return (await store.claim_for(puller.id, number, {"work": PLENTY}, limit)).tasks


def keys(tasks: list[ClaimedTask] | list[RunningTask]) -> list[tuple[str, int]]:
    return sorted((task.id, task.attempt) for task in tasks)


# ---- being registered ----


async def test_a_pull_worker_is_given_back_as_it_was_registered(store: Store) -> None:
    puller = await enlist(store, name=HOSTILE, slots={HOSTILE: 3, "b": 7}, lease=5.5)
    assert await store.pull_worker(puller.id) == puller
    assert await store.pull_worker(new_id()) is None
    assert await store.pull_worker(HOSTILE) is None


async def test_a_pull_worker_is_listed_as_a_worker_whose_beats_must_be_watched(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store, lease=7.0)
    await store.add([new_task(), new_task()])
    await claim(store, puller)
    clock.advance(2)
    await store.renew_pull_worker(puller.id)
    [record] = await store.workers()
    assert (record.id, record.host, dict(record.slots), record.lease) == (puller.id, "resizer", {"work": 10}, 7.0)
    assert (record.pull, record.alive, record.running) == (True, None, 2)
    assert (record.started_at, record.beat_at) == (clock.now() - 2 * SECOND, clock.now())
    await store.unregister(puller.id)
    assert await store.workers() == []


async def test_a_worker_is_no_pull_worker(store: Store, worker: Worker) -> None:
    [before] = await store.workers()
    assert before.pull is False
    assert await store.pull_worker(worker.id) is None
    assert await store.renew_pull_worker(worker.id) is False
    await store.register_pull_worker(PullWorker(id=worker.id, name="impostor", slots={}, lease=5.0))
    [after] = await store.workers()
    assert (after.pull, after.host, after.beat, after.slots) == (False, before.host, before.beat, before.slots)


async def test_renewing_beats_as_long_as_the_pull_worker_is_registered(store: Store) -> None:
    puller = await enlist(store)
    [before] = await store.workers()
    assert await store.renew_pull_worker(puller.id) is True
    [after] = await store.workers()
    assert after.beat > before.beat
    await store.unregister(puller.id)
    assert await store.renew_pull_worker(puller.id) is False
    assert await store.renew_pull_worker(HOSTILE) is False


async def test_a_pull_worker_that_is_registered_again_keeps_what_it_holds(store: Store) -> None:
    puller = await enlist(store)
    record = await add(store)
    await claim(store, puller)
    [before] = await store.workers()
    again = await enlist(store, id=puller.id, name="other", slots={"work": 2}, lease=60.0)
    [after] = await store.workers()
    assert await store.pull_worker(puller.id) == again
    assert after.beat > before.beat
    assert [held.id for held in await store.running_tasks(puller.id)] == [record.id]


# ---- claiming ----


async def test_a_pull_worker_claims_and_settles_like_a_worker(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store)
    record = await add(store)
    [task] = await claim(store, puller)
    assert (task.id, task.attempt) == (record.id, 1)
    running = await get(store, record)
    assert (running.state, running.worker, running.started_at) == (State.RUNNING, puller.id, clock.now())
    done = ended(task, State.SUCCEEDED, at=clock.now(), result=b"7")
    assert await store.settle(puller.id, [done]) == [SettleVerdict.ACCEPTED]
    assert await store.settle(puller.id, [done]) == [SettleVerdict.ALREADY]
    assert await state_of(store, record) is State.SUCCEEDED


async def test_a_repeated_claim_takes_nothing_more(store: Store, another: Another) -> None:
    puller = await enlist(store)
    other = await another()
    await store.add([new_task() for _ in range(6)])
    first = await claim(store, puller, 7, 3)
    assert len(first) == 3
    assert await claim(store, puller, 7, 3) == []
    assert await claim(other, puller, 7, 3) == []
    assert keys(await other.running_tasks(puller.id)) == keys(first)
    assert len(await claim(other, puller, 8, 3)) == 3


async def test_a_repeated_claim_takes_nothing_more_while_a_part_of_it_is_held(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store)
    await store.add([new_task() for _ in range(3)])
    done, kept = await claim(store, puller, 1, 2)
    await store.settle(puller.id, [ended(done, State.SUCCEEDED, at=clock.now())])
    assert await claim(store, puller, 1, 2) == []
    assert keys(await store.running_tasks(puller.id)) == keys([kept])


async def test_the_numbers_of_two_pull_workers_are_their_own(store: Store) -> None:
    first, second = await enlist(store), await enlist(store)
    await store.add([new_task(), new_task()])
    assert len(await claim(store, first, 1, 1)) == len(await claim(store, second, 1, 1)) == 1


async def test_who_is_not_registered_claims_nothing(store: Store) -> None:
    await add(store)
    assert (await store.claim_for(new_id(), 1, {"work": 1}, 1)).tasks == []


async def test_a_task_that_comes_back_through_another_server_can_be_settled_at_the_first(
    store: Store, another: Another, clock: ManualClock
) -> None:
    """A server must not believe what it remembers of a pull worker's claims."""
    puller = await enlist(store)
    other = await another()
    await add(store)
    [first] = await claim(store, puller, 1)
    back = ended(first, State.PENDING, at=clock.now(), outcome=Outcome.RELEASED)
    assert await other.settle(puller.id, [back]) == [SettleVerdict.ACCEPTED]
    [second] = await claim(other, puller, 2)
    assert await store.settle(puller.id, [ended(second, State.SUCCEEDED, at=clock.now())]) == [SettleVerdict.ACCEPTED]


# ---- what it holds ----


async def test_holdings_tell_all_that_an_attempt_needs(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store)
    facts: dict[str, Any] = {"key": "k", "collection": "eu", "priority": 7, "timeout": 3.5, "retry": b'{"tries":2}'}
    facts |= {"meta": {"a": HOSTILE}, "schedule": "s", "planned_at": 5, "expires_at": clock.now() + SECOND, "submitted_by": "anna"}
    await add(store, payload=b'{"text":"\xe2\x98\x83"}', **facts)
    [task] = await claim(store, puller, 3)
    [held] = await store.running_tasks(puller.id)
    shared = [name for name in RunningTask.__struct_fields__ if name in ClaimedTask.__struct_fields__]
    assert {name: getattr(held, name) for name in shared} == {name: getattr(task, name) for name in shared}
    assert (held.claim, held.cancelling, held.claimed_at) == (3, False, clock.now())
    await store.cancel([held.id])
    assert [each.cancelling for each in await store.running_tasks(puller.id)] == [True]


async def test_holdings_are_those_of_one_worker_and_of_the_asked_tasks(store: Store, hire: Hire) -> None:
    puller, worker = await enlist(store), await hire()
    await store.add([new_task() for _ in range(4)])
    mine = await claim(store, puller, 1, 3)
    [foreign] = await worker.take()
    assert keys(await store.running_tasks(puller.id)) == keys(mine)
    assert keys(await store.running_tasks(worker.id)) == keys([foreign])
    assert keys(await store.running_tasks(puller.id, [mine[1].id, foreign.id, new_id(), HOSTILE])) == keys([mine[1]])
    assert await store.running_tasks(puller.id, []) == []
    assert await store.running_tasks("nobody") == []


async def test_holdings_come_by_claim_priority_and_due_time(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store)
    late = await add(store, due_at=clock.now() + 2)
    early = await add(store, due_at=clock.now() + 1)
    urgent = await add(store, due_at=clock.now() + 3, priority=9)
    clock.advance(1)
    await claim(store, puller, 5)
    first = await add(store)
    await claim(store, puller, 4)
    assert [held.id for held in await store.running_tasks(puller.id)] == [first.id, urgent.id, early.id, late.id]


# ---- gates ----


async def test_a_pull_worker_holds_no_gate_back(store: Store) -> None:
    puller = await enlist(store)
    await add(store)
    version = await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    reached = await barrier(store, version)
    assert (reached.confirmed, reached.waiting) == ([puller.id], [])
    assert await claim(store, puller) == []


# ---- dying ----


async def test_a_pull_worker_is_reaped_at_the_beat_that_was_seen_and_at_no_other(store: Store, clock: ManualClock) -> None:
    puller = await enlist(store)
    record = await add(store)
    [task] = await claim(store, puller)
    [seen] = await store.workers()
    await store.renew_pull_worker(puller.id)
    assert await store.reap(puller.id, seen.beat) is None
    assert await state_of(store, record) is State.RUNNING
    [seen] = await store.workers()
    assert await store.reap(puller.id, seen.beat) == 1
    assert await store.workers() == []
    assert await store.renew_pull_worker(puller.id) is False
    back = await get(store, record)
    assert (back.state, back.crashes, back.tries) == (State.PENDING, 1, 0)
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [Outcome.LOST]
    assert await store.settle(puller.id, [ended(task, State.SUCCEEDED, at=clock.now())]) == [SettleVerdict.STALE]
    assert await store.reap(puller.id, seen.beat) is None


async def test_a_time_in_which_the_reaper_could_not_look_does_not_count_against_the_living(store: Store) -> None:
    """While the store does not answer nobody can beat; who lives is heard when it answers again."""
    puller = await enlist(store, lease=15.0)
    await add(store)
    await claim(store, puller)
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=15.0)
    assert await watch(reaper, 100.0, 105.0) == 0
    assert await watch(reaper, 165.0, 168.0) == 0, "the store was away for a minute"
    await store.renew_pull_worker(puller.id)
    assert await watch(reaper, 168.0, 182.0) == 0
    assert await watch(reaper, 182.0, 184.0) == 1, "it was heard at 168, and not since"
    alarms.close()


@pytest.mark.covers("ATF.7")
async def test_the_reaper_takes_from_a_pull_worker_that_has_not_renewed_for_a_lease(store: Store) -> None:
    """Judged by the observer's own clock since it saw the last beat; a pull worker's lease is its own, not the process's."""
    puller, other = await enlist(store, lease=7.0), await enlist(store, lease=60.0)
    record = await add(store)
    await claim(store, puller)
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=15.0)
    assert await watch(reaper, 100.0, 106.9) == 0
    await store.renew_pull_worker(puller.id)
    assert await watch(reaper, 107.1, 114.0) == 0
    assert await reaper.reap(114.2) == 1
    assert [worker.id for worker in await store.workers()] == [other.id]
    assert await state_of(store, record) is State.PENDING
    alarms.close()


async def test_a_task_that_is_quarantined_counts_as_failed(store: Store) -> None:
    """A death that the task is not blamed for, and one before the last, are no failures of the task."""
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=15.0)
    blamed = await add(store)
    now = 100.0
    for death in range(1, QUARANTINE_CRASHES + 1):
        assert FigureKey(TASKS_FAILED, "work") not in reaper.totals()
        await claim(store, await enlist(store, lease=7.0))
        if death == 1:
            innocent, other = await add(store, "other"), await enlist(store, lease=7.0)
            await store.claim(other.id, 1, {"other": 1}, 1)
            assert await state_of(store, innocent) is State.RUNNING
        await watch(reaper, now, now + 10)
        now += 20
    assert await state_of(store, blamed) is State.FAILED
    counted = reaper.totals()
    assert counted[FigureKey(TASKS_FAILED, "work")] == 1
    assert FigureKey(TASKS_FAILED, "other") not in counted
    assert (counted[FigureKey(WORKERS_LOST)], counted[FigureKey(ATTEMPTS_LOST)]) == (QUARANTINE_CRASHES + 1, QUARANTINE_CRASHES + 1)
    alarms.close()


async def test_what_a_worker_runs_can_be_read_without_its_payloads(store: Store) -> None:
    puller = await enlist(store)
    record = await add(store, payload=b'{"a": 1}')
    await claim(store, puller)
    [whole] = await store.running_tasks(puller.id)
    [light] = await store.running_tasks(puller.id, payloads=False)
    assert (whole.id, whole.payload, light.payload) == (record.id, '{"a": 1}', "")
    assert msgspec.structs.replace(light, payload=whole.payload) == whole


async def test_a_claim_leaves_what_would_be_too_many_bytes(store: Store) -> None:
    puller = await enlist(store)
    large = b'{"text": "%b"}' % (b"x" * 990_000)
    for _ in range(40):
        await add(store, payload=large)
    first = await store.claim_for(puller.id, 1, {"work": PLENTY}, PLENTY)
    assert len(first.tasks) == MOST_CLAIMED_BYTES // len(large)
    assert first.next_at is not None
    assert first.next_at <= store.now()
    assert len(first.tasks) + len(await claim(store, puller, 2)) == 40
