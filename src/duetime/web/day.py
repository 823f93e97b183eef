"""One day of a schedule as a row of marks: runs as long as they took, skips, and what is planned. Pure: facts in, marks and SVG out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise

import msgspec
from markupsafe import Markup

from duetime.client.schedules.info import SkipInfo
from duetime.model.task import Task
from duetime.web.words import duration, number

THINNEST = 0.35  # per cent of the row that a mark is wide at least
NEAR = 0.12  # per cent between marks of one kind that are drawn as one
LABELLED = 3  # every third hour has its name
HEIGHT = 20


class Day(msgspec.Struct, frozen=True):
    """A day of local time, from midnight to midnight: 23 or 25 hours where clocks change."""

    start: datetime
    end: datetime

    def share(self, at: datetime) -> float:
        """Return where an instant lies, in per cent of the day; real time, so that an hour is as wide as any other."""
        start, end = self.start.astimezone(UTC), self.end.astimezone(UTC)  # within one zone Python subtracts what clocks show
        return 100 * (at.astimezone(UTC) - start).total_seconds() / (end - start).total_seconds()


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a row, in per cent. `overlapping`: it began before the one before it had ended. `count` marks are drawn as one."""

    kind: str
    start: float
    end: float
    said: str
    overlapping: bool = False
    count: int = 1


def day_of(chosen: date, tz: tzinfo) -> Day:
    return Day(_midnight(chosen, tz), _midnight(chosen + timedelta(days=1), tz))


def _midnight(on: date, tz: tzinfo) -> datetime:
    """Return when a day begins. Where clocks skip midnight it is the first instant after."""
    return datetime.combine(on, time(), tz).astimezone(UTC).astimezone(tz)


def marks(runs: Sequence[Task[object]], skips: Sequence[SkipInfo], planned: Sequence[datetime], *, day: Day, now: datetime,
          lasting: float | None) -> list[Mark]:  # fmt: skip
    """Return the marks of a day, in their order. `lasting` is how many seconds a planned run is taken to last."""
    found = [_run(run, day, now) for run in runs]
    found += [_skip(skip, day) for skip in skips]
    found += [
        Mark(kind="planned", start=day.share(at), end=day.share(at + timedelta(seconds=lasting or 0)), said=f"{at:%H:%M:%S} planned")
        for at in planned
    ]
    inside = sorted((mark for mark in found if mark.end >= 0 and mark.start <= 100), key=lambda mark: (mark.start, mark.end))
    return _merged(_overlaps(inside))


def _run(run: Task[object], day: Day, now: datetime) -> Mark:
    tz = day.start.tzinfo
    planned = (run.planned_at or run.due_at).astimezone(tz)
    begun = run.started_at or planned
    ended = run.finished_at or (now if run.started_at else begun)
    late = (begun - planned).total_seconds()
    said = f"{planned:%H:%M:%S} {run.state.value}"
    if run.started_at is not None:
        said += f", {duration(late)} late, {'takes' if run.finished_at is None else 'took'} {duration((ended - begun).total_seconds())}"
    return Mark(kind=run.state.value, start=day.share(begun), end=day.share(ended), said=said)


def _skip(skip: SkipInfo, day: Day) -> Mark:
    tz = day.start.tzinfo
    reason = f"{skip.reason.value}{f', {skip.note}' if skip.note else ''}"
    said = f"{skip.planned_at.astimezone(tz):%H:%M:%S} skipped: {reason}"
    return Mark(kind="skipped", start=day.share(skip.planned_at), end=day.share(skip.until_at), said=said, count=skip.count)


def _overlaps(found: Sequence[Mark]) -> Iterator[Mark]:
    """Say which runs began before an earlier one had ended."""
    until = -1.0
    for mark in found:
        runs = mark.kind not in ("skipped", "planned")
        yield msgspec.structs.replace(mark, overlapping=True) if runs and mark.start < until else mark
        until = max(until, mark.end) if runs else until


def _merged(found: Iterator[Mark]) -> list[Mark]:
    """Draw marks of one kind that lie close together as one: what fires every few seconds would otherwise be thousands."""
    merged: list[Mark] = []
    for mark in found:
        last = merged[-1] if merged else None
        if last is not None and (last.kind, last.overlapping) == (mark.kind, mark.overlapping) and mark.start - last.end <= NEAR + THINNEST:
            count = last.count + mark.count
            said = f"{last.said.partition(' ')[0]} to {mark.said.partition(' ')[0]}: {number(count)} {mark.kind}"
            merged[-1] = msgspec.structs.replace(last, end=max(last.end, mark.end), count=count, said=said)
        else:
            merged.append(mark)
    return merged


def row(found: Sequence[Mark], *, now: float | None, name: str) -> Markup:
    """Draw the marks of one schedule, and a line where the present is."""
    drawn = [Markup('<line class="noon" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>').format(at, HEIGHT) for at in (25, 50, 75)]
    for mark in found:
        start, end = max(0.0, mark.start), min(100.0, mark.end)
        drawn.append(
            Markup('<rect class="{}{}" x="{:.2f}%" y="{}" width="{:.2f}%" height="{}" rx="1.5"><title>{}</title></rect>').format(
                mark.kind, " overlapping" if mark.overlapping else "", min(start, 100 - THINNEST), 7 if mark.kind == "skipped" else 3,
                max(THINNEST, end - start), 6 if mark.kind == "skipped" else 14, mark.said,
            )
        )  # fmt: skip
    if now is not None and 0 <= now <= 100:
        drawn.append(Markup('<line class="now" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>').format(now, HEIGHT))
    return Markup('<svg class="day" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, f"{name}: {summary(found)}", Markup("").join(drawn)
    )


def summary(found: Sequence[Mark]) -> str:
    """Say in words what a row shows."""
    counts: dict[str, int] = {}
    for mark in found:
        counts[mark.kind] = counts.get(mark.kind, 0) + mark.count
    return ", ".join(f"{number(count)} {kind}" for kind, count in counts.items()) or "nothing on this day"


def hours(day: Day) -> list[tuple[float, str]]:
    """Return every third hour of local time, and where it lies; one that is left out that day has no name."""
    found, at, step = [], day.start, timedelta(hours=1)
    while at < day.end:
        local = at.astimezone(day.start.tzinfo)
        if local.hour % LABELLED == 0 and local.minute == 0:
            found.append((day.share(at), f"{local:%H}"))
        at = (at.astimezone(UTC) + step).astimezone(day.start.tzinfo)
    return [each for each, following in pairwise([*found, (101.0, "")]) if each[1] != following[1]]
