"""One month of a schedule as a row of days: how its runs ended, what was skipped, and how many are planned. Pure: facts in, SVG out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo

import msgspec
from markupsafe import Markup

from duetime.client.schedules.info import SkipInfo
from duetime.model.task import Task
from duetime.web.day import Day, day_of
from duetime.web.words import number

HEIGHT = 24
THOUSAND = 1_000  # a number with more digits than three is written in thousands
WORST_FIRST = ("failed", "expired", "dropped", "cancelled", "running", "blocked", "pending", "succeeded", "skipped")


class Month(msgspec.Struct, frozen=True):
    """A month of local time: its first day, and all days as they are, 23 and 25 hours long where clocks change."""

    first: date
    days: tuple[Day, ...]

    @property
    def start(self) -> datetime:
        return self.days[0].start.astimezone(UTC)

    @property
    def end(self) -> datetime:
        return self.days[-1].end.astimezone(UTC)


class Cell(msgspec.Struct, frozen=True):
    """A day of one schedule: the worst that happened, how many times something did or is planned, and both in words."""

    day: int
    kind: str
    count: int
    said: str


def month_of(first: date, tz: tzinfo) -> Month:
    first = first.replace(day=1)
    days, at = [], first
    while at.month == first.month:
        days.append(day_of(at, tz))
        at += timedelta(days=1)
    return Month(first, tuple(days))


def cells(
    runs: Sequence[Task[object]],
    skips: Sequence[SkipInfo],
    planned: Sequence[datetime],
    *,
    month: Month,
    known_from: datetime | None = None,
    planned_until: datetime | None = None,
) -> list[Cell]:
    """Return the days on which something happened or will. Runs are known from an instant on, plans up to one; None: all are."""
    counts: list[Counter[str]] = [Counter() for _ in month.days]
    for run in runs:
        _add(counts, month, run.planned_at or run.due_at, run.state.value, 1)
    for skip in skips:
        _add(counts, month, skip.planned_at, "skipped", skip.count)
    for at in planned:
        _add(counts, month, at, "planned", 1)
    found = []
    for number_of_day, (day, count) in enumerate(zip(month.days, counts, strict=True), 1):
        end = day.end.astimezone(UTC)
        cut = (known_from is not None and day.start.astimezone(UTC) < known_from and not count["planned"]) or (
            planned_until is not None and end > planned_until
        )
        if count or cut:
            found.append(_cell(number_of_day, day, count, cut=cut))
    return found


def _add(counts: list[Counter[str]], month: Month, at: datetime, kind: str, times: int) -> None:
    tz = month.days[0].start.tzinfo
    local = at.astimezone(tz).date()
    if (local.year, local.month) == (month.first.year, month.first.month):
        counts[local.day - 1][kind] += times


def _cell(day_number: int, day: Day, count: Counter[str], *, cut: bool) -> Cell:
    happened = [kind for kind in WORST_FIRST if count[kind]]
    kind = happened[0] if happened else "planned"
    words = [f"{number(count[name])} {name}" for name in (*happened, "planned") if count[name]]
    if cut:
        words.append("and more that are not looked at here" if words else "too many to look at here")
    return Cell(day_number, kind, 0 if cut else count.total(), f"{day.start:%a %d %b}: {', '.join(words)}")


def month_row(found: Sequence[Cell], *, month: Month, today: int | None, name: str) -> Markup:
    """Draw the days of one schedule, and mark today."""
    width = 100 / len(month.days)
    drawn = []
    for cell in found:
        left = (cell.day - 1) * width
        drawn.append(
            Markup('<g class="{}"><rect x="{:.3f}%" y="2" width="{:.3f}%" height="20" rx="2"><title>{}</title></rect>').format(
                cell.kind, left + 0.15, width - 0.3, cell.said
            )
        )
        text = "" if cell.count == 1 else "…" if not cell.count else _short(cell.count)
        drawn.append(Markup('<text x="{:.3f}%" y="16" aria-hidden="true">{}</text></g>').format(left + width / 2, text))
    if today is not None:
        at = (today - 1) * width
        drawn.append(Markup('<rect class="today" x="{:.3f}%" y="1" width="{:.3f}%" height="22" rx="3"/>').format(at, width))
    return Markup('<svg class="day month" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, f"{name}: {summary(found)}", Markup("").join(drawn)
    )


def _short(count: int) -> str:
    return str(count) if count < THOUSAND else f"{count / THOUSAND:.0f}k"


def summary(found: Sequence[Cell]) -> str:
    """Say in words what a row shows: how many days of each kind."""
    kinds = Counter(cell.kind for cell in found)
    return ", ".join(f"{count} {'day' if count == 1 else 'days'} {kind}" for kind, count in kinds.items()) or "nothing in this month"


def labels(month: Month) -> list[tuple[float, str, bool]]:
    """Return the number of every day, where it lies, and whether it is on a week-end."""
    width = 100 / len(month.days)
    return [((index + 0.5) * width, str(index + 1), day.start.weekday() >= 5) for index, day in enumerate(month.days)]
