"""The `migrate` command: create the tables of a store, or bring them up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetime.cli.session import on_store, store_option, store_url

if TYPE_CHECKING:
    from duetime.app.app import App


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements instead of executing them.")
@store_option
def migrate(sql: bool) -> None:
    """Create the store or update its tables."""
    from duetime.app.app import App
    from duetime.store.open import file_of

    app = App(store_url())
    store = app.store_for("migrate")
    if sql:
        click.echo(store.script(), nl=False)
        return
    app.config = msgspec.structs.replace(app.config, migrate=True)
    path = file_of(app.url)
    was_there = path is None or path.exists()

    async def use(app: App) -> None:
        return None

    on_store(use, app=app, creates=True)
    click.echo(f"{app.url} {'is up to date' if was_there else 'was created'}")
