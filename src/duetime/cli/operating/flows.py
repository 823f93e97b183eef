"""The `flows` commands: graphs of tasks, how far they are, and how to stop or resume them as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from duetime.cli import show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.flows import Flow

COLUMNS = (
    show.Column("id", whole=True),
    show.Column("name"),
    show.Column("state"),
    show.Column("nodes", right=True),
    show.Column("tasks", right=True, spare=1),
    show.Column("submitted", spare=2),
    show.Column("by", spare=3),
)
NODES = (
    show.Column("node"),
    show.Column("handler", spare=2),
    show.Column("state"),
    show.Column("tasks", right=True),
    show.Column("why", spare=1),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def flows(ctx: click.Context, as_json: bool) -> None:
    """List, show, cancel, retry and rerun flows.

    A flow is a graph of tasks that is handled as one.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json, None, None, 50)


@flows.command("list")
@click.option("--state", type=click.Choice(["running", "succeeded", "failed", "cancelled"]), help="Only those in this state.")
@click.option("--name", help="Only those of this name.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many, the newest first.")
@json_option
@store_option
def list_flows(state: str | None, name: str | None, limit: int, as_json: bool) -> None:
    """List flows, the newest first."""
    _list(as_json, state, name, limit)


def _list(as_json: bool, state: Any, name: str | None, limit: int) -> None:
    found = on_store(lambda app: app.flows.list(state=state, name=name, limit=limit)).items
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (each.id, each.name, each.state, str(len(each.nodes)), _ended(each), show.absolute(each.submitted_at), each.submitted_by)
        for each in found
    ]
    show.print_table(COLUMNS, rows, empty="there are no flows")


def _ended(flow: Flow[Any]) -> str:
    return f"{sum(node.ended for node in flow.nodes):,} of {sum(node.members for node in flow.nodes):,}"


@flows.command("show")
@click.argument("flow", metavar="ID")
@click.option("--mermaid", is_flag=True, help="Print it as a Mermaid diagram.")
@json_option
@store_option
def show_flow(flow: str, mermaid: bool, as_json: bool) -> None:
    """Show one flow: each node, its state and why it is in it."""
    if mermaid:
        click.echo(on_store(lambda app: app.flows.get(flow)).mermaid(), nl=False)
        return
    _print(on_store(lambda app: app.flows.get(flow)), as_json)


@flows.command()
@click.argument("flow", metavar="ID")
@click.argument("node", metavar="NODE")
@click.option("--first", type=click.IntRange(0), default=0, help="The position to begin with.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="How many, by position.")
@json_option
@store_option
def members(flow: str, node: str, first: int, limit: int, as_json: bool) -> None:
    """List the tasks of a node, by position."""
    found = on_store(lambda app: app.flows.members(flow, node, first=first, limit=limit))
    if as_json:
        show.print_json_list(found)
        return
    columns = (show.Column("position", right=True), show.Column("task", whole=True))
    show.print_table(columns, [(str(each.position), each.task) for each in found], empty="no task of this node was made yet")


@flows.command()
@click.argument("flow", metavar="ID")
@click.argument("node", metavar="NODE")
@json_option
@store_option
def results(flow: str, node: str, as_json: bool) -> None:
    """Print what a node returned that others read, one JSON value per line.

    Of a group these are the results of its tasks that succeeded, of a single task the items of the list that it returned or yielded.
    """

    async def stream(app: App) -> None:
        found = app.flows.results(flow, node)
        if as_json:
            await show.stream_json_list(found, lambda: None)
            return
        async for item in found:
            click.echo(msgspec.json.encode(item))

    on_store(stream)


@flows.command()
@click.argument("flow", metavar="ID")
@json_option
@store_option
def why(flow: str, as_json: bool) -> None:
    """Explain what a flow waits for, or how it ended."""
    reasons = on_store(lambda app: app.flows.why(flow))
    if as_json:
        show.print_json_list(reasons)
        return
    for reason in reasons:
        click.echo(show.printable(reason.text))


@flows.command()
@click.argument("flow", metavar="ID")
@json_option
@store_option
def cancel(flow: str, as_json: bool) -> None:
    """Cancel a flow as one: nothing of it starts any more, and what runs is told to end."""
    _change(flow, "cancel", lambda app: app.flows.cancel(flow), as_json)


@flows.command()
@click.argument("flow", metavar="ID")
@json_option
@store_option
def retry(flow: str, as_json: bool) -> None:
    """Let a flow go on from the tasks that ended without success."""
    _change(flow, "retry", lambda app: app.flows.retry(flow), as_json)


@flows.command()
@click.argument("flow", metavar="ID")
@click.option("--from", "node", metavar="NODE", required=True, help="The node that runs again, with all that follows from it.")
@json_option
@store_option
def rerun(flow: str, node: str, as_json: bool) -> None:
    """Let a node, and all that follows from it, run again with new tasks."""
    _change(flow, "rerun", lambda app: app.flows.rerun(flow, node), as_json)


def _change(flow: str, verb: str, change: Callable[[App], Awaitable[Flow[Any]]], as_json: bool) -> None:
    audited = Audited(f"flows.{verb}", flow, detail=lambda changed: changed.state)
    _print(on_store(change, audited=audited), as_json)


def _print(found: Flow[Any], as_json: bool) -> None:
    if as_json:
        show.print_json(found)
        return
    facts: list[tuple[str, object]] = [
        ("id", found.id),
        ("name", found.name),
        ("key", found.key),
        ("state", found.state),
        ("stopping", found.stopping),
        ("submitted", show.absolute(found.submitted_at)),
        ("by", found.submitted_by or None),
        ("deadline", None if found.deadline_at is None else show.absolute(found.deadline_at)),
        ("ended", None if found.finished_at is None else show.absolute(found.finished_at)),
        ("result", found.result if found.result_items is None else f"{found.result_items:,} items; duetime flows results lists them"),
    ]
    show.print_facts((name, value) for name, value in facts if value is not None)
    rows = [(node.name, node.handler, node.state, f"{node.ended:,} of {node.members:,}", node.why) for node in found.nodes]
    show.print_table(NODES, rows, empty="it has no nodes")
