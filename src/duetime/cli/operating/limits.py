"""The `limits` commands: what may run at once in the whole fleet, and changing it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.failures import REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.limits import LimitInfo, LimitSet
    from duetime.model.limit import Rate

COLUMNS = (
    show.Column("limit", whole=True),
    show.Column("running", right=True),
    show.Column("out", right=True),
    show.Column("waiting", right=True),
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

    `out` is how many permits workers have, or how many attempts run, work that was accepted elsewhere included; `waiting` how many more
    could run, or are parked.
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
            *(each.name, bound(each), str(each.out), str(each.lacking + each.parked), _number(each.declared), show.absolute(each.until_at)),
            *(", ".join(each.handlers), each.note),
        )
        for each in found
    ]
    show.print_table(COLUMNS, rows, empty="no worker has declared a limit")


def _number(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def bound(found: LimitInfo) -> str:
    """Return what a limit allows in a few words."""
    parts = [*([] if found.running is None else [f"{found.running:,}"]), *found.rates]
    return " and ".join(parts) + (f" by {found.by}" if found.by else "") + (f", over {found.over}" if found.over != "wait" else "")


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
        ("running", f"at most {bound(found)}" + ("" if found.own is None else f" (declared: {_number(found.declared)})")),
        ("out", found.out),
        ("parked", found.parked if found.by or found.rates or found.over != "wait" else None),
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
@click.option("--running", metavar="N", type=int, help="How many may run at once in the whole fleet.")
@click.option("--rate", metavar="COUNT/PER", multiple=True, help="How many may start: 10/1s, 100/5m, 1000/day. Several times: all hold.")
@click.option("--burst", metavar="N", type=int, default=1, help="How many of --rate may start at once after a pause.")
@click.option("--partition", metavar="VALUE", help="Only for this value of the limit's key.")
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
    of, burst = _of(options["partition"]), options.pop("burst")
    options["rate"] = [_rate(text, burst) for text in options["rate"]] or None
    wanted = [*([] if options["running"] is None else [str(options["running"])]), *map(str, options["rate"] or ())]
    audited = Audited(
        "limits.put",
        name,
        detail=lambda done: "; ".join(text for text in (of, *wanted, options["note"], str(done)) if text),
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
                "partition": done.partition,
            }
        )
    else:
        set_now = done.limit if done.partition is None else done.partition
        until = "until it is reset" if set_now.until_at is None else f"until {show.absolute(set_now.until_at)}"
        what = name if done.partition is None else f"{name} for {done.partition.partition}"
        allows = bound(done.limit) if done.partition is None else _number(done.partition.running)
        click.echo(f"{what} allows {allows} {until}: {done}")
    if not done.in_force:
        print_error(f"the limit is set, but not confirmed by {', '.join(done.waiting)}; tasks that they have claimed may still start")
        raise click.exceptions.Exit(REFUSED)


def _rate(text: str, burst: int) -> Rate:
    """Read a rate such as 10/1s."""
    from duetime.model.limit import Rate

    count, _, per = text.partition("/")
    if not count.replace(",", "").isdecimal() or not per:
        raise click.UsageError(f"--rate must be a number and a time such as 10/1s, 100/5m or 1000/day, got {text!r}")
    number = int(count.replace(",", ""))
    return Rate(number, "day") if per == "day" else Rate(number, parsing.parse_seconds(per), burst)


def _of(partition: str | None) -> str:
    return "" if partition is None else f"partition {partition}"


@limits.command("reset")
@click.argument("name")
@click.option("--partition", metavar="VALUE", help="Let the limit's number hold for this value of its key again.")
@store_option
def reset_limit(name: str, partition: str | None) -> None:
    """Let the number that code declares hold again."""
    audited = Audited("limits.reset", name, detail=lambda done: _of(partition))
    found = on_store(lambda app: app.limits.reset(name, partition=partition), audited=audited)
    if partition is None:
        click.echo(f"{name} allows {bound(found)}, as declared")
    else:
        click.echo(f"{name} allows {bound(found)}, for {partition} as well")


PARTITION_COLUMNS = (
    show.Column("partition", whole=True),
    show.Column("running", right=True),
    show.Column("out", right=True),
    show.Column("parked", right=True),
    show.Column("oldest due", spare=1),
    show.Column("next start", spare=2),
    show.Column("until", spare=3),
    show.Column("note", spare=4),
)


@limits.command("partitions")
@click.argument("name")
@click.option("--partition", metavar="VALUE", help="Only this value of the limit's key.")
@click.option("--after", metavar="VALUE", help="Go on behind this one.")
@click.option("--limit", metavar="N", type=int, default=100, show_default=True, help="At most so many.")
@json_option
@store_option
def list_partitions(name: str, as_json: bool, **options: Any) -> None:
    """List the partitions of a limit by key: values under which something runs or waits, or that have a number of their own."""
    found = on_store(lambda app: app.limits.partitions(name, **options))
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (
            *(each.partition, _number(each.running), str(each.out), str(each.parked), show.absolute(each.oldest_due_at)),
            *(show.absolute(each.next_at), show.absolute(each.until_at), each.note),
        )
        for each in found
    ]
    show.print_table(PARTITION_COLUMNS, rows, empty="nothing runs or waits under this limit")
