"""The `events` command: what happened to tasks, schedules, workers and gates, and what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.model.event import Event, EventFilter

COLUMNS = (
    show.Column("at", whole=True),
    show.Column("event", whole=True),
    show.Column("of", whole=True),
    show.Column("handler", spare=1),
    show.Column("detail", spare=2),
)


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--handler", metavar="NAME", help="Only of this handler, or of all that begin with NAME where it ends with *.")
@click.option("--task", "task_id", metavar="ID", help="Only of this task.")
@click.option("--follow", "-f", is_flag=True, help="Print events as they happen, until ^C; with --json a line of JSON each.")
@click.option("--after", metavar="CURSOR", help="Those after this one: the `cursor` of an event.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Without --follow: look at this many.")
@json_option
@store_option
def events(
    names: tuple[str, ...], handler: str | None, task_id: str | None, follow: bool, after: str | None, limit: int, as_json: bool
) -> None:
    """Print or follow what happens to tasks and workers.

    NAME is one such as task.failed or gate.paused, or task.* for all of a noun. Events are written only while somebody follows them, or
    has asked within five minutes, and kept for an hour.
    """
    from duetime.client.events import filter_of

    wanted = filter_of(names, handler, task_id)
    on_store(lambda app: _follow(app, wanted, after, as_json=as_json) if follow else _print(app, wanted, after, limit, as_json=as_json))


async def _print(app: App, wanted: EventFilter, after: str | None, limit: int, *, as_json: bool) -> None:
    from duetime.wire.events import EventList, body_of

    await app.open()
    found = await app.event_source.page(wanted, after=after, limit=limit)
    if as_json:
        show.print_json(EventList([body_of(event) for event in found.items], found.next))
        return
    empty = "there are no such events: they are written only while somebody follows them, from now on for five minutes"
    show.print_table(COLUMNS, [_row(event) for event in found.items], empty=empty)


async def _follow(app: App, wanted: EventFilter, after: str | None, *, as_json: bool) -> None:
    import msgspec

    from duetime.wire.events import body_of

    await app.open()
    async for event in app.event_source.follow(wanted, after=after):
        if as_json:
            click.echo(msgspec.json.encode(body_of(event)))
        else:
            click.echo("  ".join(str(part) for part in _row(event) if part))


def _row(event: Event) -> tuple[str | None, ...]:
    from duetime.model.event import GateEvent, ScheduleEvent, TaskEvent

    at = show.absolute(event.at)
    match event:
        case TaskEvent():
            error = "" if event.error is None else f"{event.error.type}: {event.error.message}"
            attempt = f"attempt {event.attempt}" if event.attempt else ""
            return at, event.name, event.task, event.handler, ", ".join(part for part in (attempt, error) if part)
        case ScheduleEvent():
            return at, event.name, event.schedule, event.handler or "", event.task or event.note or event.reason or ""
        case GateEvent():
            return at, event.name, event.handler, event.collection or "", event.note
        case _:
            return at, event.name, event.worker, "", event.host
