"""Guests: workers that a server speaks for. They live by beats in their rows, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.duties import Reaper
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome, Verdict
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store.guests import Guest, Holding
from duetime.store.protocol import ClaimedTask, Store
from tests.conformance.build import PLENTY, Worker, add, ended, get, state_of, watch, wish
from tests.conformance.conftest import Another, Hire

HOSTILE = "'); drop table duetime_worker; -- \" \\ {} %s $1 \N{SNOWMAN}\U0001f600"


async def admit(store: Store, **facts: Any) -> Guest:
    guest = Guest(**{"id": new_id(), "name": "resizer", "slots": {"work": 10}, "lease": 30.0, **facts})
    await store.admit(guest)
    return guest


async def claim(store: Store, guest: Guest, number: int = 1, limit: int = PLENTY) -> list[ClaimedTask]:
    return (await store.claim_for(guest.id, number, {"work": PLENTY}, limit)).tasks


def keys(tasks: list[ClaimedTask] | list[Holding]) -> list[tuple[str, int]]:
    return sorted((task.id, task.attempt) for task in tasks)


# ---- being registered ----


async def test_a_guest_is_given_back_as_it_was_admitted(store: Store) -> None:
    guest = await admit(store, name=HOSTILE, slots={HOSTILE: 3, "b": 7}, lease=5.5)
    assert await store.guest(guest.id) == guest
    assert await store.guest(new_id()) is None
    assert await store.guest(HOSTILE) is None


async def test_a_guest_is_listed_as_a_worker_whose_beats_must_be_watched(store: Store, clock: ManualClock) -> None:
    guest = await admit(store, lease=7.0)
    await store.add([wish(), wish()])
    await claim(store, guest)
    clock.advance(2)
    await store.renew_guest(guest.id)
    [record] = await store.workers()
    assert (record.id, record.host, dict(record.slots), record.lease) == (guest.id, "resizer", {"work": 10}, 7.0)
    assert (record.guest, record.alive, record.running) == (True, None, 2)
    assert (record.started_at, record.beat_at) == (clock.now() - 2 * SECOND, clock.now())
    await store.unregister(guest.id)
    assert await store.workers() == []


async def test_a_worker_is_no_guest(store: Store, worker: Worker) -> None:
    [before] = await store.workers()
    assert before.guest is False
    assert await store.guest(worker.id) is None
    assert await store.renew_guest(worker.id) is False
    await store.admit(Guest(id=worker.id, name="impostor", slots={}, lease=5.0))
    [after] = await store.workers()
    assert (after.guest, after.host, after.beat, after.slots) == (False, before.host, before.beat, before.slots)


async def test_renewing_beats_as_long_as_the_guest_is_registered(store: Store) -> None:
    guest = await admit(store)
    [before] = await store.workers()
    assert await store.renew_guest(guest.id) is True
    [after] = await store.workers()
    assert after.beat > before.beat
    await store.unregister(guest.id)
    assert await store.renew_guest(guest.id) is False
    assert await store.renew_guest(HOSTILE) is False


async def test_a_guest_that_is_admitted_again_keeps_what_it_holds(store: Store) -> None:
    guest = await admit(store)
    record = await add(store)
    await claim(store, guest)
    [before] = await store.workers()
    again = await admit(store, id=guest.id, name="other", slots={"work": 2}, lease=60.0)
    [after] = await store.workers()
    assert await store.guest(guest.id) == again
    assert after.beat > before.beat
    assert [held.id for held in await store.holdings(guest.id)] == [record.id]


# ---- claiming ----


async def test_a_guest_claims_and_settles_like_a_worker(store: Store, clock: ManualClock) -> None:
    guest = await admit(store)
    record = await add(store)
    [task] = await claim(store, guest)
    assert (task.id, task.attempt) == (record.id, 1)
    running = await get(store, record)
    assert (running.state, running.worker, running.started_at) == (State.RUNNING, guest.id, clock.now())
    done = ended(task, State.SUCCEEDED, at=clock.now(), result=b"7")
    assert await store.settle(guest.id, [done]) == [Verdict.ACCEPTED]
    assert await store.settle(guest.id, [done]) == [Verdict.ALREADY]
    assert await state_of(store, record) is State.SUCCEEDED


async def test_a_repeated_claim_takes_nothing_more(store: Store, another: Another) -> None:
    guest = await admit(store)
    other = await another()
    await store.add([wish() for _ in range(6)])
    first = await claim(store, guest, 7, 3)
    assert len(first) == 3
    assert await claim(store, guest, 7, 3) == []
    assert await claim(other, guest, 7, 3) == []
    assert keys(await other.holdings(guest.id)) == keys(first)
    assert len(await claim(other, guest, 8, 3)) == 3


async def test_a_repeated_claim_takes_nothing_more_while_a_part_of_it_is_held(store: Store, clock: ManualClock) -> None:
    guest = await admit(store)
    await store.add([wish() for _ in range(3)])
    done, kept = await claim(store, guest, 1, 2)
    await store.settle(guest.id, [ended(done, State.SUCCEEDED, at=clock.now())])
    assert await claim(store, guest, 1, 2) == []
    assert keys(await store.holdings(guest.id)) == keys([kept])


async def test_the_numbers_of_two_guests_are_their_own(store: Store) -> None:
    first, second = await admit(store), await admit(store)
    await store.add([wish(), wish()])
    assert len(await claim(store, first, 1, 1)) == len(await claim(store, second, 1, 1)) == 1


async def test_who_is_not_registered_claims_nothing(store: Store) -> None:
    await add(store)
    assert (await store.claim_for(new_id(), 1, {"work": 1}, 1)).tasks == []


async def test_a_task_that_comes_back_through_another_server_can_be_settled_at_the_first(
    store: Store, another: Another, clock: ManualClock
) -> None:
    """A server must not believe what it remembers of a guest's claims."""
    guest = await admit(store)
    other = await another()
    await add(store)
    [first] = await claim(store, guest, 1)
    back = ended(first, State.PENDING, at=clock.now(), outcome=Outcome.RELEASED)
    assert await other.settle(guest.id, [back]) == [Verdict.ACCEPTED]
    [second] = await claim(other, guest, 2)
    assert await store.settle(guest.id, [ended(second, State.SUCCEEDED, at=clock.now())]) == [Verdict.ACCEPTED]


