"""The verdict of a real store: what is read for it, on both stores, and what each door says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from duetime.client.insight import LocalInsight
from duetime.clock import SECOND, ManualClock
from duetime.model.figures import ATTEMPTS, BLOCKED_LOOPS, LEASE_LOSSES, STALE_WRITES, FigureKey
from duetime.model.gate import Gate, GateAction
from duetime.model.health import FindingKind, HealthVerdict
from duetime.model.schedule import Pause, ScheduleState
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import Declaration, NewWorker
from tests.conformance.build import Worker, add
from tests.conformance.schedules import new


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_from_url(url, clock=clock)
    await store.open()
    yield store
    await store.close()


async def verdict(store: Store) -> HealthVerdict:
    return await LocalInsight(store).health()


async def kinds(store: Store) -> list[FindingKind]:
    return [each.kind for each in (await verdict(store)).findings]


async def hire(store: Store, *handlers: str) -> Worker:
    slots = dict.fromkeys(handlers, 5)
    return Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=os.getpid(), slots=slots)))


async def test_an_empty_store_is_well(store: Store) -> None:
    assert (await verdict(store)).text == "All is well."


async def test_due_tasks_without_a_worker_are_found_and_a_worker_under_the_handlers_new_name_serves_them(
    store: Store, clock: ManualClock
) -> None:
    await add(store, "charge")
    clock.advance(30)
    found = await verdict(store)
    assert found.text == "charge has 1 due task and no live worker; the oldest has waited for 30.0 s."
    assert [(each.subject, each.name) for each in found.findings] == [("handler", "charge")]
    await store.declare([Declaration(name="pay", aliases=("charge",))])
    worker = await hire(store, "pay", "charge")
    assert await kinds(store) == []
    clock.advance(31)
    if store.traits.liveness == "lock":
        assert await kinds(store) == [FindingKind.LATE]
    else:
        assert await kinds(store) == [FindingKind.NO_WORKER, FindingKind.SILENT_WORKER], "it has not beaten since"
    await store.put_gate(Gate(handler="charge", action=GateAction.PAUSE, set_at=store.now()))
    assert FindingKind.LATE not in await kinds(store)
    assert FindingKind.NO_WORKER not in await kinds(store)
    worker.lease.close()
    await store.unregister("w")


async def test_what_workers_counted_in_the_last_minutes_is_found_and_then_forgotten(store: Store, clock: ManualClock) -> None:
    failed, succeeded = FigureKey(ATTEMPTS, "charge", "failed"), FigureKey(ATTEMPTS, "charge", "succeeded")
    troubles = {FigureKey(name): 1 for name in (LEASE_LOSSES, STALE_WRITES, BLOCKED_LOOPS)}
    await store.add_figures("a", 1, {failed: 6, FigureKey(ATTEMPTS, "charge", "timed_out"): 4, succeeded: 10, **troubles})
    told = [FindingKind.LEASE_LOST, FindingKind.STALE_WRITES, FindingKind.LOOP_BLOCKED]
    assert await kinds(store) == [FindingKind.FAILING, *told]
    assert "10 of 20 attempts" in (await verdict(store)).text
    clock.advance(320)
    assert await kinds(store) == told
    clock.advance(600)
    assert await kinds(store) == []


async def test_schedules_that_are_late_broken_or_paused_by_themselves_are_found(store: Store, clock: ManualClock) -> None:
    paused = ScheduleState(cursor=1, paused=Pause(1, "duetime", "3 failed runs in a row", automatic=True))
    by_hand = ScheduleState(cursor=1, paused=Pause(1, "ann", "stock taking"))
    await store.write_schedules(
        [new("late", store.now()), new("stopped", store.now(), state=paused), new("by hand", store.now(), state=by_hand)]
    )
    clock.advance(86_400)
    found = await verdict(store)
    assert [(each.kind, each.name) for each in found.findings] == [
        (FindingKind.MAINTENANCE_STUCK, "Firing schedules"),
        (FindingKind.SCHEDULE_LATE, "late"),
        (FindingKind.SCHEDULE_PAUSED, "stopped"),
    ]
    assert found.findings[-1].text == "The schedule stopped was paused by itself: 3 failed runs in a row"
    await store.take_duty("firing", "somebody", 5.0)
    assert await kinds(store) == [FindingKind.SCHEDULE_LATE, FindingKind.SCHEDULE_PAUSED], "somebody is about to fire"


async def test_gates_are_found_once_each_whatever_names_the_handler_had(store: Store) -> None:
    await store.declare([Declaration(name="charge", aliases=("pay",))])
    await store.put_gate(
        Gate(handler="charge", action=GateAction.DROP, until_at=store.now() + 60 * SECOND, note="stock", set_at=store.now())
    )
    assert [each.text for each in (await verdict(store)).findings] == [
        "A gate drops the tasks of charge: stock",
        "In 1 min 0 s the gate on charge opens by itself.",
    ]


async def test_a_store_that_is_closed_is_away(store: Store) -> None:
    await store.close()
    found = await verdict(store)
    assert [each.kind for each in found.findings] == [FindingKind.STORE_AWAY]
    assert not found.well
