"""The course of attempts, lateness and load over a range, as charts and as tables of the same values. Pure: a series in, drawings out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, tzinfo

import msgspec
from markupsafe import Markup

from duetime.client.series import Series
from duetime.model.series import SeriesName
from duetime.web.charts import Line, chart
from duetime.web.words import duration, number

RANGES = {
    "15min": (timedelta(minutes=15), 10),
    "24h": (timedelta(hours=24), 300),
    "7d": (timedelta(days=7), 3600),
    "30d": (timedelta(days=30), 3600),
}
BY_DAY = "30d"  # hours are added up to days of the viewer's zone
NAMES = (
    *("attempts", "succeeded", "failed", "fatal", "timed_out", "lost", "retry_later", "cancelled", "tasks_failed"),
    *("lateness_p50", "lateness_p95", "lateness_p99", "due", "running", "oldest_due"),
)
_LONGEST = frozenset(("lateness_p50", "lateness_p95", "lateness_p99", "oldest_due"))  # of several handlers the worst; the rest is added up


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One chart: its name, its drawing, and its values by time for those who read a table."""

    name: str
    drawing: Markup
    lines: Sequence[Line]
    times: Sequence[str]
    write: Callable[[float], str]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The values as text, the latest first."""
        columns = [line.values for line in self.lines]
        found = [
            (at, ["–" if value is None else self.write(value) for value in values])
            for at, *values in zip(self.times, *columns, strict=True)
        ]
        return found[::-1]


def whole(series: Series, name: str) -> list[float | None]:
    """Return the values of a series without the last step, which is not over: what is counted in it would look like a fall."""
    return list(series[name][:-1])


def together(found: Sequence[Series]) -> Series | None:
    """Return one series of several handlers: counts are added up; of latenesses the worst handler's is taken, which has no sum."""
    if not found:
        return None
    values = {}
    for name in found[0].values:
        columns = zip(*(each.values[name] for each in found), strict=True)
        join = max if name in _LONGEST else sum
        values[SeriesName(name)] = [join(known) if (known := [each for each in column if each is not None]) else None for column in columns]
    return msgspec.structs.replace(found[0], handler=None, values=values)


def courses(series: Series, tz: tzinfo, chosen: str, *, worst: bool = False) -> list[Course]:
    """Return the charts of a series. `worst`: its latenesses are those of the worst of several handlers."""
    if chosen == BY_DAY:
        return _charts(by_day(series, tz), [f"{at:%a %d %b}" for at in days(series, tz)], [f"{at:%d %b}" for at in days(series, tz)], "day")
    times = [f"{at.astimezone(tz):%H:%M:%S}" if chosen == "15min" else f"{at.astimezone(tz):%a %H:%M}" for at in series.at[:-1]]
    short = [text[:-3] if chosen == "15min" else text[4:] if chosen == "24h" else text for text in times]
    return _charts(series, times, short, {10: "10 s", 300: "5 min", 3600: "hour"}[series.step], worst=worst)


def days(series: Series, tz: tzinfo) -> list[datetime]:
    """Return the days of local time in a series, each by its first step; the last one is today."""
    found: dict[date, datetime] = {}
    for at in series.at:
        local = at.astimezone(tz)
        found.setdefault(local.date(), local)
    return list(found.values())


def by_day(series: Series, tz: tzinfo) -> Series:
    """Return the same by days of local time, which have 23 to 25 hours: counts are added up, of latenesses and loads the worst is taken."""
    on = [at.astimezone(tz).date() for at in series.at]
    values = {}
    for name, hours in series.values.items():
        found: dict[date, list[float]] = {each: [] for each in on}
        for each, value in zip(on, hours, strict=True):
            found[each] += [] if value is None else [value]
        join = max if name in _LONGEST or name in ("due", "running") else sum
        # charts leave the last step out; so that today is shown although it is not over, there is one more
        values[name] = [*(join(some) if some else None for some in found.values()), None]
    return msgspec.structs.replace(series, values=values)


def _charts(series: Series, times: Sequence[str], short: Sequence[str], step: str, *, worst: bool = False) -> list[Course]:
    throughput = [
        Line(name="succeeded", kind="succeeded", values=whole(series, "succeeded")),
        Line(name="failed", kind="failed", values=_added(series, "failed", "fatal", "timed_out")),
        Line(name="other", kind="cancelled", values=_added(series, "retry_later", "cancelled", "lost")),
    ]
    lateness = [
        Line(name="p50", kind="succeeded", values=whole(series, "lateness_p50"), dash="1 3"),
        Line(name="p95", kind="running", values=whole(series, "lateness_p95"), dash="5 3"),
        Line(name="p99", kind="blocked", values=whole(series, "lateness_p99")),
    ]
    load = [
        Line(name="due", kind="expired", values=whole(series, "due")),
        Line(name="running", kind="running", values=whole(series, "running"), dash="5 3"),
    ]
    late = "Lateness of the latest handler" if worst else "Lateness: from due to start"
    drawn = chart(lateness, short, title="Lateness", write=duration, logarithmic=True, mark=(5.0, "5 s"))
    return [
        Course(
            name=f"Attempts per {step}",
            drawing=chart(throughput, short, title="Attempts by outcome", write=_count, stacked=True),
            lines=throughput, times=times, write=_count,
        ),
        Course(name=late, drawing=drawn, lines=lateness, times=times, write=duration),
        Course(
            name="Due and running", drawing=chart(load, short, title="Due and running", write=_count),
            lines=load, times=times, write=_count,
        ),
    ]  # fmt: skip


def _added(series: Series, *names: str) -> list[float | None]:
    return [
        sum(value or 0 for value in values) if any(value is not None for value in values) else None
        for values in zip(*(whole(series, name) for name in names), strict=True)
    ]


def _count(value: float) -> str:
    return number(round(value)) if value >= 10 or value == round(value) else number(value)
