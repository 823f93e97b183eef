"""How a command fails: a table from errors to exit codes, and one line on stderr that says what to do."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import click

from duetime import errors

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNREACHABLE: Final = 5
INTERRUPTED: Final = 130

# The first row whose class fits decides.
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (click.UsageError, USAGE),
    (errors.InvalidValue, USAGE),
    (errors.TaskNotFound, NOT_FOUND),
    (errors.ScheduleNotFound, NOT_FOUND),
    (errors.UnknownHandler, NOT_FOUND),
    (errors.TokenNotFound, NOT_FOUND),
    (errors.SecretNotFound, NOT_FOUND),
    (errors.FailureNotFound, NOT_FOUND),
    (errors.ArtifactNotFound, NOT_FOUND),
    (errors.TargetNotFound, NOT_FOUND),
    (errors.OperationNotFound, NOT_FOUND),
    (errors.WorkerNotFound, NOT_FOUND),
    (errors.LockNotFound, NOT_FOUND),
    (errors.LimitNotFound, NOT_FOUND),
    (errors.LockTaken, CONFLICT),
    (errors.FlowNotFound, NOT_FOUND),
    (errors.SignalNotFound, NOT_FOUND),
    (errors.AlertNotFound, NOT_FOUND),
    (errors.ChannelNotFound, NOT_FOUND),
    (errors.DuplicateKey, CONFLICT),
    (errors.Conflict, CONFLICT),
    (errors.StoreUnavailable, UNREACHABLE),
    (errors.MissingExtra, REFUSED),
    (click.Abort, INTERRUPTED),
    (KeyboardInterrupt, INTERRUPTED),
    (errors.DuetimeError, REFUSED),
    (TimeoutError, REFUSED),
    (click.ClickException, REFUSED),
    (Exception, REFUSED),
)


def exit_code(error: BaseException) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def report(error: BaseException) -> int:
    """Print what went wrong as one line on stderr, and return the exit code."""
    if os.environ.get("DUETIME_DEBUG") == "1":
        traceback.print_exception(error)
    print_error(_line(error))
    return exit_code(error)


def print_error(message: str) -> None:
    click.echo(f"duetime: {' '.join(message.split())}", err=True)


def _line(error: BaseException) -> str:
    match error:
        case click.UsageError():
            where = "duetime" if error.ctx is None else error.ctx.command_path
            return f"{_sentence(error.format_message())}; see {where} --help"
        case click.ClickException():
            return _sentence(error.format_message())
        case click.Abort() | KeyboardInterrupt():
            return "interrupted"
        case errors.DuetimeError() | TimeoutError():
            return _as_options(str(error))
        case _:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = f" ({last[0].filename}, line {last[0].lineno})" if last else ""
            return f"unexpected {type(error).__name__}: {error}{where}; DUETIME_DEBUG=1 shows the traceback"


# The messages of the library name arguments of functions; at a terminal the same things are options.
_OPTIONS = {
    "allow_unknown=True": "--allow-unknown",
    'if_exists="keep"': "--if-exists keep",
    'or "replace"': "or --if-exists replace",
    'if_exists="replace"': "--if-exists replace",
    'if_exists="queue_one"': "--if-exists queue_one",
    'or "keep"': "or --if-exists keep",
    "force=true": "--force",
    "`app.schedules.list()` gives all": "`duetime schedules` lists all",
}


def _as_options(message: str) -> str:
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    return message


def _sentence(message: str) -> str:
    """Bring a message of click into our form: lower-case first letter, no full stop."""
    message = message.rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def discard_output() -> None:
    """Let the interpreter exit quietly although nobody reads what it still has to flush."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
