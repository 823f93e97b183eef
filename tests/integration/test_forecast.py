"""A forecast is what firing then does: the same schedules on SQLite, a whole day of a clock that is set by hand."""

from __future__ import annotations

import heapq
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duetime import App
from duetime.client.schedules.forecasting import look_ahead
from duetime.client.schedules.schedule import Schedule
from duetime.clock import SECOND, Instant, ManualClock, to_instant
from duetime.duties.firing import Firing
from duetime.model.forecast import HOUR, MINUTE
from duetime.model.rules import AfterEnd, Cron, Every, Rule
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import ClaimedTask, NewWorker
from tests.conformance.build import Worker, add

START = to_instant(datetime(2030, 1, 7, tzinfo=UTC))
DAY_LATER = START + 24 * HOUR
DURATIONS = {"quick": 2.0, "slow": 1_500.0, "new": 1.0}  # of "new" no run has ended before: one second is assumed
SCHEDULES: dict[str, tuple[str, Rule, dict[str, Any]]] = {
    "jittered": ("quick", Every(600), {"jitter": 120.0}),
    "left out": ("slow", Cron("*/10 * * * *"), {}),
    "one waits": ("slow", Cron("*/15 * * * *"), {"overlap": "queue one"}),
    "all wait": ("slow", Every(1_200), {"overlap": "queue all"}),
    "delayed": ("slow", AfterEnd(900), {}),
    "cancelled": ("slow", Every(700), {"overlap": "cancel"}),
    "three": ("slow", Every(420), {"overlap": "allow 3"}),
    "counted": ("new", Cron("0 9 * * *") | Cron("0 10 * * *"), {"count": 1}),
    "both": ("quick", Every(3_600) | AfterEnd(1_000), {}),
    "local": ("new", Cron("30 2 * * MON", tz="Asia/Tokyo"), {"missed": "all"}),
}


class Day:
    """Goes from one instant to the next at which anything happens: a run ends, a schedule fires, a task starts."""

    def __init__(self, store: Store, clock: ManualClock, worker: Worker) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._firing = Firing(store, Alarms())
        self._next_task: Instant | None = None
        self._ends: list[tuple[Instant, str]] = []
        self._running: dict[str, tuple[ClaimedTask, Instant]] = {}
        self.runs: list[tuple[str, Instant, Instant]] = []  # schedule, start and end

    async def live_until(self, until: Instant) -> None:
        for _ in range(100_000):
            while await self._end_runs() + await self._firing.fire_due() + await self._stop_cancelled() + await self._start_tasks():
                pass
            following = [each for each in (self._next_task, await self._next_look()) if each is not None]
            following += [self._ends[0][0]] if self._ends else []
            if not following or min(following) > until:
                self._clock.set(until)
                return
            self._clock.set(max(min(following), self._clock.now()))
        raise AssertionError("the day does not end")

    def runs_going_on(self) -> list[tuple[str, Instant, Instant]]:
        return [(str(task.schedule), start, self._clock.now()) for task, start in self._running.values()]

    async def _next_look(self) -> Instant | None:
        return (await self._store.due_schedules(1)).next_at

    async def _start_tasks(self) -> int:
        claim = await self._worker.claim(*DURATIONS)
        self._next_task, now = claim.next_at, claim.now
        for task in claim.tasks:
            self._running[task.id] = (task, now)
            heapq.heappush(self._ends, (now + round(DURATIONS[task.handler] * SECOND), task.id))
        return len(claim.tasks)

    async def _end_runs(self) -> int:
        ended = 0
        while self._ends and self._ends[0][0] <= self._clock.now():
            task_id = heapq.heappop(self._ends)[1]
            if task_id in self._running:
                await self._end(task_id, State.SUCCEEDED)
                ended += 1
        return ended

    async def _stop_cancelled(self) -> int:
        held = [each.id for each in await self._store.attempts_of(self._worker.id) if each.cancelling]
        for task_id in held:
            await self._end(task_id, State.CANCELLED)
        return len(held)

    async def _end(self, task_id: str, state: State) -> None:
        task, start = self._running.pop(task_id)
        await self._worker.end(task, state, started_at=start)
        self.runs.append((str(task.schedule), start, self._clock.now()))
        await self._store.wake_schedules([str(task.schedule)])


async def make(app: App, store: Store, clock: ManualClock, worker: Worker) -> None:
    """Record how long a run of most handlers takes, then put the schedules at the start of the day."""
    for handler in ("quick", "slow"):
        clock.set(START - HOUR)
        await add(store, handler)
        task = await worker.take_one(handler)
        started_at = clock.now()
        clock.advance(DURATIONS[handler])
        await worker.end(task, State.SUCCEEDED, started_at=started_at)
    clock.set(START)
    for name, (handler, rule, options) in SCHEDULES.items():
        await app.schedules.put(Schedule(name, handler=handler, rule=rule, **options), allow_unknown=True)


async def test_a_forecast_of_a_day_is_what_firing_does(tmp_path: Path) -> None:
    """Runs, skips and starts are equal; seconds of work are so within a millisecond an hour."""
    clock = ManualClock(START - HOUR)
    store = store_from_url(f"sqlite:///{tmp_path}/day.db?synchronous=normal", clock=clock)
    app = App(f"sqlite:///{tmp_path}/day.db")
    async with app.using_store(store):
        lease = await store.register(NewWorker(id="w", host="here", pid=1, slots=dict.fromkeys(DURATIONS, 1)))
        worker = Worker(store, "w", lease)
        await make(app, store, clock, worker)
        ahead = (await look_ahead(store, days=1)).forecast
        day = Day(store, clock, worker)
        await day.live_until(DAY_LATER)
        infos = await app.schedules.list()

    assert ahead.until_at == DAY_LATER
    assert {each.schedule: each.duration for each in ahead.schedules} == {name: DURATIONS[spec[0]] for name, spec in SCHEDULES.items()}
    assert {each.schedule: (each.runs, each.skipped) for each in ahead.schedules} == {
        info.name: (info.fired, info.missed) for info in infos
    }
    runs = day.runs + day.runs_going_on()
    starts = Counter((start // HOUR) * HOUR for _, start, _ in runs)
    assert {hour.at: hour.runs for hour in ahead.hours if hour.runs} == dict(starts)
    for hour in ahead.hours:
        busy = sum(max(0, min(end, hour.at + HOUR) - max(start, hour.at)) for _, start, end in runs) / SECOND
        assert abs(hour.busy - busy) < 0.001
    minutes = Counter(start // MINUTE * MINUTE for _, start, _ in runs)
    assert ahead.busiest is not None
    assert ahead.busiest.runs == max(minutes.values()) == minutes[ahead.busiest.at]
    assert ahead.collisions[0].handler == "slow"
