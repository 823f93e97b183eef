"""The entry of the command line. Nothing heavy is imported here or at the top of a command's module: `--help` must be quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from duetime.cli.dev.command import dev
from duetime.cli.failures import DONE, discard_output, report
from duetime.cli.handlers.commands import handlers
from duetime.cli.hosting.server import server
from duetime.cli.hosting.worker import OwnProcess, worker
from duetime.cli.operating.alerts import alerts
from duetime.cli.operating.artifacts import artifacts
from duetime.cli.operating.backup import backup
from duetime.cli.operating.channels import channels
from duetime.cli.operating.doctor import doctor
from duetime.cli.operating.events import events
from duetime.cli.operating.failures import failures
from duetime.cli.operating.flows import flows
from duetime.cli.operating.gates import gates
from duetime.cli.operating.limits import limits
from duetime.cli.operating.locks import locks
from duetime.cli.operating.migrate import migrate
from duetime.cli.operating.operations import operations
from duetime.cli.operating.overview import stats
from duetime.cli.operating.secrets import secrets
from duetime.cli.operating.servers import servers
from duetime.cli.operating.shards import shards
from duetime.cli.operating.signals import signals
from duetime.cli.operating.status import status
from duetime.cli.operating.tokens import audit, tokens
from duetime.cli.operating.top import top
from duetime.cli.operating.weights import weights
from duetime.cli.operating.workers import workers
from duetime.cli.schedules.calendars import calendars
from duetime.cli.schedules.commands import schedules
from duetime.cli.tasks.change import cancel, copy, delete, edit, reschedule, retry
from duetime.cli.tasks.listing import task, tasks, why
from duetime.cli.tasks.logs import logs
from duetime.cli.tasks.submit import submit


class _ReaderGone(Exception):
    """The reader of our output has ended. Not an OSError, because click handles those itself."""


class CommandLine(click.Group):
    """A group that ends with our exit codes and one line of explanation."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _ReaderGone from None
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a character that the terminal lacks must not end the command
        try:
            code = super().main(
                args, prog_name or "duetime", complete_var, standalone_mode=False, windows_expand_args=windows_expand_args, **extra
            )
        except _ReaderGone:
            discard_output()
            code = DONE
        except (Exception, KeyboardInterrupt) as error:
            code = report(error)
        sys.exit(code if isinstance(code, int) else DONE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were added: by what people do, not by name."""
        return list(self.commands)


@click.group(
    "duetime",
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="duetime", message="duetime %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run work at the right time, at least once and never twice at once.

    The store is given by --url, or it is that of the App in DUETIME_APP, or DUETIME_URL, or sqlite:///duetime.db. Exit codes: 0 done,
    1 refused or failed, 2 usage, 3 not found, 4 conflict, 5 store unreachable, 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_PASS_THROUGH = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Show Duetime at work.

    Unpaid orders expire on time although a worker is killed.
    """
    from duetime.cli.demo.command import run

    _exit(run(list(arguments)))


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure throughput and lateness on this machine."""
    from duetime.cli.bench import run

    _exit(run(list(arguments)))


def _exit(code: int | None) -> None:
    raise click.exceptions.Exit(code or DONE)


for _command in (
    dev,
    worker,
    server,
    submit,
    tasks,
    task,
    logs,
    why,
    cancel,
    retry,
    copy,
    edit,
    reschedule,
    delete,
    schedules,
    calendars,
    flows,
    operations,
    gates,
    events,
    limits,
    weights,
    locks,
    shards,
    signals,
    alerts,
    channels,
    failures,
    handlers,
    workers,
    servers,
    stats,
    status,
    top,
    tokens,
    secrets,
    artifacts,
    audit,
    migrate,
    backup,
    doctor,
    demo,
    bench,
):
    cli.add_command(_command)


def main() -> NoReturn:
    cli.main(obj=OwnProcess())
