"""The `handlers` commands."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.handlers.put import put
from duetime.cli.handlers.testing import test_handler
from duetime.cli.session import Audited, json_option, on_store, store_option
from duetime.model.task import State

if TYPE_CHECKING:
    from duetime.client.insight import HandlerInfo
    from duetime.client.targets import TargetInfo


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
@json_option
@store_option
def show_target(name: str, as_json: bool) -> None:
    """Show the target that is stored under a handler's name.

    What it prints below `target` can be changed and stored again: duetime handlers put NAME --file.
    """
    import msgspec

    info: TargetInfo = on_store(lambda app: app.targets.get(name))
    if as_json:
        show.print_json(info)
        return
    click.echo(show.printable(f"{info.name}: version {info.version}, put {show.absolute(info.changed_at)} by {info.changed_by}"))
    if info.shadowed:
        click.echo("A program declares a handler of this name: its code runs the tasks, and this target is not used.")
    if info.target is None:
        click.echo("A newer Duetime has stored it; this one cannot read it.")
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(info.target), indent=2).decode())


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
