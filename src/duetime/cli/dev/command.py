"""The `dev` command: API, worker and duties in one go, and anew whenever the code changes."""

from __future__ import annotations

import asyncio

import click

from duetime.cli.hosting.log import log_level_option
from duetime.cli.session import given_url, store_option

EXAMPLE = "duetime.cli.dev.example:app"
GRACE = 3.0  # seconds for which attempts and requests may go on when the code has changed


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=8420,
    show_default=True,
    help="Where to listen on 127.0.0.1; 0: any free port.",
)
@log_level_option("warning")
@store_option
def dev(app_path: str | None, port: int, log_level: str) -> None:
    """Serve and work in one command, and reload when code changes.

    APP is module:name; without it, and without DUETIME_APP, a small example is served. It prints three commands to try, and then a line for
    each request and each attempt that ends.

    When code of the APP changes, it is loaded in a new process, which takes over from the old one. What runs then has 3 seconds to end; the
    rest goes back and runs again. Code that does not load is shown, and the old code goes on.

    It listens on loopback only. For other machines, or for production, there are `duetime server` and `duetime worker`.
    """
    try:
        from duetime.api.server import listen
    except ModuleNotFoundError as missing:
        raise click.ClickException(f"the server needs the package {missing.name}: pip install 'duetime[server]'") from None
    from duetime.cli.dev.link import Launch
    from duetime.cli.dev.reloading import Reloading
    from duetime.cli.dev.watching import Watching, folder_of

    listener = asyncio.run(listen("127.0.0.1", port))
    listener.listen(2_048)  # from now on requests wait
    watching = None if app_path is None else Watching(folder_of(app_path))
    launch = Launch(
        app=app_path or EXAMPLE,
        link=-1,
        listener=listener.fileno(),
        grace=GRACE,
        log_level=log_level,
        url=given_url(),
        folder=None if watching is None else str(watching.folder),
    )
    with listener:
        raise click.exceptions.Exit(Reloading(launch, listener, watching).run())
