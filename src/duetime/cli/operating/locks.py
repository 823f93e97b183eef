"""The `locks` commands: who holds which lock, and how it is taken away."""

from __future__ import annotations

import click

from duetime.cli import show
from duetime.cli.session import Audited, json_option, on_store, store_option

COLUMNS = (
    show.Column("lock", whole=True),
    show.Column("state"),
    show.Column("by"),
    show.Column("fence", right=True),
    show.Column("taken", spare=1),
    show.Column("last beat", spare=2),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def locks(ctx: click.Context, as_json: bool) -> None:
    """List, show and delete locks.

    `silent` is a lock whose holder's last beat is older than its lease; who wants it takes it.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@locks.command("list")
@json_option
@store_option
def list_locks(as_json: bool) -> None:
    """List the locks that are held or rest."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.locks.list())
    if as_json:
        show.print_json_list(found)
        return
    rows = [
        (
            each.name,
            "rests" if each.free_at is not None else "silent" if each.silent else "held",
            each.by,
            str(each.fence),
            show.absolute(each.taken_at),
            show.absolute(each.beat_at),
        )
        for each in found
    ]
    show.print_table(COLUMNS, rows, empty="nobody holds a lock")


@locks.command("show")
@click.argument("name")
@json_option
@store_option
def show_lock(name: str, as_json: bool) -> None:
    """Show one lock."""
    found = on_store(lambda app: app.locks.get(name))
    if as_json:
        show.print_json(found)
        return
    facts: list[tuple[str, object]] = [
        ("name", found.name),
        ("by", found.by),
        ("fence", found.fence),
        ("taken", show.absolute(found.taken_at)),
        ("last beat", show.absolute(found.beat_at)),
        ("free", show.absolute(found.free_at)),
    ]
    show.print_facts((name, value) for name, value in facts if value is not None)


@locks.command("delete")
@click.argument("name")
@store_option
def delete_lock(name: str) -> None:
    """Take a lock from whoever has it, who learns it at its next beat."""
    on_store(lambda app: app.locks.delete(name), audited=Audited("locks.delete", name))
    show.note(f"the lock {name} is free")
