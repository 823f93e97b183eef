"""Races between reapers, workers and crashes of the server, each driven step by step to the moment at which it was lost elsewhere.

The numbers are those of the list of tests that real schedulers failed.
"""

import asyncio

import pytest

from duetime.duties import Reaper
from duetime.errors import StoreUnavailable
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store.values import AddVerdict
from tests.chaos.ground import Ground
from tests.chaos.stepping import beat_of, half_way, hire, opened, reap
from tests.conformance.build import add, ended, get, new_task, state_of


async def test_t1_a_task_that_ends_between_a_reapers_look_and_its_write_stays_ended(postgres_url: str) -> None:
    """T1: the settle commits after the reaper has begun, and the reaper waits for it in the middle of its transaction."""
    async with opened(postgres_url) as store, opened(postgres_url) as other, half_way(postgres_url) as settling:
        await store.add([new_task() for _ in range(3)])
        worker = await hire(store)
        first, second, third = await worker.take()
        assert await worker.end(first, State.SUCCEEDED) is SettleVerdict.ACCEPTED  # the look comes after this and before the rest
        beat = await beat_of(other, worker)
        accepted, finals, _ = await settling.settle(worker.id, [ended(second, State.SUCCEEDED, at=store.now())])
        assert (accepted, finals) == (None, 1)
        reaping = asyncio.create_task(other.reap(worker.id, beat))
        await settling.someone_waits()
        await settling.commit()
        assert await reaping == 1, "only the third is left to take"
        assert [await state_of(store, task) for task in (first, second, third)] == [State.SUCCEEDED, State.SUCCEEDED, State.PENDING]
        successor = await hire(other)
        assert [(task.id, task.attempt) for task in await successor.take()] == [(third.id, 2)]
        assert await worker.end(third, State.SUCCEEDED) is SettleVerdict.STALE
        assert await store.inspect(repair=False) == []


async def test_t1_a_settle_that_comes_while_a_reaper_works_is_told_that_it_is_too_late(postgres_url: str) -> None:
    """T1, the other way round: the reaper was first and the settle waits for it."""
    async with opened(postgres_url) as store, opened(postgres_url) as other, half_way(postgres_url) as holding:
        task = await add(store)
        worker = await hire(store)
        claimed = await worker.take_one()
        await holding.lock_claims(worker.id)
        reaping = asyncio.create_task(other.reap(worker.id, await beat_of(other, worker)))
        await holding.someone_waits()
        async with half_way(postgres_url) as settling:
            ending = asyncio.create_task(settling.settle(worker.id, [ended(claimed, State.SUCCEEDED, at=store.now())]))
            await holding.rollback()
            assert await reaping == 1
            assert (await ending)[:2] == ([], 0)
        assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.STALE
        record = await get(store, task)
        assert (record.state, record.attempt, record.crashes) == (State.PENDING, 1, 1)


async def test_t2_a_second_reaper_with_an_old_list_takes_nothing(postgres_url: str) -> None:
    """T2: both have seen the same dead worker; it is reaped, registers again and goes on before the second one acts."""
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        task = await add(store)
        worker = await hire(store)
        lost = await worker.take_one()
        [seen] = await other.workers()
        assert await store.reap(worker.id, seen.beat) == 1
        assert await other.reap(worker.id, seen.beat) is None
        again = await hire(store, worker.id)
        claimed = await again.take_one()
        assert await other.reap(worker.id, seen.beat) is None, "it lives, whatever the old list says"
        assert await worker.end(lost, State.SUCCEEDED) is SettleVerdict.STALE
        assert await again.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
        record = await get(store, task)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 2)


async def test_t3_a_server_that_dies_in_the_middle_of_a_reaping_loses_and_doubles_nothing() -> None:
    """T3: the reaper's transaction has begun, waits, and goes down with the server; the next one does it whole."""
    async with Ground() as ground, opened(ground.url) as store, opened(ground.url) as other:
        await store.add([new_task() for _ in range(5)])
        worker = await hire(store)
        claimed = await worker.take()
        assert await worker.end(claimed[0], State.SUCCEEDED) is SettleVerdict.ACCEPTED
        beat = await beat_of(store, worker)
        async with half_way(ground.url) as holding:
            await holding.lock_claims(worker.id)
            reaping = asyncio.create_task(other.reap(worker.id, beat))
            await holding.someone_waits()
            await asyncio.to_thread(ground.server.kill)
        with pytest.raises(StoreUnavailable):
            await reaping
        await asyncio.to_thread(ground.server.start)
        assert [each.running for each in await store.workers()] == [4], "as if nobody had tried"
        assert await asyncio.gather(reap(store, worker), reap(other, worker), return_exceptions=True) is not None
        assert await store.workers() == []
        states = [await state_of(store, task) for task in claimed]
        assert states == [State.SUCCEEDED] + [State.PENDING] * 4
        successor = await hire(other)
        assert {(task.id, task.attempt) for task in await successor.take()} == {(task.id, 2) for task in claimed[1:]}
        assert await store.inspect(repair=False) == []


