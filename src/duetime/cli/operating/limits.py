"""The `limits` commands: what may run at once in the whole fleet, and changing it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.failures import REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.limits import LimitInfo, LimitSet

COLUMNS = (
    show.Column("limit", whole=True),
    show.Column("running", right=True),
    show.Column("out", right=True),
    show.Column("lacking", right=True),
    show.Column("declared", right=True, spare=2),
    show.Column("until", spare=1),
    show.Column("handlers", spare=3),
    show.Column("note", spare=4),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def limits(ctx: click.Context, as_json: bool) -> None:
    """List, show and change limits of the whole fleet.

    `out` is how many permits workers have, work that was accepted elsewhere included; `lacking` how many more they could use now.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@limits.command("list")
@json_option
@store_option
def list_limits(as_json: bool) -> None:
    """List the limits that workers have declared."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.limits.list())
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (
            *(each.name, str(each.running), str(each.out), str(each.lacking), str(each.declared), show.absolute(each.until_at)),
            *(", ".join(each.handlers), each.note),
        )
        for each in found
    ]
    show.print_table(COLUMNS, rows, empty="no worker has declared a limit")


@limits.command("show")
@click.argument("name")
@json_option
@store_option
def show_limit(name: str, as_json: bool) -> None:
    """Show one limit, and which workers have what of it."""
    found = on_store(lambda app: app.limits.get(name))
    if as_json:
        show.print_json(found)
    else:
        _print(found)


def _print(found: LimitInfo) -> None:
    facts: list[tuple[str, object]] = [
        ("name", found.name),
        ("running", f"at most {found.running:,}" + ("" if found.own is None else f" (declared: {found.declared:,})")),
        ("out", found.out),
        ("accepted elsewhere", found.accepted or None),
        ("lacking", found.lacking),
        ("until", show.absolute(found.until_at)),
        ("set by", found.set_by or None),
        ("note", found.note or None),
        *((f"an attempt of {handler}", f"takes {each}") for handler, each in found.handlers.items()),
        *((f"worker {each.worker}", f"has {each.permits}, lacks {each.lacks}") for each in found.workers),
    ]
    show.print_facts((name, value) for name, value in facts if value is not None)


@limits.command("put")
@click.argument("name")
@click.option("--running", metavar="N", type=int, required=True, help="How many may run at once in the whole fleet.")
@click.option("--for", "lasting", metavar=parsing.DURATION, callback=parsing.duration, help="Let the declared number hold after this long.")
@click.option("--note", metavar="TEXT", default="", help="Why; `duetime why` shows it.")
@click.option(
    "--timeout",
    metavar=parsing.DURATION,
    callback=parsing.duration,
    default="20s",
    show_default=True,
    help="How long to wait until every worker has confirmed it.",
)
@json_option
@store_option
def put_limit(name: str, as_json: bool, **options: Any) -> None:
    """Let another number hold than the declared one; nothing that runs is stopped."""
    audited = Audited(
        "limits.put", name, detail=lambda done: "; ".join(text for text in (str(options["running"]), options["note"], str(done)) if text)
    )
    with show.waiting(f"waiting until every worker has confirmed the limit {name}"):
        done: LimitSet = on_store(lambda app: app.limits.put(name, **options), audited=audited)
    if as_json:
        show.print_json(
            {
                "limit": done.limit,
                "version": done.version,
                "in_force": done.in_force,
                "above": done.above,
                "confirmed": done.confirmed,
                "waiting": done.waiting,
            }
        )
    else:
        until = "until it is reset" if done.limit.until_at is None else f"until {show.absolute(done.limit.until_at)}"
        click.echo(f"{name} allows {done.limit.running:,} {until}: {done}")
    if not done.in_force:
        print_error(f"the limit is set, but not confirmed by {', '.join(done.waiting)}; tasks that they have claimed may still start")
        raise click.exceptions.Exit(REFUSED)


@limits.command("reset")
@click.argument("name")
@store_option
def reset_limit(name: str) -> None:
    """Let the number that code declares hold again."""
    found = on_store(lambda app: app.limits.reset(name), audited=Audited("limits.reset", name))
    click.echo(f"{name} allows {found.running:,}, as declared")
