"""The `calendars` commands: named sets of days and hours that schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.model.rules import DayCalendar

COLUMNS = (
    show.Column("name"),
    show.Column("mode"),
    show.Column("weekdays", spare=3),
    show.Column("times", spare=2),
    show.Column("dates", spare=1),
    show.Column("zone"),
    show.Column("also", spare=4),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def calendars(ctx: click.Context, as_json: bool) -> None:
    """List, make and remove calendars.

    A calendar is a named set of days and hours, such as holidays or office hours, that permits or forbids what schedules plan. Without
    a command the calendars are listed.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@calendars.command("list")
@json_option
@store_option
def list_calendars(as_json: bool) -> None:
    """List the calendars."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.calendars.list())
    if as_json:
        show.print_json_list(_document(name, calendar) for name, calendar in found.items())
        return
    rows = [_row(name, calendar) for name, calendar in found.items()]
    show.print_table(COLUMNS, rows, empty="there are no calendars; `duetime calendars put` makes one")


def _document(name: str, calendar: DayCalendar) -> dict[str, Any]:
    import msgspec

    return {"name": name, **msgspec.to_builtins(calendar)}


def _row(name: str, calendar: DayCalendar) -> tuple[object, ...]:
    days = [*calendar.dates, *calendar.yearly, *(f"day {day}" for day in calendar.monthly)]
    shown = ", ".join(days[:3]) + (f" and {len(days) - 3:,} more" if len(days) > 3 else "")
    times = calendar.cron or ", ".join(calendar.times)
    return (name, calendar.mode, calendar.weekdays, times, shown, calendar.tz, ", ".join(calendar.also))


@calendars.command("show")
@click.argument("name")
@json_option
@store_option
def show_calendar(name: str, as_json: bool) -> None:
    """Show one calendar in full."""
    calendar = on_store(lambda app: app.calendars.get(name))
    if as_json:
        show.print_json(_document(name, calendar))
        return
    show.print_facts(
        (
            ("calendar", name),
            ("mode", f"{calendar.mode}: {'permits what does not match' if calendar.mode == 'exclude' else 'permits what matches'}"),
            ("dates", ", ".join(calendar.dates)),
            ("every year", ", ".join(calendar.yearly)),
            ("every month", ", ".join(map(str, calendar.monthly))),
            ("weekdays", calendar.weekdays),
            ("times", ", ".join(calendar.times)),
            ("cron", calendar.cron),
            ("zone", calendar.tz),
            ("also", ", ".join(calendar.also)),
        )
    )


@calendars.command()
@click.argument("name")
@click.option("--include", is_flag=True, help="Permit what matches; otherwise what matches is excluded.")
@click.option("--date", "dates", metavar="DATE", multiple=True, help="A day, such as 2030-04-22; may be repeated.")
@click.option("--yearly", metavar="MM-DD", multiple=True, help="A day of every year, such as 12-25; may be repeated.")
@click.option("--monthly", metavar="DAY", multiple=True, help="A day of every month, 1 to 31 or last; may be repeated.")
@click.option("--weekdays", metavar="DAYS", help="Weekdays, such as sat,sun or mon-fri.")
@click.option("--times", metavar="HH:MM-HH:MM", multiple=True, help="Hours of the day; may be repeated.")
@click.option("--cron", metavar="EXPRESSION", help="Each minute that a cron expression names, in place of days and hours.")
@click.option("--tz", metavar="ZONE", callback=parsing.zone, help="The zone of its days and hours; otherwise UTC.")
@click.option("--also", metavar="NAME", multiple=True, help="Another calendar that must permit it too; may be repeated.")
@click.option("--definition", metavar="JSON|@FILE|-", callback=parsing.payload, help="The whole calendar as a JSON object instead.")
@store_option
def put(name: str, include: bool, definition: dict[str, Any] | None, **options: Any) -> None:
    """Make a calendar, or change it; the schedules that use it are planned again."""
    given = {each: value for each, value in options.items() if value}
    if definition is not None and (given or include):
        raise click.UsageError("give --definition, or the other options, not both")
    if include:
        given["mode"] = "include"
    calendar = _read(given if definition is None else definition)
    on_store(lambda app: app.calendars.put(name, calendar), audited=Audited("calendars.put", name))
    click.echo(f"put {name}")


def _read(fields: dict[str, Any]) -> DayCalendar:
    import msgspec

    from duetime.errors import InvalidValue
    from duetime.model.rules import DayCalendar

    fields = {each: value for each, value in fields.items() if each != "name"}  # so that the output of `show --json` can be read back
    try:
        return msgspec.convert(fields, DayCalendar)
    except (msgspec.ValidationError, InvalidValue) as problem:
        cause = problem.__cause__ if isinstance(problem.__cause__, InvalidValue) else problem
        raise click.UsageError(str(cause)) from None


@calendars.command()
@click.argument("name")
@store_option
def delete(name: str) -> None:
    """Remove a calendar that no schedule uses."""
    on_store(lambda app: app.calendars.delete(name), audited=Audited("calendars.delete", name))
    click.echo(f"deleted {name}")
