"""Reads what a forecast needs from a store: schedules, calendars, slots, and how long runs took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from duetime.client.schedules.info import plan_for
from duetime.client.schedules.writes import every_schedule
from duetime.clock import DAY, SECOND, Instant
from duetime.errors import InvalidValue
from duetime.model.forecast import DEFAULT_DURATION, MOST_OCCURRENCES, Forecast, ForecastInput, forecast
from duetime.model.query import Query
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord
from duetime.model.task import State
from duetime.runtime.slices import Slices, off_loop
from duetime.store import Store

SAMPLE = 100  # latest runs of a handler whose durations are used
LONGEST = 366.0  # days


class Ahead(msgspec.Struct, frozen=True):
    """A forecast, the paused schedules that it leaves out, and those that cannot be planned now, with the reason."""

    forecast: Forecast
    paused: tuple[str, ...]
    broken: Mapping[str, str]


async def look_ahead(
    store: Store, *, days: float = 7.0, limit: int = MOST_OCCURRENCES, chosen: Callable[[ScheduleRecord], bool] = lambda record: True
) -> Ahead:
    """Forecast the load of the chosen schedules from now on.

    A run is taken to last as long as the median of the latest succeeded tasks of its handler, or one second before there are any.
    Slots are those of the live workers; of a handler that no worker runs, those that one process would have.
    """
    if not 0 < days <= LONGEST:
        raise InvalidValue(f"days must be more than 0 and at most {LONGEST:g}, got {days:g}; for example 7")
    now = store.now()
    records = [record for record in await every_schedule(store) if chosen(record)]
    calendars = await store.calendars()
    durations = await _durations(store, {record.spec.handler for record in records if record.state.paused is None})
    prospects: list[ForecastInput] = []
    paused: list[str] = []
    broken: dict[str, str] = {}
    slices = Slices()
    for record in records:
        await slices.pause()
        if record.state.paused is not None:
            paused.append(record.name)
            continue
        try:
            prospects.append(_prospect(record, calendars, durations.get(record.spec.handler)))
        except InvalidValue as problem:
            broken[record.name] = str(problem)
    until_at: Instant = now + round(days * DAY)
    slots = await _slots(store)
    # in a thread: a million occurrences take seconds, and a server answers other requests meanwhile
    ahead = await off_loop(forecast, prospects, start_at=now, until_at=until_at, slots=slots, limit=limit)
    return Ahead(ahead, tuple(paused), broken)


def _prospect(record: ScheduleRecord, calendars: Mapping[str, DayCalendar], measured: float | None) -> ForecastInput:
    duration = DEFAULT_DURATION if measured is None else measured
    return ForecastInput(record=record, plan=plan_for(record.spec, calendars), duration=duration, measured=measured is not None)


async def _durations(store: Store, handlers: Iterable[str]) -> dict[str, float]:
    """Return the median duration of the latest runs of each handler; one page each, by the index of finished tasks."""
    from statistics import median  # it needs fractions and decimals

    found: dict[str, float] = {}
    for handler in sorted(handlers):
        page = await store.page(Query(handler=handler, state=State.SUCCEEDED, limit=SAMPLE))
        lengths = [
            (task.finished_at - task.started_at) / SECOND
            for task in page.items
            if task.finished_at is not None and task.started_at is not None
        ]
        if lengths:
            found[handler] = max(median(lengths), 0.0)
    return found


async def _slots(store: Store) -> dict[str, int]:
    slots = {declared.name: declared.concurrency for declared in await store.declarations()}
    running: dict[str, int] = {}
    for worker in await store.workers():
        if worker.alive is not False:
            for handler in worker.slots:
                running[handler] = running.get(handler, 0) + worker.slots_of(handler)
    return {**slots, **running}
