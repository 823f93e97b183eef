"""Automatic gates: failures in a row close one, over all workers, one probe at a time passes it, and a success opens it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.disabling import DisableAfter, Observed
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Unavailable
from duetime.store import Store
from duetime.store.access import AuditFilter
from duetime.store.values import Declaration
from tests.conformance.build import Worker, add, new_task
from tests.conformance.conftest import Another, Hire

RULE = DisableAfter(3, lasting=60, probe_every=100)
AWAY = Unavailable("nats://broker cannot be reached", 20.0)
BUSY = Unavailable("it says when to come again (Retry-After), last: 429")


async def failing(store: Store, failures: int = 1, *, handler: str = "work", worker: str = "w", **facts: Any) -> bool:
    gates = await store.gates()
    facts = {"since_at": store.now(), "last": "503", "rule": RULE, "seen_gates": gates.version, **facts}
    return await store.observe(worker, [Observed(handler=handler, failures=failures, **facts)])


async def succeeding(store: Store, *, handler: str = "work", **facts: Any) -> bool:
    return await store.observe("w", [Observed(handler=handler, succeeded=True, **facts)])


async def unavailable(store: Store, what: Unavailable, again_at: int, **facts: Any) -> bool:
    seen = (await store.gates()).version
    return await store.observe("w", [Observed(handler="work", unavailable=what, again_at=again_at, seen_gates=seen, **facts)])


async def closed(store: Store) -> list[Gate]:
    return (await store.gates()).as_set


async def disabled(store: Store, clock: ManualClock) -> Gate:
    assert not await failing(store, 2)
    clock.advance(60)
    assert await failing(store)
    [gate] = await closed(store)
    return gate


async def probed(worker: Worker, *handlers: str) -> list[str]:
    return [task.id for task in await worker.probe(*handlers)]


# ---- closing ----


async def test_failures_in_a_row_close_a_gate_that_says_why(store: Store, clock: ManualClock) -> None:
    clock.set(1_800_000_000 * SECOND)
    gate = await disabled(store, clock)
    assert (gate.handler, gate.collection, gate.action, gate.until_at) == ("work", None, GateAction.PAUSE, None)
    assert (gate.automatic, gate.set_by, gate.set_at, gate.probe_every) == (True, "duetime", clock.now(), 100.0)
    assert gate.probe_at == clock.now() + 100 * SECOND
    assert gate.note == "disabled: 3 failures since 08:00 UTC, last: 503"


async def test_a_burst_of_failures_closes_nothing_before_its_time(store: Store, clock: ManualClock) -> None:
    assert not await failing(store, 1_000)
    clock.advance(59)
    assert not await failing(store, 1_000)
    assert await closed(store) == []
    clock.advance(1)
    assert await failing(store)


async def test_a_success_ends_the_streak(store: Store, clock: ManualClock) -> None:
    assert not await failing(store, 2)
    clock.advance(60)
    assert not await succeeding(store)
    assert not await failing(store, 2)
    clock.advance(60)
    assert await failing(store), "counted from the success on"


async def test_a_success_between_failures_counts_by_what_came_after_it(store: Store, clock: ManualClock) -> None:
    assert not await failing(store, 2)
    clock.advance(60)
    assert not await failing(store, 2, succeeded=True)
    clock.advance(60)
    assert await failing(store)
    assert "3 failures" in (await closed(store))[0].note


async def test_workers_count_together(store: Store, clock: ManualClock) -> None:
    for worker in ("a", "b"):
        assert not await failing(store, worker=worker)
    clock.advance(60)
    assert await failing(store, worker="c")


async def test_collections_and_handlers_count_for_themselves(store: Store, worker: Worker, clock: ManualClock) -> None:
    for facts in ({"collection": "eu"}, {"collection": "us"}, {"handler": "other"}):
        assert not await failing(store, 2, **facts)
    clock.advance(60)
    assert await failing(store, collection="eu")
    assert [(gate.handler, gate.collection) for gate in await closed(store)] == [("work", "eu")]
    held, free = await add(store, collection="eu"), await add(store, collection="us")
    assert [task.id for task in await worker.take()] == [free.id]
    assert held.attempt == 0


async def test_of_many_workers_that_tell_at_once_one_closes_the_gate_and_the_audit_says_so_once(
    store: Store, clock: ManualClock, another: Another
) -> None:
    others = [await another() for _ in range(3)]
    await failing(store, 2)
    clock.advance(60)
    changed = await asyncio.gather(*(failing(each, 3, worker=f"w{number}") for number, each in enumerate([store, *others])))
    assert sum(changed) == 1
    [entry] = (await store.audit(AuditFilter(action="gates.pause"))).items
    [gate] = await closed(store)
    assert (entry.by, entry.subject, entry.detail) == ("duetime", "work", gate.note)
    assert entry.origin == f"worker w{changed.index(True)}"


async def test_a_target_that_says_when_to_come_again_is_left_alone_until_then(store: Store, worker: Worker, clock: ManualClock) -> None:
    task = await add(store)
    assert await unavailable(store, BUSY, clock.now() + 30 * SECOND)
    [gate] = await closed(store)
    assert (gate.automatic, gate.until_at, gate.probe_at, gate.note) == (True, clock.now() + 30 * SECOND, None, BUSY.why)
    assert not await succeeding(store), "an answer to a request from before must not open it"
    assert await worker.take() == []
    clock.advance(30)
    assert [each.id for each in await worker.take()] == [task.id]


async def test_a_broker_that_is_away_is_probed_when_the_probe_says(store: Store, worker: Worker, clock: ManualClock) -> None:
    tasks = [(await add(store)).id for _ in range(3)]
    assert await unavailable(store, AWAY, clock.now() + 2 * SECOND)
    assert await probed(worker) == []
    clock.advance(2)
    assert await probed(worker) == tasks[:1]
    assert not await unavailable(store, AWAY, clock.now() + 4 * SECOND), "the gate stays as it is"
    assert (await store.take_probe(["work"])).next_at == clock.now() + 4 * SECOND
    clock.advance(4)
    assert await probed(worker) == tasks[1:2]
    assert await succeeding(store)
    assert [each.id for each in await worker.take()] == tasks[2:]


# ---- probes ----


async def test_one_probe_passes_in_an_interval_whoever_asks(store: Store, clock: ManualClock, hire: Hire, another: Another) -> None:
    await store.add([new_task() for _ in range(50)])
    await disabled(store, clock)
    stores = [store, await another(), await another()]
    workers = [await hire(at=each) for each in stores]
    for _ in range(3):
        assert sum(map(len, await asyncio.gather(*(probed(each) for each in workers)))) == 0, "not yet"
        clock.advance(100)
        passed = await asyncio.gather(*(probed(each) for each in workers * 4))
        assert sum(map(len, passed)) == 1
    assert [await each.take() for each in workers] == [[], [], []]


async def test_the_most_urgent_task_is_the_probe(store: Store, worker: Worker, clock: ManualClock) -> None:
    tasks = {priority: (await add(store, priority=priority, collection="eu" if priority < 9 else None)).id for priority in (1, 9, 5)}
    await disabled(store, clock)
    clock.advance(100)
    assert await probed(worker) == [tasks[9]]


async def test_a_gate_behind_which_nothing_is_due_keeps_its_probe(store: Store, worker: Worker, clock: ManualClock) -> None:
    await disabled(store, clock)
    later = await add(store, due_at=clock.now() + 105 * SECOND)
    clock.advance(100)
    probe = await store.take_probe(["work"])
    assert probe.gate is not None
    assert await worker.take_through(probe.gate) == []
    await store.put_off_probe(probe.gate, clock.now() + 5 * SECOND)
    assert await store.take_probe(["work"]) == (None, clock.now() + 5 * SECOND)
    clock.advance(5)
    assert await probed(worker) == [later.id]


async def test_putting_a_probe_off_does_not_undo_what_came_after_it(store: Store, clock: ManualClock) -> None:
    await disabled(store, clock)
    clock.advance(100)
    first = (await store.take_probe(["work"])).gate
    clock.advance(100)
    second = (await store.take_probe(["work"])).gate
    assert first is not None
    assert second is not None
    await store.put_off_probe(first, clock.now())
    assert await store.take_probe(["work"]) == (None, second.probe_at)


async def test_a_probe_is_of_handlers_that_were_asked_for(store: Store, clock: ManualClock) -> None:
    await disabled(store, clock)
    clock.advance(100)
    assert await store.take_probe(["other"]) == (None, None)
    assert (await store.take_probe(["other", "work"])).gate is not None


async def test_a_success_opens_the_gate_and_the_streak_begins_anew(store: Store, worker: Worker, clock: ManualClock) -> None:
    tasks = [(await add(store)).id for _ in range(3)]
    await disabled(store, clock)
    assert not await failing(store, 100), "attempts that were under way fail too"
    clock.advance(100)
    assert await probed(worker) == tasks[:1]
    assert await succeeding(store)
    assert not await succeeding(store)
    assert await closed(store) == []
    assert [task.id for task in await worker.take()] == tasks[1:]
    assert not await failing(store, 2)
    [entry] = (await store.audit(AuditFilter(action="gates.open"))).items
    assert (entry.by, entry.subject) == ("duetime", "work")


# ---- people ----


@pytest.mark.parametrize("action", list(GateAction))
async def test_a_persons_gate_replaces_an_automatic_one_and_no_success_opens_it(
    store: Store, worker: Worker, clock: ManualClock, action: GateAction
) -> None:
    await add(store)
    await disabled(store, clock)
    await store.put_gate(Gate(handler="work", action=action, note="mine"))
    clock.advance(1_000)
    assert await probed(worker) == []
    assert not await succeeding(store)
    assert not await failing(store, 100)
    assert [(gate.action, gate.note, gate.automatic) for gate in await closed(store)] == [(action, "mine", False)]


async def test_a_persons_gate_on_the_handler_comes_before_the_automatic_one_of_its_collection(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    await add(store, collection="eu")
    await failing(store, 2, collection="eu")
    clock.advance(60)
    assert await failing(store, collection="eu")
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    clock.advance(100)
    assert await probed(worker) == []
    assert await store.drop(10) == 1


async def test_no_automatic_gate_on_a_collection_while_a_person_has_one_on_its_handler(store: Store, clock: ManualClock) -> None:
    await failing(store, 2, collection="eu")
    clock.advance(60)
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    assert not await failing(store, 100, collection="eu")
    assert [gate.automatic for gate in await closed(store)] == [False]


async def test_opening_by_hand_forgets_the_streak_and_what_was_seen_before(store: Store, worker: Worker, clock: ManualClock) -> None:
    task = await add(store)
    await disabled(store, clock)
    seen_before = (await store.gates()).version
    assert await store.remove_gate("work", None) is not None
    assert not await failing(store, 100, seen_gates=seen_before, since_at=clock.now() - 90 * SECOND)
    assert not await store.observe("w", [Observed(handler="work", unavailable=AWAY, again_at=clock.now(), seen_gates=seen_before)])
    assert [each.id for each in await worker.take()] == [task.id]
    assert not await failing(store, 2)
    clock.advance(60)
    assert await failing(store)
    assert "3 failures" in (await closed(store))[0].note


async def test_opening_any_gate_by_hand_forgets_a_streak_that_had_begun(store: Store, clock: ManualClock) -> None:
    assert not await failing(store, 2)
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await store.remove_gate("work", None)
    clock.advance(60)
    assert not await failing(store)


async def test_a_handlers_names_share_streak_and_gate(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.declare([Declaration(name="work", schema=b"{}", aliases=("labour",))])
    task = await add(store, "labour")
    assert not await failing(store, 2, handler="labour")
    clock.advance(60)
    assert await failing(store)
    clock.advance(100)
    assert await probed(worker, "labour", "work") == [task.id]
    assert await succeeding(store, handler="labour")
    assert await closed(store) == []
