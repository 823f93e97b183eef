"""The `weights` commands: how the collections of a handler share its starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.weights import WeightsInfo

COLUMNS = (
    show.Column("handler", whole=True),
    show.Column("weights", spare=2),
    show.Column("declared"),
    show.Column("set by", spare=3),
    show.Column("note", spare=4),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def weights(ctx: click.Context, as_json: bool) -> None:
    """List, show and set weights of collections.

    Collections of a fair handler share its starts by weight; those without one weigh 1.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@weights.command("list")
@json_option
@store_option
def list_weights(as_json: bool) -> None:
    """List the handlers whose collections share their starts."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.weights.list())
    if as_json:
        show.print_json_list(found)
        return
    rows = [(each.handler, _said(each), "yes" if each.declared else "no", each.set_by, each.note) for each in found]
    show.print_table(COLUMNS, rows, empty="no handler's collections share its starts")


@weights.command("show")
@click.argument("handler")
@json_option
@store_option
def show_weights(handler: str, as_json: bool) -> None:
    """Show how the collections of one handler share its starts."""
    found = on_store(lambda app: app.weights.get(handler))
    if as_json:
        show.print_json(found)
        return
    facts: list[tuple[str, object]] = [
        ("handler", found.handler),
        ("fair", "yes" if found.fair else "no: the longest waiting goes first"),
        ("declared", "yes" if found.declared else "no"),
        *((f"collection {name or '(none)'}", f"weighs {weight:g}") for name, weight in found.weights.items()),
        *((name, value) for name, value in (("set by", found.set_by), ("note", found.note)) if value),
    ]
    show.print_facts(facts)


@weights.command("put")
@click.argument("handler")
@click.argument("weights", metavar="COLLECTION=WEIGHT…", nargs=-1, required=True)
@click.option("--note", metavar="TEXT", default="", help="Why; lists show it.")
@json_option
@store_option
def put_weights(handler: str, weights: tuple[str, ...], note: str, as_json: bool) -> None:
    """Let the collections of a handler share its starts by these weights, in place of earlier ones; others weigh 1."""
    meant = dict(map(_parse, weights))
    audited = Audited("weights.put", handler, detail=lambda done: "; ".join(text for text in (_said(done), note) if text))
    done: WeightsInfo = on_store(lambda app: app.weights.put(handler, meant, note=note), audited=audited)
    if as_json:
        show.print_json(done)
    else:
        click.echo(f"collections of {done.handler} share its starts: {_said(done)}, all others 1")


@weights.command("delete")
@click.argument("handler")
@store_option
def delete_weights(handler: str) -> None:
    """Forget the weights of a handler's collections: what its code says holds again."""
    done: WeightsInfo = on_store(lambda app: app.weights.delete(handler), audited=Audited("weights.delete", handler))
    click.echo(f"collections of {done.handler} " + ("weigh the same" if done.fair else "share its starts no more"))


def _parse(text: str) -> tuple[str, float]:
    collection, equals, weight = text.rpartition("=")
    try:
        number = float(weight)
    except ValueError:
        equals = ""
    if not equals:
        raise click.BadParameter(f"a weight is COLLECTION=NUMBER, such as gold=4, got {text!r}", param_hint="COLLECTION=WEIGHT")
    return collection, number


def _said(found: WeightsInfo) -> str:
    return " ".join(f"{collection}={weight:g}" for collection, weight in found.weights.items())
