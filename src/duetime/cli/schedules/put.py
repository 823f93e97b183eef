"""`schedules put` makes or changes a schedule; `schedules preview` shows what a rule plans."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.handlers.options import REQUEST, definition_of, request_from, request_options
from duetime.cli.handlers.options import store_option as target_store_option
from duetime.cli.schedules import tables
from duetime.cli.schedules.rule_options import rule_from, rule_options
from duetime.cli.session import Audited, json_option, now_of, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.schedules.info import ScheduleInfo
    from duetime.model.rules import DayCalendar, Rule
    from duetime.model.task import IfStored

MAX_SHOWN = 10_000
_RULES = ("cron", "every", "at", "after_end", "rule", "tz")


@click.command()
@click.argument("name")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1, callback=parsing.argument_map)
@click.option("--handler", metavar="NAME", help="The handler of its tasks; with --url the name of the schedule unless given.")
@rule_options
@request_options
@click.option(
    "--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="The arguments as a JSON object, from a file or standard input."
)
@click.option("--calendar", "calendars", metavar="NAME", multiple=True, help="A calendar that must permit it; may be repeated.")
@click.option("--start", metavar=parsing.INSTANT, callback=parsing.instant, help="Plan nothing before.")
@click.option("--end", metavar=parsing.INSTANT, callback=parsing.instant, help="Plan nothing after.")
@click.option("--count", type=int, metavar="N", help="This many occurrences in all.")
@click.option("--jitter", metavar=parsing.DURATION, callback=parsing.duration, help="Due up to this much later than planned.")
@click.option("--missed", metavar="POLICY", help='skip, latest (default), earliest, or all, such as "all within 6h at most 100 at 10/min".')
@click.option("--overlap", metavar="POLICY", help="skip (default), queue one, queue all, cancel, allow or allow N.")
@click.option("--grace", metavar=parsing.DURATION, callback=parsing.duration, help="How late it may be before it counts as missed (10 s).")
@click.option("--pause-after", type=int, metavar="N", help="Pause after this many failed runs in a row.")
@click.option("--collection", metavar="NAME", help="The collection of its tasks.")
@click.option("--priority", type=int, help="0 to 9, 9 first; otherwise the handler's.")
@click.option("--timeout", metavar=parsing.DURATION, callback=parsing.duration, help="How long an attempt may run.")
@click.option("--expires", metavar=parsing.DURATION, callback=parsing.duration, help="Do not start a task this long after its due time.")
@click.option("--meta", metavar="NAME=VALUE", multiple=True, callback=parsing.text_map, help="Travels with its tasks; may be repeated.")
@click.option("--note", metavar="TEXT", help="What it is for.")
@click.option("--if-exists", type=click.Choice(["replace", "keep", "error"]), default="replace", show_default=True, help="If there is one.")
@click.option("--catch-up", is_flag=True, help="Treat what the changed rule had planned before now as missed.")
@click.option("--allow-unknown", is_flag=True, help="Also if no process has declared the handler yet.")
@json_option
@target_store_option
def put(
    name: str,
    arguments: dict[str, Any],
    payload: dict[str, Any] | None,
    if_exists: IfStored,
    catch_up: bool,
    allow_unknown: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a schedule, or change it.

    Say when with --cron, --every, --at, --after-end or --rule; several are joined. Instants that a changed rule planned before now
    are not run, unless you add --catch-up.

    With --url no code is needed: the handler is stored too, and workers with --targets call that address. It is not the store here;
    that is --store.
    """
    request = request_from(**{each: options.pop(each) for each in REQUEST})
    if request is not None:
        options["handler"] = options["handler"] or name
    elif options["handler"] is None:
        raise click.UsageError("say what runs: give --handler, or --url of what is to be called")
    rule = rule_from(**{each: options.pop(each) for each in _RULES})
    if rule is None:
        raise click.UsageError("say when: give --cron, --every, --at, --after-end or --rule")
    twice = arguments.keys() & (payload or {}).keys()
    if twice:
        raise click.UsageError(f"{min(twice)} is given both as NAME=VALUE and in --payload")

    async def use(app: App) -> tuple[ScheduleInfo, datetime]:
        from duetime.client.schedules.schedule import Schedule

        if request is not None:
            await app.targets.put(options["handler"], definition_of(request))
        given = {each: value for each, value in options.items() if value is not None and value != () and value != {}}
        schedule = Schedule(name, rule=rule, payload={**(payload or {}), **arguments}, **given)
        info = await app.schedules.put(schedule, if_exists=if_exists, catch_up=catch_up, allow_unknown=allow_unknown)
        return info, now_of(app)

    creates = allow_unknown or request is not None
    info, now = on_store(use, creates=creates, audited=Audited("schedules.put", name))
    if as_json:
        show.print_json(tables.document(info))
    else:
        click.echo(show.printable(f"{info.name}: {info.description}; next {tables.next_words(info, now) or 'never'}"))
        if info.warning:
            show.note(info.warning)


@click.command()
@click.argument("name", required=False)
@rule_options
@click.option("--calendar", "calendars", metavar="NAME", multiple=True, help="A calendar that must permit it, for a rule given here.")
@click.option("--count", type=click.IntRange(1, MAX_SHOWN), default=10, show_default=True, metavar="N", help="How many instants.")
@click.option("--after", metavar=parsing.INSTANT, callback=parsing.instant, help="Those after this instant; otherwise after now.")
@json_option
@store_option
def preview(name: str | None, calendars: tuple[str, ...], count: int, after: datetime | None, as_json: bool, **options: Any) -> None:
    """Show the next planned instants of a schedule, or of a rule that is not stored.

    A rule given by --cron and the like needs no store, unless it names calendars.
    """
    rule = rule_from(**options)
    if (name is None) == (rule is None):
        raise click.UsageError(
            "give the NAME of a schedule, or a rule such as --cron, not both" if name else "give NAME, or --cron and the like"
        )
    if name is not None and calendars:
        raise click.UsageError("--calendar goes with a rule given here; a stored schedule has its own")
    if name is not None:
        found, now = on_store(lambda app: _stored(app, name, count, after))
    else:
        assert rule is not None
        known = on_store(lambda app: app.calendars.list()) if calendars or _names_calendar(rule) else {}
        found, now = _planned(rule, calendars, known, count, after)
    if as_json:
        show.print_json_list({"planned_at": tables.document(when), "local": when.isoformat()} for when in found)
        return
    for when in found:
        click.echo(tables.instant_line(when, now))
    if len(found) < count:
        show.note("nothing more is planned" if found else "nothing is planned")


async def _stored(app: App, name: str, count: int, after: datetime | None) -> tuple[list[datetime], datetime]:
    return await app.schedules.preview(name, count=count, after=after), now_of(app)


def _names_calendar(rule: Rule) -> bool:
    """Return whether a rule names a calendar itself."""
    from duetime.model.rules import Union

    return any(getattr(part, "business", None) for part in (rule.parts if isinstance(rule, Union) else (rule,)))


def _planned(
    rule: Rule, within: tuple[str, ...], known: Mapping[str, DayCalendar], count: int, after: datetime | None
) -> tuple[list[datetime], datetime]:
    from zoneinfo import ZoneInfo

    from duetime.clock import LATEST, SystemClock, to_datetime, to_instant
    from duetime.model.rules import plan_of

    now = SystemClock().now()
    plan = plan_of(rule, calendars=known, within=within)
    zone = ZoneInfo(plan.zone)
    found = plan.between(now if after is None else to_instant(after, "after"), LATEST, count)
    return [to_datetime(each).astimezone(zone) for each in found], to_datetime(now)
