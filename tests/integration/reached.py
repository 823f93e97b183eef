"""One App in both ways of reaching its tasks: on the store itself, and over a server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from duetime import App
from duetime.api.app import Api
from duetime.api.server import Server

WAYS = ("store", "server")


@asynccontextmanager
async def reached(way: str, url: str, **settings: Any) -> AsyncIterator[App]:
    """Open an App that reaches the store at a URL in one of the ways."""
    async with App(url, **settings) as home:
        if way == "store":
            yield home
        else:
            async with over_server(home) as app:
                yield app


@asynccontextmanager
async def over_server(home: App) -> AsyncIterator[App]:
    """Open an App that knows nothing but the address of a server, which serves an opened App.

    Two things are lent to it, so that scenarios written for a store can be played: handlers that it declares are known to the store, as
    if a worker with the same code had been there; and its `store` is that of the server, for what a scenario does as a worker would.
    """
    async with Server(home, api=Api(home), port=0).running() as server, App(server.url) as app:
        app.client.admission.declare = home.client.admission.declare  # type: ignore[method-assign]
        services, app._services = app._services, msgspec.structs.replace(app._services, store=home.store)
        try:
            yield app
        finally:
            app._services = services


def own_meta(meta: dict[str, str]) -> dict[str, str]:
    """Leave out what Duetime writes there itself."""
    return {name: value for name, value in meta.items() if not name.startswith("duetime.")}
