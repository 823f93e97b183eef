"""The `server` command: Duetime for programs in any language, over HTTP."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import click

from duetime.cli.hosting.log import LogChoice, log_options, log_to_stderr, said
from duetime.cli.session import given_url, store_option
from duetime.errors import MissingExtra

if TYPE_CHECKING:
    from duetime.api.server import Server


_ACCESS = {
    True: "Requests need a token.",
    False: "There are no tokens: anyone who reaches this address may do everything.",
}


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="The address to listen on; beyond loopback only with tokens."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8420, show_default=True, help="The port to listen on; 0: any free port."
)
@click.option("--body-limit", metavar="SIZE", default="64MB", show_default=True, help="The largest accepted body of a batch.")
@click.option("--certificate", metavar="FILE", help="Speak TLS, with this certificate and its chain, in PEM.")
@click.option("--key", metavar="FILE", help="The private key of the certificate, in PEM, unless it is in the same file.")
@log_options("info")
@store_option
def server(
    app_path: str | None,
    host: str,
    port: int,
    body_limit: str,
    certificate: str | None,
    key: str | None,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Serve the HTTP API until stopped.

    APP is module:name. Without it, and without DUETIME_APP, the server knows the handlers that workers have declared in the store.
    It runs no tasks itself; start a worker for that.

    If the store has a valid token when the server starts, every request needs one: see `duetime tokens`. Without any, the server
    listens on loopback only, and anyone who reaches it may do everything.

    SIGTERM and SIGINT stop it: requests under way are finished. A second signal does not wait for them.
    """
    try:
        from duetime.api.app import Api
        from duetime.api.server import Server, loop_factory
        from duetime.api.shared import Limits
        from duetime.web.web import Web
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"the server needs the package {missing.name}: pip install 'duetime[server]'") from None
    from duetime.app.app import App
    from duetime.cli.importing import find_app
    from duetime.config import parse_size

    app = App(given_url()) if app_path is None else find_app(app_path, given_url())
    chosen = LogChoice(log_level, log_format)
    log_to_stderr(chosen)
    limits = Limits(batch=parse_size(body_limit, "--body-limit"))

    def say(line: str) -> None:
        click.echo(said(line, chosen), err=True)

    async def serve() -> None:
        api = Api(app, limits=limits, extension=Web())
        serving = Server(app, api=api, host=host, port=port, certificate=certificate, key=key)
        await serving.run_until_stopped(lambda server: say(_where(server)))
        say("the server has stopped")

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


def _where(server: Server) -> str:
    store = server.app.store
    return (
        f"server ({version('duetime')}, process {os.getpid()}) at {server.url} on {store.url}. {store.traits.durability} "
        f"{_ACCESS[server.asks_for_tokens]} The dashboard is at {server.url}/ui/, and the API "
        f"is described at {server.url}/openapi.json"
    )
