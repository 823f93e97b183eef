"""`duetime worker --check`: whether the tasks that wait fit the code that is about to run them."""

from __future__ import annotations

import asyncio

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.importing import find_app
from duetime.cli.session import given_url


def check_app(app_path: str, limit: int) -> int:
    """Say which waiting tasks do not fit an App; return the exit code. Nothing is declared: this code may never be deployed."""
    from duetime.client.fits import FitReport, by_code, report

    app = find_app(app_path, given_url())

    async def look() -> FitReport:
        store = app.store_for("--check")
        await app.ensure_open(declare=False)
        try:
            return await report(store, by_code(app.specs), limit)
        finally:
            await app.close()

    with show.waiting(f"reading the tasks that wait in {app.url}"):
        found = asyncio.run(look())
    for misfits in found.misfits:
        click.echo(show.printable(str(misfits)))
    beyond = f"; there are more: --limit above {limit:,}" if found.more else ""
    others = f", {found.others:,} of them of handlers that this App does not declare" if found.others else ""
    show.note(f"{show.count(found.checked, 'waiting task')} checked{others}{beyond}")
    return REFUSED if found.misfits else 0
