"""Sends what this process prints and logs to the attempt that does so.

The context variable `current_attempt` holds the attempt, which knows its file, so coroutines and threads that run with a copy of the
attempt's context write to the right file.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TextIO, cast

from duetime.clock import SECOND, to_datetime
from duetime.targets.output.files import Sink


class Printing(Protocol):
    """Anything that has a sink. Most attempts never print, and then their sink is never made."""

    @property
    def sink(self) -> Sink | None: ...


current_attempt: contextvars.ContextVar[Printing | None] = contextvars.ContextVar("duetime.attempt", default=None)


def current_sink() -> Sink | None:
    """Return the sink of the attempt whose code runs here; None if no attempt runs here."""
    attempt = current_attempt.get()
    return None if attempt is None else attempt.sink


class Capture:
    """Sends what this process prints and logs to the current sink. Without one everything goes where it always went.

    The streams and the root logger belong to the whole process: several captures share one installation. Install it when
    the program has configured its logging, because `logging.basicConfig` does nothing once the root logger has a handler.
    """

    _lock = threading.Lock()
    _shared: _Installation | None = None
    _users = 0

    def __init__(self) -> None:
        self._installed = False

    def install(self) -> None:
        with Capture._lock:
            if self._installed:
                return
            self._installed = True
            Capture._users += 1
            if Capture._shared is None:
                Capture._shared = _Installation()

    def uninstall(self) -> None:
        """Put the streams and the logger back, unless another capture still needs them."""
        with Capture._lock:
            if not self._installed:
                return
            self._installed = False
            Capture._users -= 1
            if Capture._users == 0 and Capture._shared is not None:
                Capture._shared.undo()
                Capture._shared = None


class _Installation:
    def __init__(self) -> None:
        self._before = sys.stdout, sys.stderr
        self._streams = cast(tuple[TextIO, TextIO], tuple(_Stream(stream) for stream in self._before))
        sys.stdout, sys.stderr = self._streams
        self._logs = LogHandler(current_sink, self._streams)
        self._logs.install()

    def undo(self) -> None:
        self._logs.uninstall()
        # a stream that the program has set meanwhile stays
        if sys.stdout is self._streams[0]:
            sys.stdout = self._before[0]
        if sys.stderr is self._streams[1]:
            sys.stderr = self._before[1]


class _Stream:
    """Replaces `sys.stdout` or `sys.stderr`; all but writing is left to the original."""

    def __init__(self, original: TextIO | None) -> None:
        self._original = original  # None in a program without a console

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        attempt = current_attempt.get()  # not current_sink(), which is a call more, twice for each print
        sink = None if attempt is None else attempt.sink
        if sink is not None and sink.write(text):
            if sink.echoes:
                sink.echo(text)
        elif self._original is not None:
            self._original.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        sink = current_sink()
        if sink is not None:
            sink.flush()
        elif self._original is not None:
            self._original.flush()

    def isatty(self) -> bool:
        return current_sink() is None and self._original is not None and self._original.isatty()

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(getattr(self._original, "buffer", None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Bytes:
    """Replaces the `buffer` of a stream."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def write(self, data: bytes | bytearray | memoryview) -> int:
        sink = current_sink()
        if sink is not None and sink.write(bytes(data)):
            sink.echo(bytes(data).decode("utf-8", "replace"))
        elif self._original is not None:
            self._original.write(data)
        return len(data)

    def flush(self) -> None:
        sink = current_sink()
        if sink is not None:
            sink.flush()
        elif self._original is not None:
            self._original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Writer(Protocol):
    """What log lines can be written to; a false result means that it did not take them."""

    def write(self, text: str, /) -> int: ...


class LogHandler(logging.Handler):
    """Writes log records, as lines, to what `find` returns at that moment.

    A record that one of the program's own handlers prints to a captured stream is left to that one, in its own format.
    A record that nothing takes is treated as if this handler did not exist: Python's last resort prints warnings.
    """

    def __init__(self, find: Callable[[], Writer | None], captured: Iterable[object]) -> None:
        super().__init__()
        self._find = find
        self._captured = tuple(captured)
        self._task_logger_had_no_level = False
        self.setFormatter(_LogFormatter())

    def install(self) -> None:
        """Join the root logger. `ctx.log` logs from INFO on, unless the program has set another level."""
        logging.getLogger().addHandler(self)
        task_logger = logging.getLogger("duetime.task")
        self._task_logger_had_no_level = task_logger.level == logging.NOTSET
        if self._task_logger_had_no_level:
            task_logger.setLevel(logging.INFO)

    def uninstall(self) -> None:
        logging.getLogger().removeHandler(self)
        if self._task_logger_had_no_level:
            logging.getLogger("duetime.task").setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        others = [handler for handler in _handlers_on_the_way(record.name) if handler is not self]
        try:
            writer = self._find()
            if writer is not None:
                if any(record.levelno >= other.level and self._prints(other) for other in others):
                    return
                if writer.write(f"{self.format(record)}\n"):
                    return
            if not others and logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def _prints(self, handler: logging.Handler) -> bool:
        stream = getattr(handler, "stream", None)
        return stream is not None and any(stream is captured for captured in self._captured)


def _handlers_on_the_way(name: str) -> Iterator[logging.Handler]:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


class _LogFormatter(logging.Formatter):
    """Formats as `2026-11-15T20:42:00.123Z LEVEL logger: message`, then the traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return to_datetime(int(record.created * SECOND)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
