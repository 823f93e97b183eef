"""The `doctor` command: find and repair impossible states of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.doctor import Diagnosis, Finding

FACTS = ("store", "durability", "liveness", "duetime", "python", "sqlite", "commands")


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired; no live task is lost or invented. Watches silent workers first.")
@json_option
@store_option
def doctor(repair: bool, as_json: bool) -> None:
    """Find and repair impossible states.

    Dead and silent workers, due work without a worker, parked tasks, waiting ones that do not fit what is declared, closed gates,
    secrets that no key can read, and files that every user of the machine may read are reported too. The exit code is 1 if problems remain.
    """

    async def use(app: App) -> Diagnosis:
        with show.waiting(f"examining {app.url}") as say:

            def on_watch(workers: int, seconds: float) -> None:
                watching = f"watching {show.count(workers, 'silent worker')}"
                show.note(f"{watching} for a lease, up to {seconds:g} s: one that does not beat meanwhile is dead")
                say(watching)

            return await app.doctor.examine(repair=repair, on_watch=on_watch)

    found = on_store(use, audited=Audited("doctor.repair", "store", detail=str) if repair else None)
    if as_json:
        show.print_json(found)
    else:
        show.print_facts((name, getattr(found, name)) for name in FACTS)
        for finding in found.findings:
            click.echo(show.printable(f"{_label(finding)}: {finding.kind}: {finding.subject}: {finding.detail}"))
        click.echo(str(found) if found.healthy else f"{found}; what can be repaired is: duetime doctor --repair")
    if not found.healthy:
        raise click.exceptions.Exit(REFUSED)


def _label(finding: Finding) -> str:
    return "repaired" if finding.repaired else finding.level
