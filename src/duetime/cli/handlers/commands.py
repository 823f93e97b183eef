"""The `handlers` commands."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.handlers.put import put
from duetime.cli.handlers.testing import test_handler
from duetime.cli.session import Audited, json_option, now_of, on_store, store_option
from duetime.model.task import State

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App
    from duetime.client.insight import HandlerDetails, HandlerInfo
    from duetime.client.targets import TargetInfo
    from duetime.model.task import Task
    from duetime.targets.stored.definitions import Definition

UNREADABLE = "A newer Duetime has stored the target; this one cannot read it."


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def handlers(ctx: click.Context, as_json: bool) -> None:
    """List and test handlers; put, show and delete stored ones.

    A handler is declared by code, or its target is stored: a URL that is called, a broker that is published to, or a command. Without a
    command all are listed.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@handlers.command("list")
@json_option
@store_option
def list_handlers(as_json: bool) -> None:
    """List the handlers."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.insight.handlers())
    if as_json:
        show.print_json_list(found)
        return
    policies = (*_numbers("prio", "timeout", "tries", spare=3), show.Column("isolation", spare=3), show.Column("keeps", spare=3))
    counts = _numbers("pending", "running", "failed")
    columns = (show.Column("handler"), *_numbers("workers", "slots"), *policies, *counts, show.Column("about", spare=2))
    show.print_table(columns, map(_row, found), empty="no process has declared a handler yet; `duetime handlers put` stores one")


def _numbers(*titles: str, spare: int = 0) -> tuple[show.Column, ...]:
    return tuple(show.Column(title, right=True, spare=spare) for title in titles)


def _row(handler: HandlerInfo) -> tuple[object, ...]:
    about = handler.doc.strip().partition("\n")[0] or _stored(handler.target)
    tries = handler.retry.get("tries")
    states = [f"{handler.states[state]:,}" for state in (State.PENDING, State.RUNNING, State.FAILED)]
    keeps = ", ".join(f"{state} {show.span(timedelta(seconds=seconds))}" for state, seconds in handler.keep.items())
    policies = (handler.priority, f"{handler.timeout:g} s", tries, handler.isolation, keeps or None)
    return (handler.name, handler.workers, handler.slots, *policies, *states, about)


def _stored(target: TargetInfo | None) -> str:
    from duetime.targets.stored.specs import summary_of

    return "" if target is None or target.target is None or target.shadowed else summary_of(target.target)


@handlers.command("show")
@click.argument("name")
@click.option("--target", "only_target", is_flag=True, help="Print only its stored target, as JSON to change and put again.")
@json_option
@store_option
def show_handler(name: str, only_target: bool, as_json: bool) -> None:
    """Show a handler: what runs, how its last attempt went, what is due next, and its target if that is stored.

    To change a target: duetime handlers show NAME --target > FILE, and then duetime handlers put NAME --file FILE.
    """
    if only_target:
        info: TargetInfo = on_store(lambda app: app.targets.get(name))
        if as_json:
            show.print_json(info)
        elif info.target is None:
            show.note(UNREADABLE)
        else:
            click.echo(_json_of(info.target))
        return

    async def use(app: App) -> tuple[HandlerDetails, datetime]:
        return await app.handler_info(name), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json(found)
        return
    show.print_facts(_facts(found, now))
    if found.target is not None:
        _print_target(found.target)


def _facts(found: HandlerDetails, now: datetime) -> list[tuple[str, object]]:
    does = found.activity
    last = None if does.last_ended_at is None else f"{does.last_outcome} {show.relative(does.last_ended_at, now)}, task {does.last_task}"
    facts: list[tuple[str, object]] = [
        ("handler", found.name),
        ("about", found.doc.strip().partition("\n")[0] or None),
        ("former names", ", ".join(found.aliases) or None),
        ("workers", f"{found.workers} with {show.count(found.slots, 'slot')}"),
        ("should start", None if found.start_within is None else f"within {show.span(timedelta(seconds=found.start_within))}"),
        ("running", does.running),
        ("pending", found.states[State.PENDING]),
        ("failed", found.states[State.FAILED]),
        ("last start", None if does.last_started_at is None else show.relative(does.last_started_at, now)),
        ("last end", last),
        ("in worker", does.last_worker),
        ("next due", None if does.next_due_at is None else show.relative(does.next_due_at, now)),
    ]
    return [(name, value) for name, value in facts if value is not None]


@handlers.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Show at most this many.")
@json_option
@store_option
def upcoming(name: str, limit: int, as_json: bool) -> None:
    """List the waiting tasks of a handler in the order in which they are due."""

    async def use(app: App) -> tuple[list[Task[Any]], datetime]:
        return await app.upcoming(name, limit), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json_list(found)
        return
    columns = (show.Column("id", whole=True), show.Column("due"), *_numbers("prio", "tries"), show.Column("collection"), show.Column("key"))
    rows = [(task.id, show.relative(task.due_at, now), task.priority, task.tries, task.collection, task.key) for task in found]
    show.print_table(columns, rows, empty="no task waits for its time")


def _print_target(info: TargetInfo) -> None:
    click.echo(show.printable(f"its target: version {info.version}, put {show.absolute(info.changed_at)} by {info.changed_by}"))
    if info.shadowed:
        click.echo("A program declares a handler of this name: its code runs the tasks, and this target is not used.")
    click.echo(UNREADABLE if info.target is None else _json_of(info.target))


def _json_of(target: Definition) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(target), indent=2).decode()


@handlers.command()
@click.argument("name")
@store_option
def delete(name: str) -> None:
    """Remove a stored target.

    Tasks of the handler wait until there is one of its name again.
    """
    on_store(lambda app: app.targets.delete(name), audited=Audited("handlers.delete", name))
    click.echo(show.printable(f"deleted {name}"))


handlers.add_command(put)
handlers.add_command(test_handler)
