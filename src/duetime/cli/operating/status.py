"""The `status` command: one line that says whether all is well, and what is not."""

from __future__ import annotations

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.session import json_option, on_store, store_option

MOST_SHOWN = 20


@click.command()
@json_option
@store_option
def status(as_json: bool) -> None:
    """Say whether all is well, and what is not.

    Worst first. The exit code is 0 if all is well, also with notes, and 1 if not: for monitoring scripts. It reads little, however many
    tasks there are.
    """
    found = on_store(lambda app: app.insight.health())
    if as_json:
        show.print_json(found)
    else:
        if found.well:
            click.echo(found.text)
        for finding in found.findings[:MOST_SHOWN]:
            click.echo(show.printable(f"{finding.level}: {finding.text}"))
        if len(found.findings) > MOST_SHOWN:
            click.echo(f"and {len(found.findings) - MOST_SHOWN:,} more; --json has all")
    if not found.well:
        raise click.exceptions.Exit(REFUSED)
