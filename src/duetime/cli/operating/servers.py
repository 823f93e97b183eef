"""The `servers` command: which servers there are."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import json_option, now_of, on_store, store_option

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App
    from duetime.client.servers import ServerInfo

COLUMNS = (
    show.Column("address", whole=True),
    show.Column("alive"),
    show.Column("host"),
    show.Column("process", right=True),
    show.Column("version", spare=2),
    show.Column("started", spare=1),
    show.Column("last beat", spare=3),
    show.Column("id", whole=True, spare=4),
)


@click.command()
@json_option
@store_option
def servers(as_json: bool) -> None:
    """List the servers, with their addresses.

    A server makes itself known when it starts, and is forgotten when it stops. `silent` is one that has missed three beats.
    """

    async def use(app: App) -> tuple[list[ServerInfo], datetime]:
        return await app.servers(), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json_list(found)
        return
    rows = [_row(server, now) for server in found]
    show.print_table(COLUMNS, rows, empty="no server is there; start one: duetime server")


def _row(server: ServerInfo, now: datetime) -> tuple[object, ...]:
    alive = "yes" if server.silent_for is None else f"silent {show.span(timedelta(seconds=server.silent_for))}"
    where = (server.url or "in another application", alive, server.host, server.pid, server.version)
    return (*where, show.relative(server.started_at, now), show.relative(server.beat_at, now), server.id)