# ---- what it holds ----


async def test_holdings_tell_all_that_an_attempt_needs(store: Store, clock: ManualClock) -> None:
    guest = await admit(store)
    facts: dict[str, Any] = {"key": "k", "collection": "eu", "priority": 7, "timeout": 3.5, "retry": b'{"attempts":2}'}
    facts |= {"meta": {"a": HOSTILE}, "schedule": "s", "planned_at": 5, "expires_at": clock.now() + SECOND, "submitted_by": "anna"}
    await add(store, payload=b'{"text":"\xe2\x98\x83"}', **facts)
    [task] = await claim(store, guest, 3)
    [held] = await store.holdings(guest.id)
    shared = [name for name in Holding.__struct_fields__ if name in ClaimedTask.__struct_fields__]
    assert {name: getattr(held, name) for name in shared} == {name: getattr(task, name) for name in shared}
    assert (held.claim, held.cancelling, held.claimed_at) == (3, False, clock.now())
    await store.cancel([held.id])
    assert [each.cancelling for each in await store.holdings(guest.id)] == [True]


async def test_holdings_are_those_of_one_worker_and_of_the_asked_tasks(store: Store, hire: Hire) -> None:
    guest, worker = await admit(store), await hire()
    await store.add([wish() for _ in range(4)])
    mine = await claim(store, guest, 1, 3)
    [foreign] = await worker.take()
    assert keys(await store.holdings(guest.id)) == keys(mine)
    assert keys(await store.holdings(worker.id)) == keys([foreign])
    assert keys(await store.holdings(guest.id, [mine[1].id, foreign.id, new_id(), HOSTILE])) == keys([mine[1]])
    assert await store.holdings(guest.id, []) == []
    assert await store.holdings("nobody") == []


async def test_holdings_come_by_claim_priority_and_due_time(store: Store, clock: ManualClock) -> None:
    guest = await admit(store)
    late = await add(store, due_at=clock.now() + 2)
    early = await add(store, due_at=clock.now() + 1)
    urgent = await add(store, due_at=clock.now() + 3, priority=9)
    clock.advance(1)
    await claim(store, guest, 5)
    first = await add(store)
    await claim(store, guest, 4)
    assert [held.id for held in await store.holdings(guest.id)] == [first.id, urgent.id, early.id, late.id]


# ---- gates ----


async def test_a_guest_holds_no_gate_back(store: Store) -> None:
    guest = await admit(store)
    await add(store)
    version = await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    barrier = await store.barrier(version)
    assert (barrier.confirmed, barrier.waiting) == ([guest.id], [])
    assert await claim(store, guest) == []


# ---- dying ----


async def test_a_guest_is_reaped_at_the_beat_that_was_seen_and_at_no_other(store: Store, clock: ManualClock) -> None:
    guest = await admit(store)
    record = await add(store)
    [task] = await claim(store, guest)
    [seen] = await store.workers()
    await store.renew_guest(guest.id)
    assert await store.reap(guest.id, seen.beat) is None
    assert await state_of(store, record) is State.RUNNING
    [seen] = await store.workers()
    assert await store.reap(guest.id, seen.beat) == 1
    assert await store.workers() == []
    assert await store.renew_guest(guest.id) is False
    back = await get(store, record)
    assert (back.state, back.crashes, back.tries) == (State.PENDING, 1, 0)
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [Outcome.LOST]
    assert await store.settle(guest.id, [ended(task, State.SUCCEEDED, at=clock.now())]) == [Verdict.STALE]
    assert await store.reap(guest.id, seen.beat) is None


async def test_a_time_in_which_the_reaper_could_not_look_does_not_count_against_the_living(store: Store) -> None:
    """While the store does not answer nobody can beat; who lives is heard when it answers again."""
    guest = await admit(store, lease=15.0)
    await add(store)
    await claim(store, guest)
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=15.0)
    assert await watch(reaper, 100.0, 105.0) == 0
    assert await watch(reaper, 165.0, 168.0) == 0, "the store was away for a minute"
    await store.renew_guest(guest.id)
    assert await watch(reaper, 168.0, 182.0) == 0
    assert await watch(reaper, 182.0, 184.0) == 1, "it was heard at 168, and not since"
    alarms.close()


@pytest.mark.covers("ATF.7")
async def test_the_reaper_takes_from_a_guest_that_has_not_beaten_for_a_lease(store: Store) -> None:
    """Judged by the observer's own clock since it saw the last beat; a guest's lease is its own, not the process's."""
    guest, other = await admit(store, lease=7.0), await admit(store, lease=60.0)
    record = await add(store)
    await claim(store, guest)
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=15.0)
    assert await watch(reaper, 100.0, 106.9) == 0
    await store.renew_guest(guest.id)
    assert await watch(reaper, 107.1, 114.0) == 0
    assert await reaper.reap(114.2) == 1
    assert [worker.id for worker in await store.workers()] == [other.id]
    assert await state_of(store, record) is State.PENDING
    alarms.close()
