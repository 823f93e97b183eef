"""The `operations` commands: acts on all tasks that match, how far they are, and how to stop them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.operations import OperationInfo

COLUMNS = (
    show.Column("id", whole=True),
    show.Column("verb"),
    show.Column("state"),
    show.Column("tasks", right=True),
    show.Column("answers", spare=1),
    show.Column("filter", spare=2),
    show.Column("by", spare=3),
    show.Column("started", spare=4),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def operations(ctx: click.Context, as_json: bool) -> None:
    """List, show, pause, resume and stop operations.

    `duetime cancel` and `retry` with filters start an operation, which workers and servers perform.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json, 50)


@operations.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many, latest started first.")
@json_option
@store_option
def list_operations(limit: int, as_json: bool) -> None:
    """List operations, latest started first; those that ended are kept for 30 days."""
    _list(as_json, limit)


def _list(as_json: bool, limit: int) -> None:
    found = on_store(lambda app: app.client.operations.page(limit)).items
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (each.id, each.verb, each.state, f"{each.matched:,}", answers_of(each), filter_of(each), each.made_by, when)
        for each in found
        for when in [show.absolute(each.started_at)]
    ]
    show.print_table(COLUMNS, rows, empty="there are no operations")


@operations.command("show")
@click.argument("operation", metavar="ID")
@json_option
@store_option
def show_operation(operation: str, as_json: bool) -> None:
    """Show one operation."""
    _print(on_store(lambda app: app.client.operations.get(operation)), as_json)


@operations.command()
@click.argument("operation", metavar="ID")
@json_option
@store_option
def stop(operation: str, as_json: bool) -> None:
    """End an operation: no further task is acted on, and what was done stays."""
    _change(operation, "stop", lambda app: app.client.operations.stop(operation), as_json)


@operations.command()
@click.argument("operation", metavar="ID")
@json_option
@store_option
def pause(operation: str, as_json: bool) -> None:
    """Let an operation rest until it is resumed."""
    _change(operation, "pause", lambda app: app.client.operations.pause(operation), as_json)


@operations.command()
@click.argument("operation", metavar="ID")
@json_option
@store_option
def resume(operation: str, as_json: bool) -> None:
    """Let a paused operation go on."""
    _change(operation, "resume", lambda app: app.client.operations.resume(operation), as_json)


def _change(operation: str, verb: str, change: Callable[[App], Awaitable[OperationInfo]], as_json: bool) -> None:
    audited = Audited(f"operations.{verb}", operation, detail=lambda info: f"{info.state}; {answers_of(info) or 'none matched'}")
    _print(on_store(change, audited=audited), as_json)


def _print(found: OperationInfo, as_json: bool) -> None:
    if as_json:
        show.print_json(found)
        return
    facts: list[tuple[str, object]] = [
        ("id", found.id),
        ("verb", found.verb),
        ("state", found.state),
        ("filter", filter_of(found)),
        ("changes", words(found.changes) or None),
        ("rate", None if found.rate is None else f"{found.rate:g} tasks/s"),
        ("canary", None if found.canary is None else f"stage {found.stage} of 2"),
        ("tasks", f"{found.matched:,}"),
        ("answers", answers_of(found) or None),
        ("by", found.made_by),
        ("started", show.absolute(found.started_at)),
        ("ended", show.absolute(found.ended_at)),
        ("note", found.note or None),
    ]
    show.print_facts((name, value) for name, value in facts if value is not None)


def answers_of(operation: OperationInfo) -> str:
    return ", ".join(f"{number:,} {answer}" for answer, number in sorted(operation.answers.items()))


def filter_of(operation: OperationInfo) -> str:
    return words(operation.filter)


def words(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))


async def until_ended(app: App, operation: OperationInfo, total: int | None) -> OperationInfo:
    """Wait for the end of an operation and show how far it is. After ^C it goes on, and people are told how to stop it."""
    import asyncio

    done = 0
    try:
        with show.bar(f"{operation.verb} tasks", total) as advance:
            while not operation.ended:
                operation = await app.client.operations.wait(operation.id, timeout=0.5)
                advance(operation.matched - done)
                done = operation.matched
    except asyncio.CancelledError:
        show.note(
            f"operation {operation.id} goes on in workers and servers, {done:,} tasks are done; "
            f"to see how far it is: duetime operations show {operation.id}; to end it: duetime operations stop {operation.id}"
        )
        raise
    return operation
