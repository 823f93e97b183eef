"""The `schedules forecast` command: tables and a plot that fits 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

import click

from duetime.cli import parsing, show
from duetime.cli.session import json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.schedules.forecasting import Ahead
    from duetime.clock import Instant
    from duetime.model.forecast import Collision, Forecast, Hour, Outlook

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = " .:-=+*%#"  # for terminals that have no block characters
ROWS = 24  # of a table, without --all

HOUR_COLUMNS = (
    show.Column("hour"),
    show.Column("runs", right=True),
    show.Column("busy", right=True),
    show.Column("most at once", right=True),
)
SCHEDULE_COLUMNS = (
    show.Column("schedule"),
    show.Column("handler", spare=2),
    show.Column("runs", right=True),
    show.Column("skipped", right=True, spare=1),
    show.Column("busy", right=True),
    show.Column("a run takes", right=True),
)
COLLISION_COLUMNS = (
    show.Column("collision of"),
    show.Column("at once", right=True),
    show.Column("slots", right=True),
    show.Column("times", right=True),
    show.Column("first"),
    show.Column("schedules", spare=1),
)


@click.command("forecast")
@click.option("--days", type=float, default=7.0, show_default=True, metavar="N", help="How far to look ahead, at most 366.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, callback=parsing.zone, help="The zone of the hours that are shown.")
@click.option("--all", "everything", is_flag=True, help=f"Show all rows of each table, not only the {ROWS} busiest.")
@json_option
@store_option
def forecast_command(days: float, tz: str, everything: bool, as_json: bool) -> None:
    """Forecast the load of all schedules.

    The rules run in virtual time. A run takes as long as the latest runs of its handler took, or 1 s if there are none. A collision
    is a time in which runs of at least two schedules need more slots of a handler than there are.
    """

    with show.waiting("running the rules in virtual time"):
        ahead: Ahead = on_store(lambda app: app.schedules.forecast(days=days))
    if as_json:
        show.print_json(_document(ahead))
    else:
        _print(ahead, _zone(tz), None if everything else ROWS)


def _zone(tz: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(tz)


def _document(ahead: Ahead) -> dict[str, object]:
    """Return the forecast for JSON, with instants as RFC 3339."""
    import msgspec

    from duetime.clock import to_datetime

    def dated(value: object) -> object:
        if isinstance(value, dict):
            return {name: to_datetime(each) if name in INSTANTS and each is not None else dated(each) for name, each in value.items()}
        return [dated(each) for each in value] if isinstance(value, list | tuple) else value

    document = dated(msgspec.to_builtins(ahead.forecast))
    assert isinstance(document, dict)
    return {**document, "paused": ahead.paused, "broken": ahead.broken}


INSTANTS = frozenset({"at", "start_at", "until_at", "first_at"})


def _print(ahead: Ahead, zone: tzinfo, rows: int | None) -> None:
    found = ahead.forecast
    start, until = _local(found.start_at, zone), _local(found.until_at, zone)
    click.echo(f"{start:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} {start:%Z}: {_summary(found)}")
    if found.cut:
        show.note(f"cut after {found.occurrences:,} occurrences: what comes after {until:%Y-%m-%d %H:%M:%S} is left out")
    for name, reason in ahead.broken.items():
        show.note(f"left out: {name}: {reason}")
    if ahead.paused:
        show.note(f"left out because {'it is' if len(ahead.paused) == 1 else 'they are'} paused: {_names(ahead.paused)}")
    if not found.runs:
        show.note("no schedule will fire in this time")
        return
    click.echo()
    for line in plot(found.hours, zone, blocks=_blocks()):
        click.echo(line)
    if found.busiest is not None:
        at = _local(found.busiest.at, zone)
        names = _names(found.busiest.schedules, found.busiest.further)
        click.echo(f"\nbusiest minute: {at:%Y-%m-%d %H:%M} with {show.count(found.busiest.runs, 'start')}: {names}")
    _print_tables(found, zone, rows)


def _print_tables(found: Forecast, zone: tzinfo, rows: int | None) -> None:
    working = [hour for hour in found.hours if hour.runs or hour.busy]
    busiest = sorted(working, key=lambda hour: (-hour.busy, -hour.runs, hour.at))[:rows]
    click.echo()
    show.print_table(HOUR_COLUMNS, [_hour_row(hour, zone) for hour in sorted(busiest, key=lambda hour: hour.at)], empty="")
    _note_omitted(len(working) - len(busiest), "hour", "with less load")
    outlooks = sorted(found.schedules, key=lambda each: (-each.busy, -each.runs, each.schedule))
    click.echo()
    show.print_table(SCHEDULE_COLUMNS, [_schedule_row(each) for each in outlooks[:rows]], empty="")
    _note_omitted(len(outlooks) - len(outlooks[:rows]), "schedule", "with less load")
    if any(not each.measured for each in outlooks):
        show.note("* assumed, because no run of the handler has succeeded yet")
    click.echo()
    collisions = found.collisions[:rows]
    show.print_table(COLLISION_COLUMNS, [_collision_row(each, zone) for each in collisions], empty="no collisions: there are slots enough")
    _note_omitted(len(found.collisions) - len(collisions) + found.further_collisions, "collision", "of less weight")


def _note_omitted(number: int, what: str, why: str) -> None:
    if number:
        show.note(f"{show.count(number, what)} {why} not shown; --all shows {'it' if number == 1 else 'them'}")


def _summary(found: Forecast) -> str:
    skipped = f", {found.skipped:,} skipped because the run before was still going on" if found.skipped else ""
    load = f"{_length(found.busy)} of work, at most {found.most:,} at once"
    return f"{show.count(len(found.schedules), 'schedule')}, {show.count(found.runs, 'run')}{skipped}, {load}"


def _hour_row(hour: Hour, zone: tzinfo) -> tuple[object, ...]:
    return (f"{_local(hour.at, zone):%a %Y-%m-%d %H:%M}", f"{hour.runs:,}", _length(hour.busy), f"{hour.most:,}")


def _schedule_row(each: Outlook) -> tuple[object, ...]:
    takes = _length(each.duration) + ("" if each.measured else "*")
    return (each.schedule, each.handler, f"{each.runs:,}", f"{each.skipped:,}", _length(each.busy), takes)


def _collision_row(each: Collision, zone: tzinfo) -> tuple[object, ...]:
    first = f"{_local(each.first_at, zone):%Y-%m-%d %H:%M:%S}"
    return (each.handler, f"{each.most:,}", f"{each.slots:,}", f"{each.times:,}", first, _names(each.schedules))


def _names(names: Sequence[str], further: int = 0, shown: int = 5) -> str:
    further += max(0, len(names) - shown)
    return ", ".join(names[:shown]) + (f" and {further:,} more" if further else "")


def _local(instant: Instant, zone: tzinfo) -> datetime:
    from duetime.clock import to_datetime

    return to_datetime(instant).astimezone(zone)


def _length(seconds: float) -> str:
    return show.span(timedelta(seconds=seconds))


# ---- the plot ----


def plot(hours: Sequence[Hour], zone: tzinfo, *, blocks: str = BLOCKS) -> Iterator[str]:
    """Draw one line per local day and one block per hour, as high as the hour's seconds of work; no line has more than 80 characters."""
    days: dict[date, list[float]] = {}
    runs: dict[date, int] = {}
    for hour in hours:
        local = _local(hour.at, zone)
        day = local.date()
        days.setdefault(day, [0.0] * 24)[local.hour] += hour.busy  # an hour that occurs twice is drawn once, with the work of both
        runs[day] = runs.get(day, 0) + hour.runs
    highest = max((busy for row in days.values() for busy in row), default=0.0)
    yield " " * 11 + "".join(f"{hour:02}    " for hour in range(0, 24, 3)).rstrip()
    for day, row in days.items():
        bars = "".join(_block(busy, highest, blocks) * 2 for busy in row)
        yield f"{day:%a %m-%d} |{bars}| {show.count(runs[day], 'run')}"
    yield f"a full block is {_length(highest)} of work in an hour"


def _block(busy: float, highest: float, blocks: str) -> str:
    """Choose a block; any work at all shows at least the lowest one."""
    if busy <= 0:
        return blocks[0]
    return blocks[max(1, min(len(blocks) - 1, round(busy / highest * (len(blocks) - 1))))]


def _blocks() -> str:
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_BLOCKS
    return BLOCKS
