"""Failures are counted by kind: exactly, whoever fails, folds and dies meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from duetime.clock import DAY, MINUTE, SECOND, ManualClock
from duetime.model.failures import FINE, FINE_FOR, KEPT_FOR, FailureGroup, fingerprint
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.query import Query
from duetime.model.task import ErrorInfo, State
from duetime.store import Store
from duetime.store.values import ClaimedTask, Declaration
from tests.conformance.build import Worker, add, ended, error
from tests.conformance.conftest import Another, Dead, Hire


def failure(type: str = "ValueError", message: str = "no order 7", handler: str = "work") -> dict[str, Any]:
    """Return what a settlement says of a failure."""
    said = error(type, message)
    return {"error": msgspec.structs.replace(said, fingerprint=fingerprint(handler, said, None)), "handler": handler}


@dataclass
class Sums:
    attempts: int
    tasks: int


async def sums(store: Store, since: int = 0) -> dict[str, Sums]:
    """Return what is counted of each type of error."""
    return {group.facts.kind.type: totals(group) for group in await store.failures(since)}


def totals(group: FailureGroup) -> Sums:
    return Sums(sum(each.attempts for each in group.buckets), sum(each.tasks for each in group.buckets))


async def only(store: Store, since: int = 0) -> FailureGroup:
    [group] = await store.failures(since)
    return group


async def fail(store: Store, worker: Worker, of: str = "work", **said: Any) -> ClaimedTask:
    await add(store, of)
    task = await worker.take_one(of)
    assert await worker.end(task, State.FAILED, **(failure(handler=of) | said)) is SettleVerdict.ACCEPTED
    return task


async def test_failing_attempts_and_failed_tasks_are_counted_by_kind_before_and_after_folding(store: Store, worker: Worker) -> None:
    for _ in range(3):
        await add(store)
    taken = await worker.take()
    now = store.now()
    settlements = [
        ended(taken[0], State.PENDING, at=now, due_at=now + DAY, **failure()),
        ended(taken[1], State.FAILED, at=now, **failure()),
        ended(taken[2], State.FAILED, at=now, **failure("KeyError")),
    ]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ACCEPTED] * 3
    expected = {"ValueError": Sums(2, 1), "KeyError": Sums(1, 1)}
    assert await sums(store) == expected
    assert await store.fold_failures() == 2
    assert await sums(store) == expected
    assert await store.fold_failures() == 0


async def test_what_succeeds_asks_for_later_or_is_released_is_not_counted(store: Store, worker: Worker) -> None:
    for outcome in (Outcome.RETRY_LATER, Outcome.RELEASED):
        task = await add(store, due_at=store.now())
        await worker.run(State.PENDING, outcome=outcome, error=error(), due_at=store.now() + DAY)
        await store.cancel([task.id])
    await add(store)
    await worker.run(State.SUCCEEDED)
    assert await store.failures(0) == []
    assert await store.fold_failures() == 0


async def test_a_repeated_or_stale_settlement_is_not_counted(store: Store, worker: Worker, hire: Hire) -> None:
    await add(store)
    task = await worker.take_one()
    settlement = ended(task, State.FAILED, at=store.now(), **failure())
    other = await hire()
    assert await store.settle(other.id, [settlement]) == [SettleVerdict.STALE]
    assert await store.failures(0) == []
    assert await store.settle(worker.id, [settlement, settlement]) == [SettleVerdict.ACCEPTED, SettleVerdict.ALREADY]
    assert await store.settle(worker.id, [settlement]) == [SettleVerdict.ALREADY]
    assert await sums(store) == {"ValueError": Sums(1, 1)}


async def test_what_a_dead_worker_ran_is_counted(store: Store, dead_worker: Dead) -> None:
    await add(store)
    dead = await dead_worker(holding=1)
    [beat] = [record.beat for record in await store.workers() if record.id == dead]
    assert await store.reap(dead, beat) == 1
    group = await only(store)
    assert (group.facts.kind.type, group.facts.kind.handler) == ("WorkerDied", "work")
    assert totals(group) == Sums(1, 0)


async def test_a_group_says_when_it_was_first_and_last_seen_and_by_which_task(store: Store, worker: Worker, clock: ManualClock) -> None:
    first_at = store.now()
    await fail(store, worker)
    await store.fold_failures()
    clock.advance(3_600)
    last = await fail(store, worker, error=failure(message="no order 8")["error"])
    for _ in range(2):
        group = await only(store)
        assert (group.facts.first_at, group.facts.last_at) == (first_at, store.now())
        assert (group.facts.sample, group.facts.kind.message) == (last.id, "no order #")
        assert [bucket.attempts for bucket in group.buckets] == [1, 1]
        await store.fold_failures()


async def test_groups_are_listed_latest_first_with_counts_since_an_instant(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fail(store, worker, **failure("KeyError"))
    await fail(store, worker)
    clock.advance(7_200)
    between = store.now() - 3_600 * SECOND
    await fail(store, worker, **failure("KeyError"))
    for _ in range(2):
        assert [group.facts.kind.type for group in await store.failures(0)] == ["KeyError", "ValueError"]
        assert await sums(store, between) == {"KeyError": Sums(1, 1)}
        await store.fold_failures()


async def test_a_group_is_found_by_its_fingerprint_whenever_it_was_seen(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fail(store, worker)
    wanted = failure()["error"].fingerprint
    clock.advance(86_400)
    for _ in range(2):
        group = await store.failure(wanted, store.now())
        assert group is not None
        assert group.fingerprint == wanted
        assert group.buckets == []
        assert await store.failure("0" * 16, 0) is None
        await store.fold_failures()


async def test_groups_of_a_handler_are_found_by_all_its_names(store: Store, worker: Worker) -> None:
    await fail(store, worker)
    await fail(store, worker, "other")
    await store.declare([Declaration(name="renamed", aliases=("work",))])
    for _ in range(2):
        for name in ("work", "renamed"):
            assert [group.facts.kind.handler for group in await store.failures(0, handler=name)] == ["work"]
        assert await store.failures(0, handler="nobody") == []
        await store.fold_failures()


async def test_a_group_is_muted_until_an_instant_also_before_it_is_folded(store: Store, worker: Worker) -> None:
    await fail(store, worker)
    wanted, until_at = failure()["error"].fingerprint, store.now() + DAY
    assert await store.mute_failure(wanted, until_at, "kim")
    assert not await store.mute_failure("0" * 16, until_at, "kim")
    group = await only(store)
    assert (group.muted_until_at, group.muted_by) == (until_at, "kim")
    await fail(store, worker)
    await store.fold_failures()
    group = await only(store)
    assert (group.muted_until_at, totals(group)) == (until_at, Sums(2, 2)), "later failures are counted, and leave the mark"
    assert await store.mute_failure(wanted, None, "kim")
    group = await only(store)
    assert (group.muted_until_at, group.muted_by) == (None, "")


async def test_old_counts_are_kept_by_the_hour_and_go_with_their_group_in_the_end(store: Store, worker: Worker, clock: ManualClock) -> None:
    start = store.now() - store.now() % (60 * MINUTE)
    clock.set(start + 60 * MINUTE)
    for _ in range(3):
        await fail(store, worker)
        clock.advance(FINE / SECOND)
    assert len((await only(store)).buckets) == 3
    assert await store.prune_failures() == 0
    assert len((await only(store)).buckets) == 3
    clock.advance(FINE_FOR / SECOND + 3_600)
    assert await store.prune_failures() == 0
    group = await only(store)
    assert [(bucket.at, bucket.attempts, bucket.tasks) for bucket in group.buckets] == [(start + 60 * MINUTE, 3, 3)]
    clock.advance((KEPT_FOR - FINE_FOR) / SECOND)
    assert await store.prune_failures() == 1
    assert await store.failures(0) == []


async def test_a_muted_group_stays_until_that_is_over(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fail(store, worker)
    await store.mute_failure(failure()["error"].fingerprint, store.now() + KEPT_FOR + 2 * DAY, "kim")
    clock.advance(KEPT_FOR / SECOND + 86_400)
    assert await store.prune_failures() == 0
    assert (await only(store)).buckets == []
    clock.advance(86_400)
    assert await store.prune_failures() == 1


async def test_of_too_many_groups_the_oldest_go(store: Store, worker: Worker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sqlite", "postgres"):
        monkeypatch.setattr(f"duetime.store.{module}.failures.MOST_GROUPS", 2)
    for number in range(3):
        await fail(store, worker, **failure(f"Error{number}"))
        clock.advance(1)
    assert await store.prune_failures() == 1
    assert await sums(store) == {"Error1": Sums(1, 1), "Error2": Sums(1, 1)}


async def test_whatever_an_error_says_is_counted(store: Store, worker: Worker) -> None:
    odd = {"größer'; drop table x --": "\0 \x7f 💥 {} $1", 'E\\"{},': "NULL", "Huge": "x" * 2_000}
    for type, message in odd.items():
        await fail(store, worker, **failure(type, message))
    await store.fold_failures()
    assert set(await sums(store)) == set(odd)


async def test_finished_tasks_are_found_by_their_fingerprint(store: Store, worker: Worker, clock: ManualClock) -> None:
    wanted = failure()["error"].fingerprint
    found = []
    for _ in range(3):
        found.append((await fail(store, worker)).id)
        clock.advance(1)
    await fail(store, worker, **failure("KeyError"))
    await add(store)
    await worker.run(State.SUCCEEDED)
    await add(store)
    await worker.end(await worker.take_one(), State.PENDING, due_at=store.now() + DAY, **failure())
    for state in (State.FAILED, None):
        page = await store.page(Query(fingerprint=wanted, state=state, limit=2))
        more = await store.page(Query(fingerprint=wanted, state=state, limit=2, cursor=page.next))
        assert [task.id for task in [*page.items, *more.items]] == found[::-1]
        assert more.next is None
    assert (await store.page(Query(fingerprint=wanted, state=State.SUCCEEDED))).items == []
    assert (await store.page(Query(fingerprint="0" * 16))).items == []
    assert (await store.page(Query(fingerprint=wanted))).items[0].error == failure()["error"], "the error tells it too"
    await store.retry(found[:1])
    assert [task.id for task in (await store.page(Query(fingerprint=wanted))).items] == found[:0:-1]


async def test_counts_are_exact_while_several_fold_settle_and_read_at_once(store: Store, another: Another, hire: Hire) -> None:
    stores = [store, await another(), await another()]
    workers = [await hire(at) for at in stores[:2]]
    each = 40
    for _ in range(2 * each):
        await add(store)

    async def work(worker: Worker) -> None:
        for _ in range(each):
            await worker.end(await worker.take_one(), State.FAILED, **failure())

    done = asyncio.Event()

    async def folding(at: Store) -> int:
        count = 0
        while not done.is_set():
            count += await at.fold_failures()
            await asyncio.sleep(0)
        return count + await at.fold_failures()

    async def reading() -> None:
        seen = 0
        while not done.is_set():
            now_seen = (await sums(stores[2])).get("ValueError", Sums(0, 0)).attempts
            assert now_seen >= seen, "a fold hides nothing for a moment"
            seen = now_seen
            await asyncio.sleep(0)

    others = [asyncio.create_task(folding(at)) for at in stores[1:]]
    reader = asyncio.create_task(reading())
    await asyncio.gather(*map(work, workers))
    done.set()
    await reader
    assert sum(await asyncio.gather(*others)) + await store.fold_failures() == 2 * each
    assert await sums(store) == {"ValueError": Sums(2 * each, 2 * each)}


def test_an_error_without_a_fingerprint_is_no_failure() -> None:
    assert ErrorInfo("RetryLater", "").fingerprint == ""
