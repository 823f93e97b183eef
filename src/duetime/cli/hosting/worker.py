"""The `worker` command: import the App, apply the options, and run its worker or a supervisor of several."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing
from duetime.cli.hosting.log import log_level_option, log_to_stderr
from duetime.cli.session import given_url, store_option

if TYPE_CHECKING:
    from duetime.app.app import App


def _processes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    if value == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise click.BadParameter(f"expected a whole number of at least 1, or auto for one per CPU, got {value!r}", ctx=ctx, param=param)
    return number


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option(
    "--processes", metavar="N|auto", default="1", show_default=True, callback=_processes, help="Worker processes; auto: one per CPU."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Slots of each process over all handlers; otherwise the sum of theirs."
)
@click.option("--handler", "handlers", metavar="NAME", multiple=True, help="Run only this handler; may be repeated.")
@click.option(
    "--lease", metavar=parsing.DURATION, callback=parsing.duration, help="How long it counts as alive without reaching the store."
)
@click.option("--grace", metavar=parsing.DURATION, callback=parsing.duration, help="How long attempts may go on when it stops.")
@log_level_option("info")
@store_option
def worker(
    app_path: str | None,
    processes: int,
    concurrency: int | None,
    handlers: tuple[str, ...],
    lease: float | None,
    grace: float | None,
    log_level: str,
) -> None:
    """Run the tasks of an App until stopped.

    APP is module:name; the default is DUETIME_APP. SIGTERM and SIGINT stop the worker: running attempts may finish within the
    grace, and a second signal ends the process at once. SIGUSR1 prints its status.

    With several processes a supervisor starts them, and starts them again when they die. It passes the signals on; SIGHUP
    restarts them one by one.
    """
    if not app_path:
        raise click.UsageError("which App? give it as module:name, such as shop.tasks:app, or set DUETIME_APP")
    if processes > 1:
        from duetime.cli.hosting.supervisor import supervise

        log_to_stderr(log_level)
        command = _command(
            app_path, concurrency=concurrency, handler=handlers, lease=lease, grace=grace, log_level=log_level, url=given_url()
        )
        raise click.exceptions.Exit(supervise(app_path, command, processes, log_level=log_level))
    from duetime.cli.hosting.host import host
    from duetime.cli.hosting.lifeline import Lifeline
    from duetime.cli.importing import find_app

    lifeline = Lifeline.take_from(os.environ)
    app = find_app(app_path, given_url())
    _apply_options(app, lease=lease, grace=grace)
    log_to_stderr(log_level, "" if lifeline is None else f"worker {lifeline.number} ")
    raise click.exceptions.Exit(host(app, path=app_path, handlers=list(handlers) or None, concurrency=concurrency, lifeline=lifeline))


def _command(app_path: str, **options: object) -> list[str]:
    """Return the command of one worker process, with the same options."""
    command = [sys.executable, "-m", "duetime.cli", "worker"]
    for name, value in options.items():
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            command += [f"--{name.replace('_', '-')}", str(each)]
    return [*command, "--", app_path]


def _apply_options(app: App, **chosen: float | None) -> None:
    """Let options of the command line override the settings of the App; both are checked in the same way."""
    import msgspec

    from duetime.config import read_setting

    changes: dict[str, Any] = {name: read_setting(name, value, f"--{name}") for name, value in chosen.items() if value is not None}
    app.config = msgspec.structs.replace(app.config, **changes)
