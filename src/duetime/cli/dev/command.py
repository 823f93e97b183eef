"""The `dev` command: server and worker in one process, which is replaced whenever the code changes."""

from __future__ import annotations

import asyncio
from typing import Literal

import click

from duetime.cli.hosting.log import LogChoice, log_options
from duetime.cli.session import given_url, store_option
from duetime.errors import MissingExtra

EXAMPLE = "duetime.cli.dev.example:app"
GRACE = 3.0  # seconds that attempts and requests have to finish when the code has changed


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=8420,
    show_default=True,
    help="The port on 127.0.0.1; 0: any free port.",
)
@click.option("--allow", type=click.Choice(["command"]), multiple=True, help="Also run stored commands.")
@log_options("warning")
@store_option
def dev(
    app_path: str | None, port: int, allow: tuple[Literal["command"], ...], log_level: str, log_format: Literal["text", "json"]
) -> None:
    """Run a server and a worker, and reload when code changes.

    APP is module:name; without it, and without DUETIME_APP, a small example is served. Handlers whose targets are stored are served too. It
    prints three commands to try, and then a line for each request and each attempt that ends.

    When code of the APP changes, a new process loads it and takes over from the old one. What is running then has 3 seconds to finish; the
    rest runs again. If the new code does not load, the error is shown and the old code keeps running.

    It listens on loopback only. For other machines, or for production, use `duetime server` and `duetime worker`.
    """
    try:
        from duetime.api.server import listen
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"the server needs the package {missing.name}: pip install 'duetime[server]'") from None
    from duetime.cli.dev.link import Launch
    from duetime.cli.dev.reloading import Reloading
    from duetime.cli.dev.watching import Watcher, folder_of

    listener = asyncio.run(listen("127.0.0.1", port))
    listener.listen(2_048)  # from now on requests wait
    watcher = None if app_path is None else Watcher(folder_of(app_path))
    launch = Launch(
        app=app_path or EXAMPLE,
        link=-1,
        listener=listener.fileno(),
        grace=GRACE,
        log=LogChoice(log_level, log_format),
        url=given_url(),
        allow=allow,
        folder=None if watcher is None else str(watcher.folder),
    )
    with listener:
        raise click.exceptions.Exit(Reloading(launch, listener, watcher).run())
