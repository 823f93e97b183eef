"""Schedules fire from any process by a duty: at the instant and once, even if others fire at the same time. (Promises 8 and 9)"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duetime import App, State
from duetime.clock import SECOND, Instant, ManualClock
from duetime.duties import firing
from duetime.duties.firing import Firing
from duetime.model import steering
from duetime.model.gate import Gate, GateAction
from duetime.model.policies import read_missed
from duetime.model.query import Query
from duetime.model.rules import AfterEnd, At, DayCalendar, Every, Rule, plan_of
from duetime.model.schedule import ScheduleRecord, ScheduleSpec, SkipReason
from duetime.model.task import TaskRecord
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.schedules import DueSchedules, ScheduleWrite
from duetime.store.values import Hint, HintKind, NewWorker
from tests.chaos.processes import until
from tests.conformance.build import Worker, ended

START = 1_800_000_000 * SECOND
MINUTE = 60 * SECOND
OURS = 20  # processes that fire at once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'duetime.db'}?synchronous=normal"


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    opened = store_from_url(url, clock=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def alarms() -> AsyncIterator[Alarms]:
    made = Alarms()
    yield made
    made.close()


@pytest.fixture
def duty(store: Store, alarms: Alarms) -> Firing:
    return Firing(store, alarms)


async def put(store: Store, name: str, rule: Rule, **options: Any) -> ScheduleRecord:
    """Store a schedule that begins now."""
    calendars = await store.calendars()
    spec = ScheduleSpec(handler=options.pop("handler", "sweep"), rule=rule, **options)
    plan = plan_of(rule, calendars=calendars, within=spec.calendars)
    record = steering.put(name, spec, plan, store.now(), id=f"id-{name}").record
    assert await store.write_schedules([ScheduleWrite(name=name, expected=0, record=record)]) == [True]
    return record


async def stored(store: Store, name: str) -> ScheduleRecord:
    [record] = await store.schedules([name])
    assert record is not None
    return record


async def tasks_of(store: Store, name: str) -> list[TaskRecord]:
    """Return all tasks of a schedule in the order of their occurrences."""
    found = [task for task in (await store.page(Query(limit=1_000))).items if task.schedule == name]
    return sorted(found, key=lambda task: task.planned_at or 0)


async def planned(store: Store, name: str) -> list[int]:
    """Return the occurrences that became tasks, in minutes after START."""
    return [((task.planned_at or 0) - START) // MINUTE for task in await tasks_of(store, name)]


async def a_worker(store: Store) -> Worker:
    id = secrets.token_hex(4)
    return Worker(store, id, await store.register(NewWorker(id=id, host="here", pid=1, slots={"sweep": 1_000})))


async def run_due(store: Store, state: State = State.SUCCEEDED) -> None:
    """Let a worker claim all that is due and end it in one way."""
    worker = await a_worker(store)
    tasks = await worker.take("sweep")
    await store.settle(worker.id, [ended(task, state, at=store.now()) for task in tasks])
    await store.unregister(worker.id)
    worker.lease.close()


# ---- firing ----


async def test_an_occurrence_is_fired_at_its_instant_and_not_before(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "often", Every(60), overlap="allow")
    clock.advance(59.999)
    assert await duty.fire_due() == 0
    clock.advance(0.001)
    assert await duty.fire_due() == 1
    assert await duty.fire_due() == 0
    [task] = await tasks_of(store, "often")
    assert (task.state, task.due_at, task.planned_at) == (State.PENDING, START + MINUTE, START + MINUTE)
    assert task.meta is not None
    assert task.meta["duetime.zone"] == "UTC"
    record = await stored(store, "often")
    assert (record.state.fired, record.next_at) == (1, START + 2 * MINUTE)


async def test_any_number_of_processes_fire_each_occurrence_once(store: Store, clock: ManualClock, url: str, alarms: Alarms) -> None:
    for number in range(30):
        await put(store, f"often-{number}", Every(60), overlap="allow", missed="all")
    stores = [store_from_url(url, clock=clock) for _ in range(OURS)]
    for other in stores:
        await other.open()
    try:
        duties = [Firing(other, alarms) for other in stores]
        for _ in range(3):
            clock.advance(60)
            await asyncio.gather(*(each.fire_due() for each in duties))
        await asyncio.gather(*(each.fire_due() for each in duties))
    finally:
        for other in stores:
            await other.close()
    for number in range(30):
        assert await planned(store, f"often-{number}") == [1, 2, 3]
        assert (await stored(store, f"often-{number}")).state.fired == 3


async def test_a_pass_is_bounded_and_the_next_one_continues(
    store: Store, clock: ManualClock, duty: Firing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "BATCH", 100)
    monkeypatch.setattr(firing, "PORTION", 30)
    monkeypatch.setattr(firing, "MOST_BATCHES", 3)
    records = []
    for number in range(710):
        spec = ScheduleSpec(handler="sweep", rule=Every(60))
        records.append(steering.put(f"n{number:04}", spec, plan_of(spec.rule), store.now(), id=f"id-{number}").record)
    await store.write_schedules([ScheduleWrite(name=record.name, expected=0, record=record) for record in records])
    clock.advance(60)
    assert [await duty.fire_due() for _ in range(4)] == [300, 300, 110, 0]


async def test_schedules_with_hundreds_of_missed_occurrences_share_a_write_fairly(store: Store, clock: ManualClock, duty: Firing) -> None:
    for name in "abcdefgh":
        await put(store, name, Every(1), missed="all at most 600", overlap="allow")
    clock.advance(615)
    fired = [await duty.fire_due() for _ in range(8)]
    assert max(fired) <= firing.MOST_TASKS + 500
    for name in "abcdefgh":
        record = await stored(store, name)
        assert record.state.fired + record.state.missed == 615
        assert record.state.fired == 600 + 11, "and those that are only late"


async def test_an_outage_is_made_up_for_as_the_policy_says(store: Store, clock: ManualClock, duty: Firing) -> None:
    for missed in ("skip", "latest", "earliest", "all", "all at most 2"):
        await put(store, missed, Every(60), missed=str(read_missed(missed)), overlap="allow")
    clock.advance(5 * 60 + 30)
    await duty.fire_due()
    assert {name: await planned(store, name) for name in ("skip", "latest", "earliest", "all", "all at most 2")} == {
        "skip": [],
        "latest": [5],
        "earliest": [1],
        "all": [1, 2, 3, 4, 5],
        "all at most 2": [4, 5],
    }
    skips = await store.skips("latest", 100)
    assert [((skip.planned_at - START) // MINUTE, skip.reason) for skip in skips] == [(n, SkipReason.MISSED) for n in (4, 3, 2, 1)]


async def test_a_closed_gate_holds_a_schedule_and_the_policy_applies_when_it_opens(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "held", Every(60), collection="eu")
    await put(store, "free", Every(60), collection="us")
    await store.put_gate(Gate(handler="sweep", collection="eu", action=GateAction.DROP, set_at=store.now()))
    for _ in range(4):
        clock.advance(60)
        await duty.fire_due()
        await run_due(store)
    assert await planned(store, "held") == []
    assert await planned(store, "free") == [1, 2, 3, 4]
    await store.remove_gate("sweep", "eu")
    clock.advance(30)
    await duty.fire_due()
    assert await planned(store, "held") == [4]


# ---- runs ----


async def test_a_run_that_has_not_ended_holds_the_next_one_up(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "one", Every(60))
    for _ in range(2):
        clock.advance(60)
        await duty.fire_due()
    assert await planned(store, "one") == [1]
    await run_due(store)
    clock.advance(60)
    await duty.fire_due()
    assert await planned(store, "one") == [1, 3]
    last = (await stored(store, "one")).state.last
    assert last is not None
    assert (last.state, last.planned_at) == (State.SUCCEEDED, START + MINUTE)


async def test_queued_runs_start_one_after_the_other(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "queued", Every(60), overlap="queue all")
    for _ in range(3):
        clock.advance(60)
        await duty.fire_due()
    for waiting in (2, 1, 0):
        states = [task.state for task in await tasks_of(store, "queued")]
        assert states.count(State.BLOCKED) == waiting
        await run_due(store)
    assert {task.state for task in await tasks_of(store, "queued")} == {State.SUCCEEDED}


async def test_the_other_run_is_told_to_stop(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "newest", Every(60), overlap="cancel")
    clock.advance(60)
    await duty.fire_due()
    worker = await a_worker(store)
    running = await worker.take_one("sweep")
    clock.advance(60)
    assert await duty.fire_due() == 1
    first, second = await tasks_of(store, "newest")
    assert (first.state, second.state) == (State.RUNNING, State.BLOCKED)
    await duty.fire_due()
    assert [held.cancelling for held in await store.attempts_of(worker.id)] == [True]
    assert (await stored(store, "newest")).state.cancel == ()
    await store.settle(worker.id, [ended(running, State.CANCELLED, at=store.now())])
    assert [task.state for task in await tasks_of(store, "newest")] == [State.CANCELLED, State.PENDING]


async def test_failed_runs_in_a_row_pause_a_schedule(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "frail", Every(60), pause_after=2)
    for _ in range(4):
        clock.advance(60)
        await duty.fire_due()
        await run_due(store, State.FAILED)
    assert await planned(store, "frail") == [1, 2]
    pause = (await stored(store, "frail")).state.paused
    assert pause is not None
    assert pause.automatic


# ---- trouble ----


async def test_one_that_cannot_be_fired_does_not_stop_the_others(
    store: Store, clock: ManualClock, duty: Firing, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put_calendar("holidays", DayCalendar(yearly=["12-25"]))
    await put(store, "broken", Every(60), calendars=("holidays",), overlap="allow")
    await put(store, "sound", Every(60), overlap="allow")
    await store.put_calendar("holidays", None)
    with caplog.at_level(logging.ERROR, "duetime.duties"):
        for _ in range(3):
            clock.advance(60)
            await duty.fire_due()
    assert await planned(store, "sound") == [1, 2, 3]
    assert await planned(store, "broken") == []
    assert [line.getMessage() for line in caplog.records if "'broken' cannot be fired" in line.getMessage()] == [
        line.getMessage() for line in caplog.records
    ]
    assert len(caplog.records) == 1
    await store.put_calendar("holidays", DayCalendar(yearly=["12-25"]))
    clock.advance(60)
    await duty.fire_due()
    assert await planned(store, "broken") == [4], "what was missed meanwhile is left to the policy"


async def test_one_that_cannot_be_stored_does_not_stop_the_others(
    store: Store, clock: ManualClock, duty: Firing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "broken", Every(60), overlap="allow")
    await put(store, "sound", Every(60), overlap="allow")
    write = store.write_schedules

    async def choosy(writes: list[ScheduleWrite], **options: bool) -> list[bool]:
        if any(wanted.tasks and wanted.name == "broken" for wanted in writes):
            raise ValueError("not this one")
        return await write(writes, **options)

    monkeypatch.setattr(store, "write_schedules", choosy)
    clock.advance(60)
    with caplog.at_level(logging.ERROR, "duetime.duties"):
        assert await duty.fire_due() == 1
    assert await planned(store, "sound") == [1]
    assert (await stored(store, "broken")).next_at == START + 2 * MINUTE
    assert "not this one" in caplog.text


# ---- leases ----


async def test_one_process_holds_the_lease_and_another_takes_over_when_it_leaves(
    store: Store, url: str, clock: ManualClock, alarms: Alarms
) -> None:
    await put(store, "often", Every(60))
    clock.advance(59.5)
    first, second = Firing(store, alarms), Firing(store, alarms)
    await first.run_once()
    pause = await second.run_once()
    assert pause is not None
    assert pause >= firing.LEASE, "it sleeps until the other's lease is over"
    assert (await store.duties())["firing"].granted
    await first.stop()
    assert not (await store.duties())["firing"].granted
    await second.run_once()
    assert (await store.duties())["firing"].granted


async def test_a_store_in_which_nothing_is_about_to_be_due_is_not_written_to(store: Store, clock: ManualClock, duty: Firing) -> None:
    await duty.run_once()
    await put(store, "often", Every(60))
    duty.on_hint(Hint(HintKind.SCHEDULES, START + MINUTE))
    pause = await duty.run_once()
    assert pause is not None
    assert pause > firing.SOON
    assert await store.duties() == {}


async def test_nor_is_it_when_it_is_looked_at_again_and_again(
    store: Store, clock: ManualClock, duty: Firing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "LOOK_EVERY", 0.5)
    await put(store, "daily", Every(86_400))
    for _ in range(3):
        assert await duty.run_once() == 0.5
    assert await store.duties() == {}


@pytest.mark.parametrize("hint", [Hint(HintKind.GATES), Hint(HintKind.SCHEDULES), Hint(HintKind.SCHEDULES, START + 2 * SECOND)])
async def test_a_hint_that_comes_while_the_store_answers_is_not_forgotten(
    store: Store, clock: ManualClock, duty: Firing, monkeypatch: pytest.MonkeyPatch, hint: Hint
) -> None:
    await put(store, "often", Every(60), overlap="allow")
    ask = store.due_schedules

    async def ask_and_hear(*arguments: Any, **options: Any) -> DueSchedules:
        answer = await ask(*arguments, **options)
        duty.on_hint(hint)
        return answer

    monkeypatch.setattr(store, "due_schedules", ask_and_hear)
    await duty._find_next()
    assert duty.next_at == (hint.at or 0)
    clock.advance(60)
    await duty.fire_due()
    assert duty.next_at == (hint.at or 0)


async def test_the_process_with_the_lease_sleeps_until_the_next_occurrence(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "often", Every(60))
    clock.advance(59.5)
    assert await duty.run_once() == pytest.approx(0.5)
    duty.on_hint(Hint(HintKind.SCHEDULES, START + 5 * MINUTE))
    assert await duty.run_once() == pytest.approx(0.5)
    clock.advance(0.5)
    await duty.run_once()
    assert await planned(store, "often") == [1]


async def test_a_gate_that_opens_by_itself_ends_the_sleep(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "often", Every(60))
    opens_at = START + MINUTE + SECOND
    await store.put_gate(Gate(handler="sweep", action=GateAction.PAUSE, until_at=opens_at, set_at=START))
    clock.advance(60)
    assert await duty.run_once() == pytest.approx(1.0)
    clock.advance(1)
    await duty.run_once()
    assert await planned(store, "often") == [1]


async def test_a_changed_gate_is_heard_of(store: Store, clock: ManualClock, duty: Firing) -> None:
    await put(store, "often", Every(60), overlap="allow")
    clock.advance(60)
    await duty.run_once()
    await store.put_gate(Gate(handler="sweep", action=GateAction.PAUSE, set_at=store.now()))
    duty.on_hint(Hint(HintKind.GATES))
    clock.advance(60)
    await duty.run_once()
    assert await planned(store, "often") == [1]


# ---- in a worker ----


async def test_a_worker_fires_and_goes_on_as_soon_as_a_run_has_ended(url: str) -> None:
    app = App(url)
    ran: list[Instant] = []

    @app.task
    async def sweep() -> None:
        ran.append(app.store.now())

    @app.task
    async def other() -> None: ...

    async with app, app.worker():
        await other.now()
        await put(app.store, "again", AfterEnd(1))
        await put(app.store, "once", At(app.store.now() + SECOND), handler="other")
        await until("it ran three times", lambda: len(ran) >= 3)
        record = await stored(app.store, "again")
        runs = await tasks_of(app.store, "again")
        assert len(await tasks_of(app.store, "once")) == 1
    ends = [task.finished_at for task in runs if task.finished_at is not None]
    starts = [task.planned_at for task in runs]
    assert record.state.fired >= 3
    for ended_at, planned_at in zip(ends, starts[1:], strict=False):
        assert planned_at == ended_at + SECOND, "the delay is counted from the end of the run"


async def test_a_new_schedule_is_heard_of_by_the_process_that_fires(url: str) -> None:
    app = App(url)
    ran = asyncio.Event()

    @app.task
    async def sweep() -> None:
        ran.set()

    async with app, app.worker():
        await put(app.store, "soon", At(app.store.now() + SECOND // 10))
        await until("it ran", ran.is_set)
        await until("nothing is in sight any more", lambda: _over(app.store, "soon"))
    assert not await _held_in(url)


async def _held(store: Store) -> bool:
    leases = await store.duties()
    return "firing" in leases and leases["firing"].granted


async def _held_in(url: str) -> bool:
    again = store_from_url(url)
    await again.open()
    try:
        return await _held(again)
    finally:
        await again.close()


async def _over(store: Store, name: str) -> bool:
    return (await stored(store, name)).state.fired == 1