async def test_t5_a_reaper_that_dies_half_way_leaves_the_work_to_the_next(postgres_url: str) -> None:
    """T5: the duty that takes tasks back is itself cut off, in the middle of its transaction."""
    async with opened(postgres_url) as store, opened(postgres_url) as other, half_way(postgres_url) as holding:
        await store.add([new_task() for _ in range(3)])
        worker = await hire(store)
        claimed = await worker.take()
        await holding.lock_claims(worker.id)
        dying = asyncio.create_task(other.reap(worker.id, await beat_of(other, worker)))
        await holding.someone_waits()
        dying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dying
        await holding.rollback()
        assert await reap(store, worker) == 3
        assert {await state_of(store, task) for task in claimed} == {State.PENDING}
        assert await store.inspect(repair=False) == []


async def test_t7_a_worker_that_dies_between_claim_and_start_takes_no_slot_with_it(postgres_url: str) -> None:
    """T7: there are no limits over all workers yet that a dead one could use up; what it held is its tasks, and their keys."""
    async with opened(postgres_url) as store:
        task = await add(store, key="only one")
        doomed = await hire(store)
        await doomed.take_one()  # and never starts it
        assert await reap(store, doomed) == 1
        successor = await hire(store)
        claimed = await successor.take_one()
        assert (claimed.id, claimed.attempt, claimed.tries) == (task.id, 2, 0)
        assert await successor.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
        await add(store, key="only one")


async def test_t10_what_has_succeeded_stays_so_when_its_worker_dies_right_after(postgres_url: str) -> None:
    """T10: the outcome is written, the claim still names the task, and nobody is left to clean up."""
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await store.add([new_task() for _ in range(2)])
        worker = await hire(store)
        done, left = await worker.take()
        assert await worker.end(done, State.SUCCEEDED) is SettleVerdict.ACCEPTED
        assert await reap(other, worker) == 1
        assert await state_of(other, done) is State.SUCCEEDED
        assert await state_of(other, left) is State.PENDING
        assert [attempt.outcome for attempt in await store.attempts(done.id)] == [Outcome.SUCCEEDED]
        assert await worker.end(done, State.SUCCEEDED) is SettleVerdict.ALREADY
        assert await store.inspect(repair=False) == []


@pytest.mark.parametrize("key", [None, "one"])
async def test_a_repeated_submitting_that_meets_the_end_of_its_task_does_not_bring_it_back(postgres_url: str, key: str | None) -> None:
    """The first reply was lost, so the client asks again, at the moment at which the task ends."""
    async with opened(postgres_url) as store, half_way(postgres_url) as settling:
        new = new_task(key=key)
        await store.add([new])
        worker = await hire(store)
        claimed = await worker.take_one()
        await settling.settle(worker.id, [ended(claimed, State.SUCCEEDED, at=store.now())])
        repeating = asyncio.create_task(store.add([new]))
        if key is None:
            [added] = await repeating
            assert (added.verdict, added.record.state) == (AddVerdict.REPEATED, State.RUNNING)
        else:
            await settling.someone_waits()  # what may be new is stored at once, and meets the row that is about to go
        await settling.commit()
        [added] = await repeating
        assert added.verdict is AddVerdict.REPEATED
        [added] = await store.add([new])
        assert (added.verdict, added.record.state) == (AddVerdict.REPEATED, State.SUCCEEDED)
        assert await worker.take() == []
        assert await store.inspect(repair=False) == []


async def test_t14_a_reaper_that_was_paused_for_longer_than_a_lease_takes_nothing_from_the_living() -> None:
    """T14: there are no schedules yet, which a paused scheduler could fire again; a paused reaper is what there is.

    Its look at the workers hangs for longer than a lease and then shows a beat as new as the answer; by the time at which the
    look began that beat would be old.
    """
    lease = 1.0
    async with Ground() as ground, opened(ground.look_url) as store, opened(ground.url) as other:
        await add(store)
        worker = await hire(store, lease=lease)
        await worker.take_one()
        alarms = Alarms()
        reaper = Reaper(other, alarms, lease=lease)
        ground.proxy.hold()
        looking = asyncio.create_task(reaper.reap())
        for _ in range(6):
            await asyncio.sleep(lease / 4)
            await asyncio.to_thread(worker.lease.renew)
        ground.proxy.heal()
        assert await looking == 0
        assert await reaper.reap() == 0, "it has beaten a moment ago"
        assert [each.running for each in await store.workers()] == [1]
        worker.lease.close()
        alarms.close()
