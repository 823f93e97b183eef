"""Gathering what the verdict on a store depends on (`model.health`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from duetime.client.schedules.info import ScheduleInfo, schedule_info
from duetime.clock import SECOND, Instant, to_instant
from duetime.model.gate import Gates
from duetime.model.health import FAILING_WITHIN, TROUBLE_WITHIN, FiringAlert, HandlerFacts, HealthFacts, ScheduleFacts, WorkerFacts
from duetime.model.names import HandlerNames
from duetime.model.rules import DayCalendar
from duetime.model.series import ALL, Reading, SeriesName, Step, beginnings
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter
from duetime.store.values import WorkerRecord
from duetime.targets.notices.documents import states_of

FIRING = "firing"
_FAILED = (SeriesName.FAILED, SeriesName.FATAL, SeriesName.TIMED_OUT, SeriesName.LOST)
_STEP: Step = 10


async def gather(store: Store, names: HandlerNames, silent: Mapping[str, float]) -> HealthFacts:
    """Read the facts: a few small looks, however many tasks there are. `silent` has the seconds of workers that do not beat."""
    sample = await store.sample()
    now, workers, gates = store.now(), await store.workers(), await store.gates()
    schedules = [facts async for facts in _schedules(store, gates, now)]
    reading = await _reading(store, now)
    recent = list(beginnings(now - round(FAILING_WITHIN * SECOND), now + 1, _STEP))
    lately = list(beginnings(now - round(TROUBLE_WITHIN * SECOND), now + 1, _STEP))

    def counted(handler: str, at: list[Instant], *series: SeriesName) -> int:
        return round(sum(value or 0 for name in series for value in reading.values(name, handler, at)))

    starting = [worker for worker in workers if _lives(worker, silent) and not worker.draining]
    serving = Counter(name for worker in starting for name in {names.present(each) for each in worker.slots})
    known = sorted({*sample.handlers, *(handler for _, handler in reading.buckets if handler != ALL)})
    goals = {each.name: each.start_within for each in await store.declarations()}
    handlers = []
    for name in known:
        load = sample.handlers.get(name)
        handlers.append(
            HandlerFacts(
                name=name,
                due=0 if load is None else load.due,
                oldest_due=0.0 if load is None else load.oldest_due / SECOND,
                start_within=goals.get(names.present(name)),
                workers=serving[name],
                attempts=counted(name, recent, SeriesName.ATTEMPTS),
                failed=counted(name, recent, *_FAILED),
            )
        )
    return HealthFacts(
        now=now,
        handlers=handlers,
        workers=[
            WorkerFacts(
                id=worker.id,
                host=worker.host,
                running=worker.running,
                handlers=tuple(sorted(worker.slots)),
                silent_for=silent.get(worker.id),
            )
            for worker in workers
            if not _lives(worker, silent)
        ],
        schedules=schedules,
        gates=gates.as_set,
        alerts=[
            FiringAlert(
                rule=each.rule,
                subject=each.subject,
                text=each.text,
                acknowledged=each.acknowledged_at is not None,
                condition=each.condition,
            )
            for each in (kept.value for kept in await states_of(store))
            if each.state == "firing"
        ],
        lease_losses=counted(ALL, lately, SeriesName.LEASE_LOSSES),
        stale_writes=counted(ALL, lately, SeriesName.STALE_WRITES),
        blocked_loops=counted(ALL, lately, SeriesName.BLOCKED_LOOPS),
        stuck=await _unfired(store, schedules),
    )


def _lives(worker: WorkerRecord, silent: Mapping[str, float]) -> bool:
    return worker.alive is not False and worker.id not in silent


async def _reading(store: Store, now: Instant) -> Reading:
    page = await store.series(_STEP, now - round(TROUBLE_WITHIN * SECOND), now + 1)
    return Reading(buckets=page.buckets, last=page.last, step=_STEP, now=page.now)


async def _schedules(store: Store, gates: Gates, now: Instant) -> AsyncIterator[ScheduleFacts]:
    """Yield the schedules that are not well."""
    calendars: Mapping[str, DayCalendar] = await store.calendars()
    after = ""
    while page := await store.list_schedules(ScheduleFilter(after=after)):
        for record in page:
            facts = _schedule(schedule_info(record, calendars, gates, now), now)
            if facts is not None:
                yield facts
        after = page[-1].name


def _schedule(info: ScheduleInfo, now: Instant) -> ScheduleFacts | None:
    match info.health:
        case "late":
            late_for = 0.0 if info.next_at is None else (now - to_instant(info.next_at)) / SECOND
            return ScheduleFacts(name=info.name, handler=info.handler, health="late", late_for=late_for)
        case "broken":
            return ScheduleFacts(name=info.name, handler=info.handler, health="broken", text=info.problem)
        case "failing":
            return ScheduleFacts(name=info.name, handler=info.handler, health="failing", failures=info.failures)
        case "paused" if info.paused is not None and info.paused.automatic:
            return ScheduleFacts(name=info.name, handler=info.handler, health="paused", text=info.paused.note)
    return None


async def _unfired(store: Store, schedules: list[ScheduleFacts]) -> list[tuple[str, float]]:
    """Return the duty that fires schedules, with for how long nobody has done it, if schedules wait for it."""
    late = [each for each in schedules if each.health == "late"]
    if not late:
        return []
    lease = (await store.duties()).get(FIRING)
    if lease is None:
        return [("Firing schedules", max(each.late_for for each in late))]
    return [] if lease.granted else [("Firing schedules", (lease.now - lease.until_at) / SECOND)]
