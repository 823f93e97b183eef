"""The `worker` command: import the App, apply the options, and run its worker or a supervisor of several."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from duetime.cli import parsing
from duetime.cli.hosting.log import LogChoice, log_options, log_to_stderr
from duetime.cli.session import given_url, store_option

if TYPE_CHECKING:
    from duetime.app.app import App


ONLY_STORED = "duetime.cli.hosting.empty:app"  # of a worker that serves nothing but stored targets


class OwnProcess:
    """Stands in a command's context if the process runs nothing but the command, so that it may fork."""


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


def _name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}", value):
        raise click.BadParameter(f"expected 1 to 60 letters, digits, - and _, got {value[:80]!r}", ctx=ctx, param=param)
    return value


@click.command()
@click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")
@click.option(
    "--processes", metavar="N|auto", default="1", show_default=True, callback=_processes, help="Worker processes; auto: one per CPU."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Slots of each process over all handlers; otherwise the sum of theirs."
)
@click.option("--handler", "handlers", metavar="NAME", multiple=True, help="Run only this handler; may be repeated.")
@click.option("--id", "name", metavar="NAME", callback=_name, help="How its id begins; the rest is random at each start.")
@click.option("--targets", is_flag=True, help="Also run handlers whose targets are stored (`duetime handlers put`); APP may be left out.")
@click.option(
    "--allow",
    type=click.Choice(["command"]),
    multiple=True,
    help="With --targets: run stored commands too. Whoever puts them runs programs here.",
)
@click.option(
    "--lease", metavar=parsing.DURATION, callback=parsing.duration, help="How long it counts as alive without reaching the store."
)
@click.option("--grace", metavar=parsing.DURATION, callback=parsing.duration, help="How long attempts may go on when it stops.")
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Serve /livez, /readyz and /metrics for probes here; 0: any free port.",
)
@click.option(
    "--health-host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="The address of the health port; it asks for no token."
)
@click.option("--check", is_flag=True, help="Run nothing: say which waiting tasks do not fit the App, and exit with 1 if there are any.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", default=100_000, show_default=True, help="How many --check looks at.")
@click.option(
    "--echo/--no-echo",
    default=None,
    help="Also print on stdout what handlers print, with task and attempt.  [default: yes, unless stdout is a terminal]",
)
@log_options("info")
@store_option
def worker(
    app_path: str | None,
    check: bool,
    limit: int,
    processes: int,
    concurrency: int | None,
    handlers: tuple[str, ...],
    name: str | None,
    targets: bool,
    allow: tuple[Literal["command"], ...],
    lease: float | None,
    grace: float | None,
    health_port: int | None,
    health_host: str,
    echo: bool | None,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Run the tasks of an App until stopped.

    APP is module:name; the default is DUETIME_APP. SIGTERM and SIGINT stop the worker: running attempts may finish within the
    grace, and a second signal ends the process at once. SIGUSR1 prints its status; SIGUSR2 lets it start nothing more, and the
    next SIGUSR2 go on.

    With several processes a supervisor starts them, and starts them again when they die. It passes the signals on; SIGHUP
    restarts them one by one.

    --check is a gate for deploys: it declares and changes nothing.
    """
    if not app_path and not (targets and not check):
        raise click.UsageError("which App? give it as module:name, such as shop.tasks:app, or set DUETIME_APP; or give --targets")
    if allow and not targets:
        raise click.UsageError("--allow is about stored targets: give --targets too")
    app_path = app_path or ONLY_STORED
    if check:
        from duetime.cli.hosting.check import check_app

        raise click.exceptions.Exit(check_app(app_path, limit))
    if health_port is not None and processes > 1:
        raise click.UsageError(
            "--health-port is the port of one worker process: several cannot share it. Run one process per container, "
            "or several workers, each with its own port"
        )
    chosen = LogChoice(log_level, log_format)
    echo = not sys.stdout.isatty() if echo is None else echo
    if processes > 1:
        from duetime.cli.hosting.supervisor import supervise

        log_to_stderr(chosen)
        options = {"concurrency": concurrency, "handler": handlers, "allow": allow, "lease": lease, "grace": grace, "url": given_url()}
        flags = ["--echo" if echo else "--no-echo", *(["--targets"] if targets else [])]
        command = _command(app_path, *flags, **options, log_level=log_level, log_format=log_format)
        raise click.exceptions.Exit(supervise(app_path, command, processes, log=chosen, name=name))
    guarded = None
    if click.get_current_context().find_object(OwnProcess) is not None:
        from duetime.cli.hosting.guard import guard

        guarded = guard()
    from duetime.cli.hosting.host import StoredChoice, host
    from duetime.cli.hosting.lifeline import Lifeline
    from duetime.cli.importing import find_app

    lifeline = Lifeline.take_from(os.environ)
    app = find_app(app_path, given_url())
    _apply_options(app, lease=lease, grace=grace)
    log_to_stderr(chosen, None if lifeline is None else lifeline.number)
    names = list(handlers) or None
    code = host(
        app,
        path=app_path,
        handlers=names,
        stored=StoredChoice(targets, allow),
        concurrency=concurrency,
        lifeline=lifeline,
        log=chosen,
        echo=echo,
        guarded=guarded,
        health=None if health_port is None else (health_host, health_port),
        name=name,
    )
    raise click.exceptions.Exit(code)


def _command(app_path: str, *flags: str, **options: object) -> list[str]:
    """Return the command of one worker process, with the same options."""
    command = [sys.executable, "-m", "duetime.cli", "worker", *flags]
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
