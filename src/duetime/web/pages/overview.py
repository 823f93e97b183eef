"""The overview: one verdict first, then figures, charts, handlers sorted by trouble, what comes next, and what operators did last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from duetime.client.failures import Failure
from duetime.client.insight import HandlerCounts, HandlerInfo
from duetime.client.schedules.info import ScheduleInfo
from duetime.client.series import Series
from duetime.clock import to_datetime
from duetime.model.gate import GateAction
from duetime.model.health import HealthFinding
from duetime.store.schedules import ScheduleFilter
from duetime.web.courses import BY_DAY, NAMES, RANGES, by_day, courses, together, whole
from duetime.web.page import Action, Page, View
from duetime.web.pages import gating
from duetime.web.pages.schedules import trigger
from duetime.web.visit import Visit
from duetime.web.words import duration, number

BY_HANDLER = ("attempts", "failed", "fatal", "timed_out", "tasks_failed")
UPCOMING = 8
FAILING = 5  # kinds of failures


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One big number, with its course over the range."""

    name: str
    value: str
    note: str = ""
    kind: str = "accent"
    spark: list[float | None] = []
    address: str = ""


class HandlerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as the overview and the list of handlers show it."""

    name: str
    due: int
    oldest: float | None
    running: int
    slots: int
    workers: int
    later: int
    rate: float | None
    failed: float
    attempts: float
    p99: float | None
    spark: list[float | None]
    gate: str
    trouble: float
    isolation: str
    doc: str


async def view(visit: Visit) -> View:
    chosen = visit.query.get("range", "15min")
    chosen = chosen if chosen in RANGES else "15min"
    span = "7d" if chosen == BY_DAY else chosen
    rows = await handler_rows(visit, span)
    stats = await visit.sight.see("stats", visit.app.insight.stats)
    health = await visit.sight.see("health", visit.app.insight.health)
    shown, verdict = stats.value.part(visit.may_see), health.value.part(visit.may_see)
    several, series = await _series(visit, chosen)
    upcoming = await visit.sight.see("upcoming", lambda: _schedules(visit))
    acts = (await visit.sight.see("acts", lambda: visit.app.tokens.audit.list(limit=6))).value.items if visit.may("admin") else []
    facts = {
        "verdict": verdict,
        "findings": [(finding, _address(visit, finding)) for finding in verdict.findings],
        "figures": _figures(visit, shown, rows, series, chosen),
        "span": span,
        "courses": [] if series is None else courses(series, visit.preferences.tz, chosen, worst=several),
        "as_table": visit.query.get("as") == "table",
        "rows": rows,
        "ranges": [(name, visit.here(range=name), name == chosen) for name in RANGES],
        "seen": stats,
        "upcoming": sorted((each for each in upcoming.value if visit.may_see(each.handler) and each.next_at), key=_next_at)[:UPCOMING],
        "failing": await _failing(visit),
        "acts": acts,
        "empty": not rows and not any(shown.states.values()),
        "may_operate": visit.may("operate"),
    }
    return View(title="Overview", facts=facts, every=2.0 if chosen == "15min" else 10.0)


def _next_at(schedule: ScheduleInfo) -> Any:
    return schedule.next_at


async def _schedules(visit: Visit) -> list[ScheduleInfo]:
    items, _ = await visit.app.schedules.page(ScheduleFilter(limit=200))
    return items


async def _failing(visit: Visit) -> list[Failure]:
    """Return the kinds of failures that happened most in the last day."""
    seen = await visit.sight.see("failures 24h", partial(visit.app.failures.list, since=86_400.0))
    found = [each for each in seen.value if each.muted_until_at is None and visit.may_see(each.handler)]
    return sorted(found, key=lambda each: (-each.attempts, each.fingerprint))[:FAILING]


async def _series(visit: Visit, chosen: str) -> tuple[bool, Series | None]:
    """Return the series of everything; for a token that is restricted to some handlers of these together, and whether they are several."""
    back, step = RANGES[chosen]
    since = to_datetime(visit.app.store.now()) - back
    if not visit.caller.handlers:
        return False, (await visit.sight.see(f"series {chosen}", lambda: visit.app.insight.series(NAMES, since=since, step=step))).value
    read = lambda: visit.app.insight.series_by_handler(NAMES, since=since, step=step)  # noqa: E731
    found = (await visit.sight.see(f"whole series by handler {chosen}", read)).value
    own = [each for each in found if each.handler is not None and visit.may_see(each.handler)]
    return len(own) > 1, together(own)


async def handler_rows(visit: Visit, chosen: str = "15min") -> list[HandlerRow]:
    """Return the handlers that the person may see, those with trouble first."""
    back, step = RANGES[chosen]
    stats = (await visit.sight.see("stats", visit.app.insight.stats)).value.part(visit.may_see)
    declared = (await visit.sight.see("handlers", visit.app.insight.handlers)).value
    gates = (await visit.sight.see("gates", visit.app.gates.list)).value
    read = lambda: visit.app.insight.series_by_handler(BY_HANDLER, since=to_datetime(visit.app.store.now()) - back, step=step)  # noqa: E731
    series = {each.handler: each for each in (await visit.sight.see(f"series by handler {chosen}", read)).value}
    known = {each.name: each for each in declared if visit.may_see(each.name)}
    counts = {each.handler: each for each in stats.handlers}
    closed = {gate.handler: gate.action.value for gate in gates if gate.collection is None}
    partly = {gate.handler for gate in gates if gate.collection is not None}
    rows = [
        _row(name, known.get(name), counts.get(name), series.get(name), closed.get(name) or ("partly" if name in partly else ""), visit)
        for name in sorted({*known, *counts})
    ]
    return sorted(rows, key=lambda row: (-row.trouble, -row.attempts, row.name))


def _row(name: str, info: HandlerInfo | None, counts: HandlerCounts | None, series: Series | None, gate: str, visit: Visit) -> HandlerRow:
    oldest = None
    if counts is not None and counts.oldest_due_at is not None:
        oldest = max(0.0, (to_datetime(visit.now) - counts.oldest_due_at).total_seconds())
    attempts = _total(series, "attempts")
    failed = sum(_total(series, each) for each in ("failed", "fatal", "timed_out"))
    due, workers = (counts.due if counts else 0), (info.workers if info else 0)
    trouble = (100.0 if due and not workers and not gate else 0.0) + (50.0 * failed / attempts if attempts else 0.0)
    trouble += min(40.0, (oldest or 0.0) / 10) + (2.0 if gate else 0.0) + (20.0 if gate == GateAction.DROP else 0.0)
    return HandlerRow(
        name=name, due=due, oldest=oldest, running=counts.running if counts else 0, slots=info.slots if info else 0, workers=workers,
        later=counts.later if counts else 0, rate=None if series is None else series.per_second("attempts"), failed=failed,
        attempts=attempts, p99=counts.lateness.p99 if counts and counts.lateness else None,
        spark=whole(series, "attempts") if series else [], gate=gate, trouble=trouble, isolation=info.isolation if info else "",
        doc=info.doc if info else "",
    )  # fmt: skip


def _total(series: Series | None, name: str) -> float:
    return 0.0 if series is None else sum(value for value in series[name] if value is not None)


def _figures(visit: Visit, stats: Any, rows: list[HandlerRow], series: Series | None, chosen: str) -> list[Figure]:
    due, running, slots = sum(row.due for row in rows), sum(row.running for row in rows), sum(row.slots for row in rows)
    oldest = max((row.oldest for row in rows if row.oldest is not None), default=None)
    failed = _total(series, "tasks_failed") if series else sum(row.failed for row in rows)
    rate = series.per_second("attempts") if series else sum(row.rate or 0.0 for row in rows)
    drawn = by_day(series, visit.preferences.tz) if series and chosen == BY_DAY else series
    course: Callable[[str], list[float | None]] = lambda name: whole(drawn, name) if drawn else []  # noqa: E731
    return [
        Figure(name="Attempts a second", value=number(round(rate, 1)), spark=course("attempts")),
        Figure(name="Due now", value=number(due), spark=course("due"), address=visit.link("tasks", q="state:pending")),
        Figure(name="Oldest due", value=duration(oldest) if oldest is not None else "none", spark=course("oldest_due"),
               kind="warning" if (oldest or 0) > 60 else "accent"),
        Figure(name="Running", value=number(running), note=f"of {number(slots)} slots", spark=course("running"), kind="running",
               address=visit.link("tasks", q="state:running")),
        Figure(name="Failed", value=number(int(failed)), note="in this range", spark=course("tasks_failed"), kind="failed",
               address=visit.link("tasks", q="state:failed")),
        Figure(name="Workers", value=number(stats.workers), note=f"{stats.silent_workers} silent" if stats.silent_workers else "alive",
               kind="failed" if stats.silent_workers else "accent", address=visit.link("workers")),
    ]  # fmt: skip


def _address(visit: Visit, finding: HealthFinding) -> str | None:
    """Return the page where something can be done about a finding."""
    if not finding.name or (finding.handlers and not all(map(visit.may_see, finding.handlers))):
        return None
    match finding.subject:
        case "handler" | "gate":
            return visit.link("handlers", finding.name)
        case "worker":
            return visit.link("workers", finding.name)
        case "schedule":
            return visit.link("schedules", finding.name)
        case "alert":
            return None if visit.caller.handlers else visit.link("alerts")
        case _:
            return None


PAGE = Page(
    path="/",
    template="overview.html",
    view=view,
    name="Overview",
    letter="o",
    icon="overview",
    actions={"trigger": Action(run=trigger), **gating.ACTIONS},
)
