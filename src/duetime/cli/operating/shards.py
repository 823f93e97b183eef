"""The `shards` commands: the databases that a store's tasks are spread over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.shards import ShardInfo

COLUMNS = (
    show.Column("shard", whole=True),
    show.Column("state"),
    show.Column("share", right=True),
    show.Column("live", right=True),
    show.Column("running", right=True),
    show.Column("finished", right=True, spare=1),
    show.Column("url", spare=2),
    show.Column("problem", spare=3),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def shards(ctx: click.Context, as_json: bool) -> None:
    """Spread tasks over several databases.

    The URL of the App stays that of control. `share` is a shard's part of new tasks. Without a command the shards are listed.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@shards.command("list")
@json_option
@store_option
def list_shards(as_json: bool) -> None:
    """List control and the shards, with what they hold."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.shards.list())
    if as_json:
        show.print_json_list(found)
        return
    show.print_table(COLUMNS, [_row(each) for each in found], empty="no shards")


def _row(info: ShardInfo) -> tuple[str, ...]:
    numbers = ["?" if number is None else f"{number:,}" for number in (info.live, info.running, info.finished)]
    return info.name, info.state, f"{info.share:.0%}", *numbers, info.url, info.problem or ""


@shards.command("add")
@click.argument("name")
@click.argument("shard_url", metavar="SHARD_URL")
@click.option("--start/--wait", "start", default=None, help="Let it get new tasks at once; otherwise a first shard waits for `start`.")
@store_option
def add_shard(name: str, shard_url: str, start: bool | None) -> None:
    """Add an empty database as a shard.

    ${NAME} in SHARD_URL stands for a variable of each process's environment. Nothing that is stored is moved, and nothing is paused.
    """
    added = on_store(lambda app: app.shards.add(name, shard_url, start=start), audited=Audited("shards.add", name))
    if added.state == "active":
        click.echo(f"shard {name} gets new tasks within seconds")
    else:
        click.echo(f"shard {name} is added. Processes that run now know of no shards: restart them all, then: duetime shards start {name}")


@shards.command("start")
@click.argument("name")
@store_option
def start_shard(name: str) -> None:
    """Let a shard get new tasks."""
    on_store(lambda app: app.shards.start(name), audited=Audited("shards.start", name))
    click.echo(f"shard {name} gets new tasks within seconds")


@shards.command("drain")
@click.argument("name")
@store_option
def drain_shard(name: str) -> None:
    """Let a shard get no new tasks; what it has is worked off there."""
    found = on_store(lambda app: app.shards.drain(name), audited=Audited("shards.drain", name))
    live = "" if found.live is None else f"; it has {found.live:,} live tasks"
    click.echo(f"shard {name} gets no new tasks within seconds{live}")


@shards.command("delete")
@click.argument("name")
@store_option
def delete_shard(name: str) -> None:
    """Forget a drained shard without live tasks; those that ended there are not found any more."""
    on_store(lambda app: app.shards.delete(name), audited=Audited("shards.delete", name))
    click.echo(f"shard {name} is forgotten; its database is as it was")


@shards.command("check")
@store_option
def check_shards() -> None:
    """Look whether every shard answers, is the right one, and has no impossible states."""
    problems = on_store(lambda app: app.shards.check())
    for problem in problems:
        print_error(problem)
    if problems:
        raise click.exceptions.Exit(REFUSED)
    click.echo("all shards are well")
