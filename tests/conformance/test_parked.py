"""Parked tasks: their payload fits no code that has met them. They wait for other code, and for nothing else."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.query import Query
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.values import CancelVerdict, ChangeVerdict, Edit, Hint, HintKind
from tests.conformance.build import PLENTY, Worker, add, ended, error, get, needs, state_of, wait_until
from tests.conformance.conftest import Hire

MISFIT = error("InvalidPayload", "work: note is not a parameter")


async def parked(store: Store, worker: Worker, *digests: str, **options: Any) -> TaskRecord:
    """Add a task that declarations of these digests refuse, one after the other."""
    record = await add(store, **options)
    await worker.run(State.PENDING, outcome=Outcome.PARKED, refused_by=digests[0], error=MISFIT)
    for digest in digests[1:]:
        [task] = await worker.take_parked(digest)
        await worker.end(task, State.PENDING, outcome=Outcome.PARKED, refused_by=digest, error=MISFIT)
    return record


async def test_it_waits_as_pending_uses_no_try_and_tells_why(store: Store, worker: Worker) -> None:
    task = await parked(store, worker, "old")
    record = await get(store, task)
    assert (record.state, record.parked, record.attempt, record.tries, record.crashes) == (State.PENDING, True, 1, 0, 0)
    assert record.error == MISFIT
    [attempt] = await store.attempts(task.id)
    assert (attempt.outcome, attempt.error) == (Outcome.PARKED, MISFIT)


async def test_no_claim_hands_it_out_not_even_ahead(store: Store, worker: Worker, clock: ManualClock) -> None:
    await parked(store, worker, "old")
    clock.advance(3600)
    claim = await worker.claim()
    assert (claim.tasks, claim.next_at) == ([], None)


async def test_the_declaration_that_refused_it_never_meets_it_again(store: Store, worker: Worker, hire: Hire) -> None:
    await parked(store, worker, "old")
    assert await worker.take_parked("old") == []
    assert await (await hire()).take_parked("old") == []


async def test_another_declaration_gets_it_with_the_next_attempt(store: Store, hire: Hire) -> None:
    old, new = await hire(), await hire()
    task = await parked(store, old, "old", payload=b'{"note": "x"}', key="k", meta={"a": "b"})
    [claimed] = await new.take_parked("new")
    assert (claimed.id, claimed.attempt, claimed.payload, claimed.key, claimed.meta) == (task.id, 2, '{"note": "x"}', "k", {"a": "b"})
    assert (await get(store, task)).worker == new.id
    assert await new.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await state_of(store, task) is State.SUCCEEDED


async def test_one_that_fits_nobody_is_refused_once_by_each_declaration_and_rests(store: Store, worker: Worker) -> None:
    task = await parked(store, worker, "a", "b", "c")
    for digest in "abc":
        assert await worker.take_parked(digest) == []
    assert (await get(store, task)).attempt == 3
    assert len(await worker.take_parked("d")) == 1


async def test_what_refused_it_is_known_also_after_its_worker_died_and_it_came_back(store: Store, hire: Hire) -> None:
    old, new, third = await hire(), await hire(), await hire()
    task = await parked(store, old, "old")
    assert len(await new.take_parked("new")) == 1
    await store.unregister(new.id)
    # it is pending again for everybody: the old code refuses it once more, and it is parked as before
    await old.run(State.PENDING, outcome=Outcome.PARKED, refused_by="old", error=MISFIT)
    assert (await get(store, task)).parked
    assert await third.take_parked("old") == []
    assert len(await third.take_parked("new")) == 1


async def test_of_two_workers_that_claim_it_one_gets_it(store: Store, hire: Hire) -> None:
    await parked(store, await hire(), "old")
    taken = [len(await (await hire()).take_parked("new")) for _ in range(3)]
    assert taken == [1, 0, 0]


async def test_as_many_are_handed_out_as_are_wanted_and_only_of_handlers_that_are(store: Store, worker: Worker) -> None:
    for _ in range(3):
        await parked(store, worker, "old")
    assert await worker.take_parked("new", "other") == []
    assert len(await worker.take_parked("new", limit=2)) == 2
    assert await worker.take_parked("new", limit=0) == []
    assert len(await worker.take_parked("new")) == 1


async def test_higher_priority_goes_first(store: Store, worker: Worker) -> None:
    low, high = [await parked(store, worker, "old", priority=priority) for priority in (1, 9)]
    [first] = await worker.take_parked("new", limit=1)
    [second] = await worker.take_parked("new", limit=1)
    assert (first.id, second.id) == (high.id, low.id)


async def test_a_worker_that_is_not_registered_gets_none(store: Store, worker: Worker) -> None:
    await parked(store, worker, "old")
    claim = await store.claim_parked("nobody", 1, {"work": "new"}, {"work": PLENTY})
    assert claim.tasks == []


async def test_a_closed_gate_holds_it_back(store: Store, worker: Worker) -> None:
    await parked(store, worker, "old", collection="eu")
    await store.put_gate(Gate(handler="work", collection="eu", action=GateAction.PAUSE))
    assert await worker.take_parked("new") == []
    await store.remove_gate("work", "eu")
    assert len(await worker.take_parked("new")) == 1


async def test_one_whose_expiry_has_passed_or_that_is_not_due_is_not_handed_out(store: Store, worker: Worker, clock: ManualClock) -> None:
    late = await parked(store, worker, "old", expires_at=clock.now() + SECOND)
    later = await parked(store, worker, "old")
    await store.edit([Edit(id=later.id, due_at=clock.now() + 60 * SECOND)])
    clock.advance(2)
    assert await worker.take_parked("new") == []
    clock.advance(60)
    assert [task.id for task in await worker.take_parked("new")] == [later.id]
    assert await store.expire(10) == 1
    assert await state_of(store, late) is State.EXPIRED


async def test_a_cancel_that_was_requested_ends_it_instead(store: Store, worker: Worker) -> None:
    task = await add(store)
    claimed = await worker.take_one()
    assert await store.cancel([task.id]) == [CancelVerdict.CANCELLING]
    await worker.end(claimed, State.PENDING, outcome=Outcome.PARKED, refused_by="old", error=MISFIT)
    assert await state_of(store, task) is State.CANCELLED
    assert await worker.take_parked("new") == []


async def test_a_stale_report_parks_nothing_and_a_repeat_changes_nothing(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    task = await add(store)
    claimed = await first.take_one()
    facts: dict[str, Any] = {"outcome": Outcome.PARKED, "refused_by": "old", "error": MISFIT}
    assert await second.end(claimed, State.PENDING, **facts) is SettleVerdict.STALE
    assert not (await get(store, task)).parked
    assert await first.end(claimed, State.PENDING, **facts) is SettleVerdict.ACCEPTED
    assert await first.end(claimed, State.PENDING, **facts) is SettleVerdict.ALREADY
    assert (await get(store, task)).attempt == 1


async def test_in_one_batch_with_others_only_those_are_parked(store: Store, worker: Worker) -> None:
    tasks = [await add(store) for _ in range(3)]
    claimed = {task.id: task for task in await worker.take()}
    now = store.now()
    settlements = [
        ended(claimed[tasks[0].id], State.SUCCEEDED, at=now),
        ended(claimed[tasks[1].id], State.PENDING, at=now, outcome=Outcome.PARKED, refused_by="old"),
        ended(claimed[tasks[2].id], State.PENDING, at=now, outcome=Outcome.RELEASED),
    ]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ACCEPTED] * 3
    records = [await get(store, task) for task in tasks]
    assert [(record.state, record.parked) for record in records] == [
        (State.SUCCEEDED, False),
        (State.PENDING, True),
        (State.PENDING, False),
    ]


async def test_its_children_wait_and_go_on_when_it_has_succeeded(store: Store, worker: Worker) -> None:
    task = await parked(store, worker, "old")
    child = await add(store, "child", edges=(needs(task),))
    assert await state_of(store, child) is State.BLOCKED
    [claimed] = await worker.take_parked("new")
    await worker.end(claimed, State.SUCCEEDED)
    assert await state_of(store, child) is State.PENDING


async def test_lists_have_it_among_the_pending_ones_in_their_order_page_by_page(store: Store, worker: Worker, clock: ManualClock) -> None:
    expected: list[str] = []
    for number in range(7):
        clock.advance(1)
        record = await parked(store, worker, "old") if number % 2 else await add(store, due_at=clock.now() + 3600 * SECOND)
        expected.insert(0, record.id)
    for query, meant in (
        (Query(state=State.PENDING, limit=2), expected),
        (Query(limit=2), expected),
        (Query(parked=True, limit=2), expected[1::2]),
        (Query(parked=False, limit=2), expected[::2]),
        (Query(parked=False, state=State.PENDING, limit=2), expected[::2]),
    ):
        listed: list[str] = []
        cursor = None
        while True:
            page = await store.page(replace(query, cursor=cursor))
            listed += [record.id for record in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert listed == meant, query


async def test_upkeep_forgets_what_refused_it_only_after_its_end(store: Store, worker: Worker) -> None:
    await parked(store, worker, "a", "b")
    await store.tidy()
    assert await worker.take_parked("b") == []
    [task] = await worker.take_parked("c")
    await store.tidy()
    await worker.end(task, State.PENDING, outcome=Outcome.PARKED, refused_by="c", error=MISFIT)
    assert await worker.take_parked("a") == []
    await store.cancel([task.id])
    await store.tidy()
    assert await store.inspect(repair=False) == []


async def test_parking_wakes_whoever_listens(store: Store, worker: Worker) -> None:
    hints: list[Hint] = []
    listener = store.listen(hints.append)
    try:
        await parked(store, worker, "old")
        await wait_until(lambda: any(hint.kind is HintKind.PARKED for hint in hints), "a wake-up for a parked task")
    finally:
        listener.close()


async def test_another_payload_lets_every_declaration_meet_it_again(store: Store, worker: Worker) -> None:
    task = await parked(store, worker, "a", "b", payload=b'{"order": 1}')
    assert await store.edit([Edit(id=task.id, payload=b'{"order_id": 1}')]) == [ChangeVerdict.CHANGED]
    record = await get(store, task)
    assert (record.payload, record.state, record.parked) == (b'{"order_id": 1}', State.PENDING, False)
    claimed = await worker.take_one()
    assert (claimed.id, claimed.payload, claimed.attempt) == (task.id, '{"order_id": 1}', 3)
    # what refused the former payload says nothing of this one
    await worker.end(claimed, State.PENDING, outcome=Outcome.PARKED, refused_by="c", error=MISFIT)
    assert len(await worker.take_parked("a")) == 1
