"""How schedules are printed: as rows of a table, as one schedule in full, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show

if TYPE_CHECKING:
    from duetime.client.schedules.info import ScheduleInfo, SkipInfo

COLUMNS = (
    show.Column("name"),
    show.Column("rule", spare=2),
    show.Column("next", whole=True),
    show.Column("last", whole=True, spare=1),
    show.Column("health"),
    show.Column("handler", spare=3),
    show.Column("note", spare=4),
)
SKIP_COLUMNS = (
    show.Column("skipped", whole=True),
    show.Column("until", whole=True, spare=1),
    show.Column("count", right=True),
    show.Column("reason"),
    show.Column("note", spare=2),
)


def document(value: object) -> Any:
    """Return a value for JSON, with instants in UTC."""
    import msgspec

    return _in_utc(msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True))


def _in_utc(value: Any) -> Any:
    from datetime import UTC

    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: _in_utc(each) for name, each in value.items()}
    return [_in_utc(each) for each in value] if isinstance(value, list | tuple) else value


def row(info: ScheduleInfo, now: datetime) -> tuple[object, ...]:
    last = None if info.last is None else f"{info.last.state} {show.relative(info.last.finished_at, now)}"
    note = info.paused.note if info.paused is not None and info.paused.note else info.schedule.note
    return (info.name, info.description, next_words(info, now), last, info.health, info.handler, note)


def next_words(info: ScheduleInfo, now: datetime) -> str | None:
    """Return when it runs next, on the clock of its zone, and how long that is from now. Seconds only if they are not 0."""
    if info.next_at is None:
        return None
    seconds = ":%S" if info.next_at.second else ""
    return f"{info.next_at.strftime(f'%Y-%m-%d %H:%M{seconds} %Z')} ({show.relative(info.next_at, now)})"


def clock_time(when: datetime) -> str:
    """Format an instant on the clock of its own zone."""
    return f"{when:%Y-%m-%d %H:%M:%S} {when.tzname()}"


def print_rows(found: Iterable[ScheduleInfo], now: datetime) -> None:
    show.print_table(COLUMNS, [row(info, now) for info in found], empty="no schedules match; `duetime schedules put` makes one")


def print_one(info: ScheduleInfo, following: Sequence[datetime], skips: Sequence[SkipInfo], now: datetime) -> None:
    show.print_facts(_facts(info, now))
    if following:
        click.echo()
        for when in following:
            click.echo(instant_line(when, now))
    if skips:
        click.echo()
        show.print_table(SKIP_COLUMNS, [_skip_row(skip) for skip in skips], empty="")


def instant_line(when: datetime, now: datetime) -> str:
    return f"{when:%a} {clock_time(when)}  {show.relative(when, now)}"


def _facts(info: ScheduleInfo, now: datetime) -> Iterable[tuple[str, object]]:
    def both(when: datetime | None) -> str | None:
        return None if when is None else f"{clock_time(when)} ({show.relative(when, now)})"

    schedule, last, pause = info.schedule, info.last, info.paused
    paused = None
    if pause is not None:
        by = "by itself after failed runs" if pause.automatic else f"by {pause.by or 'somebody'}"
        paused = f"{both(pause.at)} {by}{': ' if pause.note else ''}{pause.note}"
    return (
        ("schedule", info.name),
        ("handler", info.handler),
        ("rule", info.description),
        ("health", f"{info.health}: {info.problem}" if info.problem else info.health),
        ("warning", info.warning or None),
        ("paused", paused),
        ("next", next_words(info, now)),
        ("last run", None if last is None else f"{last.state}, {both(last.finished_at)}, task {last.task}"),
        ("last error", None if last is None else last.error),
        ("where", None if last is None or last.error is None else last.error.location),
        ("last result", None if last is None or last.result is None else _json(last.result)),
        ("running", ", ".join(info.running)),
        ("fired", f"{info.fired:,}"),
        ("missed", f"{info.missed:,}" if info.missed else None),
        ("failures in a row", info.failures or None),
        ("payload", _json(schedule.payload)),
        ("calendars", ", ".join(schedule.calendars)),
        ("start", both(schedule.start)),
        ("end", both(schedule.end)),
        ("count", schedule.count),
        ("jitter", _seconds(schedule.jitter)),
        ("when missed", schedule.missed),
        ("when overlapping", schedule.overlap),
        ("grace", _seconds(schedule.grace)),
        ("pause after", None if schedule.pause_after is None else f"{schedule.pause_after} failures in a row"),
        ("collection", schedule.collection),
        ("priority", schedule.priority),
        ("timeout", _seconds(schedule.timeout)),
        ("expires", _seconds(schedule.expires)),
        ("meta", _json(schedule.meta) if schedule.meta else None),
        ("note", schedule.note),
        ("declared", None if info.declared is None else f"by a program of revision {info.declared}"),
        ("changed", f"{both(info.changed_at)} by {info.changed_by or 'somebody'}, revision {info.revision}"),
    )


def _skip_row(skip: SkipInfo) -> tuple[object, ...]:
    until = None if skip.until_at == skip.planned_at else show.absolute(skip.until_at)
    return (show.absolute(skip.planned_at), until, f"{skip.count:,}", skip.reason, skip.note)


def _seconds(value: Any) -> str | None:
    from duetime.clock import to_seconds

    return f"{to_seconds(value):g} s" if value else None


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
