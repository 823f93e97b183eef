"""The log of commands that run until they are stopped: lines on stderr, in UTC, for people or as JSON for programs."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from duetime.targets.output import Printed

Function = TypeVar("Function", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FIELDS = ("task", "handler", "attempt", "outcome", "error", "location", "final", "count")  # as a record has them: `duetime_task`


class LogChoice(msgspec.Struct, frozen=True):
    """What is logged, and in which form."""

    level: str
    format: Literal["text", "json"] = "text"


def log_options(level: str) -> Callable[[Function], Function]:
    """Add --log-level with a default, and --log-format."""

    def add(function: Function) -> Function:
        form = click.option(
            "--log-format",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
            help="How: lines for people, or one JSON object per line.",
        )
        return click.option("--log-level", type=click.Choice(LEVELS), default=level, show_default=True, help="What is logged to stderr.")(
            form(function)
        )

    return add


def log_to_stderr(chosen: LogChoice, number: int | None = None, *, without: str | None = None) -> None:
    """Configure logging, unless the App's module has done so already.

    `number` is that of a supervised worker. Records of the logger `without` are left out, because the command shows them in its own way.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(number) if chosen.format == "json" else TextLines(number))
    if without is not None:
        handler.addFilter(lambda record: record.name != without)
    logging.basicConfig(level=chosen.level.upper(), handlers=[handler])


def said(line: str, chosen: LogChoice, number: int | None = None) -> str:
    """Return something that a command has to say as it is printed on stderr: it is no log record, but JSON where the log is."""
    if chosen.format == "json":
        return JsonLines(number).format(logging.makeLogRecord({"name": "duetime.cli", "levelname": "INFO", "msg": line}))
    return f"duetime: {line}" if number is None else f"duetime worker {number}: {line}"


class TextLines(logging.Formatter):
    """Formats as `2026-11-15T20:42:00.123Z LEVEL logger: message`, then the traceback; control characters are escaped."""

    def __init__(self, number: int | None = None) -> None:
        who = "" if number is None else f"worker {number} "
        super().__init__(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s")
        self.converter = time.gmtime
        self.default_time_format = "%Y-%m-%dT%H:%M:%S"
        self.default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], super().format(record))


class JsonLines(TextLines):
    """Formats as one JSON object: time, level, logger, message; task, handler and attempt if it is about one; exception."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__(number)
        self._number = number

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _sendable(record.getMessage()),
        }
        if self._number is not None:
            document["worker"] = self._number
        given = vars(record)
        fields = {name: given[f"duetime_{name}"] for name in _FIELDS if given.get(f"duetime_{name}") not in (None, "")}
        document.update(fields if "task" in fields else {**fields, **_of_current_attempt()})
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        trace = "\n".join(filter(None, (record.exc_text, record.stack_info)))
        if trace:
            document["exception"] = _sendable(trace)
        return msgspec.json.encode(document, enc_hook=str).decode()


class Echoing:
    """Prints on stdout what attempts print, each line with its handler, task and attempt, or as JSON where the log is."""

    def __init__(self, chosen: LogChoice, number: int | None = None) -> None:
        self._stdout = sys.stdout  # the real one: from its start on, a worker captures what is printed
        self._json = JsonLines(number) if chosen.format == "json" else None
        self._who = "" if number is None else f"worker {number} "

    def __call__(self, printed: Printed) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            self._stdout.write(f"{self._line(printed)}\n")
            self._stdout.flush()

    def _line(self, printed: Printed) -> str:
        handler, task, attempt, line = printed
        if self._json is None:
            return f"{self._who}{handler} {task}.{attempt} | {line}"
        fields = {"duetime_task": task, "duetime_handler": handler, "duetime_attempt": attempt}
        return self._json.format(logging.makeLogRecord({"name": "duetime.output", "levelname": "INFO", "msg": line, **fields}))


def _of_current_attempt() -> dict[str, object]:
    """Return which attempt logs here, if one does: any logger that a handler uses."""
    from duetime.targets.output import current_attempt

    claimed = getattr(current_attempt.get(), "claimed", None)
    return {} if claimed is None else {"task": claimed.id, "handler": claimed.handler, "attempt": claimed.attempt}


def _sendable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
