"""The `gates` commands: pause or drop the tasks of a handler at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.failures import NOT_FOUND, REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.gates import GateInfo, GateSet

COLUMNS = (
    show.Column("handler"),
    show.Column("collection", spare=1),
    show.Column("action"),
    show.Column("until", whole=True),
    show.Column("probe", spare=5),
    show.Column("set by", spare=3),
    show.Column("set", spare=4),
    show.Column("note", spare=2),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def gates(ctx: click.Context, as_json: bool) -> None:
    """List, close and open gates.

    A gate pauses or drops the tasks of a handler, or of one of its collections. Without a command the closed ones are listed.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@gates.command("list")
@json_option
@store_option
def list_gates(as_json: bool) -> None:
    """List the closed gates."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.gates.list())
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (
            *(gate.handler, gate.collection, gate.action, show.absolute(gate.until_at), show.absolute(gate.probe_at)),
            *(gate.set_by, show.absolute(gate.set_at), gate.note),
        )
        for gate in found
    ]
    show.print_table(COLUMNS, rows, empty="all gates are open")


def _closing(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        store_option,
        json_option,
        click.option("--allow-unknown", is_flag=True, help="Also if no process has declared the handler yet."),
        click.option(
            "--timeout",
            metavar=parsing.DURATION,
            callback=parsing.duration,
            default="20s",
            show_default=True,
            help="How long to wait until every worker has confirmed it.",
        ),
        click.option("--note", metavar="TEXT", default="", help="Why; `duetime why` shows it."),
        click.option("--for", "lasting", metavar=parsing.DURATION, callback=parsing.duration, help="Open by itself after this long."),
        click.option("--collection", metavar="NAME", help="Only tasks of this collection."),
        click.argument("handler"),
    ):
        function = option(function)
    return function


@gates.command()
@_closing
def pause(handler: str, as_json: bool, **options: Any) -> None:
    """Stop the tasks of a handler from starting until the gate opens.

    HANDLER may have a * for any characters: then all declared handlers that fit are paused, '*' is all of them.
    """
    if "*" in handler:
        _close_all(handler, "pause", options, as_json)
        return
    _close(lambda app: app.gates.pause(handler, **options), "pause", handler, options, as_json)


@gates.command()
@_closing
def drop(handler: str, as_json: bool, **options: Any) -> None:
    """Record tasks that come due as dropped instead of running them.

    HANDLER may have a * for any characters: then those of all declared handlers that fit are dropped.
    """
    if "*" in handler:
        _close_all(handler, "drop", options, as_json)
        return
    _close(lambda app: app.gates.drop(handler, **options), "drop", handler, options, as_json)


def _close(put: Callable[[App], Any], verb: str, handler: str, options: dict[str, Any], as_json: bool) -> None:
    audited = Audited(
        f"gates.{verb}", _subject(handler, options["collection"]), detail=lambda done: "; ".join([options["note"], str(done)]).lstrip("; ")
    )
    with show.waiting(f"waiting until every worker has confirmed the gate on {handler}"):
        done: GateSet = on_store(put, audited=audited)
    if as_json:
        show.print_json(
            {"gate": done.gate, "version": done.version, "in_force": done.in_force, "confirmed": done.confirmed, "waiting": done.waiting}
        )
    else:
        gate = done.gate
        until = "until it is opened" if gate.until_at is None else f"until {show.absolute(gate.until_at)}"
        click.echo(f"{gate.action} {_in_sentence(handler, gate.collection)} {until}: {done}")
    if not done.in_force:
        print_error(f"the gate is set, but not confirmed by {', '.join(done.waiting)}; tasks that they have claimed may still start")
        raise click.exceptions.Exit(REFUSED)


def _close_all(pattern: str, verb: str, options: dict[str, Any], as_json: bool) -> None:
    from duetime.model.gate import GateAction

    if options["collection"] is not None:
        raise click.UsageError("a collection belongs to one handler; name the handler without *")
    chosen = {name: options[name] for name in ("lasting", "note", "timeout")}
    audited = Audited(
        f"gates.{verb}",
        pattern,
        detail=lambda done: "; ".join(filter(None, [options["note"], ", ".join(each.gate.handler for each in done), str(done[-1])])),
    )
    with show.waiting(f"waiting until every worker has confirmed the gates on {pattern}"):
        done: list[GateSet] = on_store(lambda app: app.gates.close_all(pattern, GateAction(verb), **chosen), audited=audited)
    if as_json:
        show.print_json_list([each.gate for each in done])
    else:
        click.echo(f"{verb} {', '.join(each.gate.handler for each in done)}: {done[-1]}")
    if not done[-1].in_force:
        print_error(f"the gates are set, but not confirmed by {', '.join(done[-1].waiting)}; tasks that they have claimed may still start")
        raise click.exceptions.Exit(REFUSED)


@gates.command("open")
@click.argument("handler")
@click.option("--collection", metavar="NAME", help="The gate of this collection; otherwise that of the whole handler.")
@store_option
def open_gate(handler: str, collection: str | None) -> None:
    """Open a gate; what was paused runs.

    HANDLER may have a * for any characters: then the gates of all that fit are opened, those of collections too.
    """
    if "*" in handler and collection is None:
        _open_all(handler)
        return
    named = _in_sentence(handler, collection)
    audited = Audited("gates.open", _subject(handler, collection), done=bool)
    if not on_store(lambda app: app.gates.open(handler, collection=collection), audited=audited):
        print_error(f"there is no gate on {named}; `duetime gates` lists those that are closed")
        raise click.exceptions.Exit(NOT_FOUND)
    click.echo(f"open {named}")


def _open_all(pattern: str) -> None:
    audited = Audited("gates.open", pattern, detail=lambda opened: ", ".join(_subject(each.handler, each.collection) for each in opened))
    opened: list[GateInfo] = on_store(lambda app: app.gates.open_all(pattern), audited=audited)
    if not opened:
        print_error(f"no gate is closed on a handler that fits {pattern}; `duetime gates` lists those that are closed")
        raise click.exceptions.Exit(NOT_FOUND)
    click.echo(f"open {', '.join(_in_sentence(each.handler, each.collection).rstrip(',') for each in opened)}")


def _subject(handler: str, collection: str | None) -> str:
    return handler if collection is None else f"{handler}, collection {collection}"


def _in_sentence(handler: str, collection: str | None) -> str:
    return handler if collection is None else f"{handler}, collection {collection},"
