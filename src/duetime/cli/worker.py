"""The `worker` command: find the App, settle how it runs, and host its worker."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import kinds
from duetime.cli.session import given_url, store_option

if TYPE_CHECKING:
    from duetime.app import App

LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Slots over all handlers; otherwise the sum of theirs.")
@click.option("--handler", "handlers", metavar="NAME", multiple=True, help="Run only this handler; may be repeated.")
@click.option("--lease", metavar=kinds.DURATION, callback=kinds.duration, help="How long it counts as alive without reaching the store.")
@click.option("--grace", metavar=kinds.DURATION, callback=kinds.duration, help="How long attempts may go on when it stops.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged to stderr.")
@store_option
def worker(
    app_path: str | None, concurrency: int | None, handlers: tuple[str, ...], lease: float | None, grace: float | None, log_level: str
) -> None:
    """Run the tasks of an App until it is stopped.

    APP is module:name; without it DUETIME_APP counts. SIGTERM and SIGINT stop the worker. The first signal lets running
    attempts finish for the time of grace; a second one ends the process at once.
    """
    from duetime.cli.hosting import host
    from duetime.cli.locate import find_app

    if not app_path:
        raise click.UsageError("which App? give it as module:name, such as shop.tasks:app, or set DUETIME_APP")
    app = find_app(app_path, given_url())
    _settle(app, lease=lease, grace=grace)
    log_to_stderr(log_level)
    raise click.exceptions.Exit(host(app, path=app_path, handlers=list(handlers) or None, concurrency=concurrency))


def _settle(app: App, **chosen: float | None) -> None:
    """Let options of the command line come before what the App was given in code; checked in the same way."""
    import msgspec

    from duetime.config import SETTINGS

    readers = {setting.name: setting.read for setting in SETTINGS}
    changes: dict[str, Any] = {name: readers[name](value, f"--{name}") for name, value in chosen.items() if value is not None}
    app.config = msgspec.structs.replace(app.config, **changes)


def log_to_stderr(level: str) -> None:
    """Configure logging, unless the App's module has already done so."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = "%s.%03dZ"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
