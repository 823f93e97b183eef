"""The `backup` command: copy a store's file while it is in use."""

from __future__ import annotations

from pathlib import Path

import click

from duetime.cli import show
from duetime.cli.session import refuse_missing, store_option, store_url
from duetime.errors import Conflict, InvalidValue


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@store_option
def backup(file: Path) -> None:
    """Copy a SQLite store to FILE, while workers go on.

    FILE must not exist. A copy that has its name is whole and checked. The bytes of artifacts are not in it. PostgreSQL stores
    are backed up with the tools of PostgreSQL.
    """
    from duetime.app.app import App
    from duetime.store.open import artifacts_beside, file_of
    from duetime.store.sqlite.backup import back_up

    app = App(store_url())
    url, source = app.url, file_of(app.url)
    if source is None:
        raise InvalidValue(_other_way(url))
    refuse_missing(url)
    if file.exists():
        raise Conflict(f"{file} exists already; choose another name, or remove it")
    with show.waiting("copying") as say:
        size = back_up(source, file, lambda done, total: say(f"{done:,} of {total:,} pages copied"))
    click.echo(f"{file} {size / 1e6:.1f} MB, checked")
    folder = artifacts_beside(url)
    kept = app.config.artifacts or (folder.absolute() if folder is not None and folder.exists() else None)
    if kept is not None:  # versions never change, so a copy that is made later has at least what this one needs
        click.echo(show.printable(f"duetime: the bytes of artifacts are not in it: back up {kept} too, after this"), err=True)


def _other_way(url: str) -> str:
    if url.startswith("http"):
        return "a server does not hand out its store; run `duetime backup` where the store is"
    if url.startswith("postgres"):
        return (
            "a PostgreSQL store is backed up with the server's own tools, for example `pg_dump --schema=duetime --format=custom`, or with "
            "the server as a whole (docs/postgres.md, Backup and restore)"
        )
    return "a store in memory has no file to copy; it ends with its process"
