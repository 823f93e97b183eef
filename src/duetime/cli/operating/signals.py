"""The `signals` commands: events from outside that a task waits for."""

from __future__ import annotations

import click

from duetime.cli import parsing, show
from duetime.cli.session import Audited, json_option, on_store, store_option

COLUMNS = (
    show.Column("signal", whole=True),
    show.Column("id"),
    show.Column("value", spare=1),
    show.Column("sent", spare=2),
    show.Column("by"),
    show.Column("got by", spare=3),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def signals(ctx: click.Context, as_json: bool) -> None:
    """Send, list and delete the signals that handlers wait for."""
    if ctx.invoked_subcommand is None:
        _list(None, as_json)


@signals.command("send")
@click.argument("name")
@click.argument("value", required=False, default="null", metavar="[JSON]")
@click.option("--id", "signal_id", metavar="ID", help="Names this signal: a second one with the same name and id is the same one.")
@click.option(
    "--keep", metavar=parsing.DURATION, callback=parsing.duration, help="How long it is kept for who comes later; a day unless given."
)
@store_option
def send(name: str, value: str, signal_id: str | None, keep: float | None) -> None:
    """Send a signal to the task that has waited longest for NAME, or keep it for one that comes."""
    import msgspec

    from duetime.model.steps import KEPT

    try:
        decoded = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        raise click.UsageError(f"the value of a signal is JSON, got {value}; text stands in quotes: '\"{value}\"'") from None
    new = on_store(lambda app: app.signals.send(name, decoded, id=signal_id, keep=KEPT if keep is None else keep))
    show.note(f"the signal {name} is sent" if new else f"the signal {name} was sent before, and counts once")


@signals.command("list")
@click.argument("name", required=False)
@json_option
@store_option
def list_signals(name: str | None, as_json: bool) -> None:
    """List the signals that are kept, the oldest first: of NAME, or all."""
    _list(name, as_json)


def _list(name: str | None, as_json: bool) -> None:
    found = on_store(lambda app: app.signals.list(name))
    if as_json:
        show.print_json_list(found)
        return
    import msgspec

    rows = [
        (each.name, each.id, msgspec.json.encode(each.value).decode(), show.absolute(each.sent_at), each.sent_by, each.task or "nobody yet")
        for each in found
    ]
    show.print_table(COLUMNS, rows, empty="no signal is kept")


@signals.command("delete")
@click.argument("name")
@click.option("--id", "signal_id", metavar="ID", help="Only the one with this id.")
@store_option
def delete_signals(name: str, signal_id: str | None) -> None:
    """Forget the kept signals of NAME. Who has got one keeps its value."""
    deleted = on_store(lambda app: app.signals.delete(name, signal_id), audited=Audited("signals.delete", name))
    show.note(f"forgot {deleted:,} of {name}")
