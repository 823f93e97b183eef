"""What attempts print and log: one capped file per attempt that has output, none for the others.

`OutputFiles` knows where the files are and reads them. A `Sink` is one attempt's way to its file; the context variable
`current_sink` holds it, so coroutines and threads that run with a copy of the attempt's context write to the right file.
`Capture` leads this process's `sys.stdout`, `sys.stderr` and log records there.

Every finished line is written at once instead of being gathered for 200 ms: the file then holds everything when the
process is killed in the next instant, which is when people want to read it; a follower misses nothing; and no timer thread
is needed. It costs 1.6 µs more a line, 0.03 s for an attempt that fills its file.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import contextvars
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO, cast

from duetime.clock import SECOND, to_datetime
from duetime.errors import InvalidValue
from duetime.ids import is_id

DEFAULT_CAP = 1_048_576
FOLLOW_EVERY = 0.15

_LINE_LIMIT = 8_192  # what is written although no newline has come yet
_KEPT_OPEN = 64  # more than that and files are opened for each line: descriptors are wanted for other things too

_logger = logging.getLogger("duetime.output")


class OutputFiles:
    """The output files below one folder: `<folder>/<first six characters of the id>/<id>.<attempt>.log`."""

    def __init__(self, folder: str | Path, cap: int = DEFAULT_CAP) -> None:
        if cap < 0:
            raise InvalidValue(f"the cap of an output file must not be negative, got {cap}")
        self.folder = Path(folder)
        self.cap = cap

    def path(self, task_id: str, attempt: int) -> Path:
        """Tell where an attempt's output is or would be. Only task ids are accepted, so nothing leads out of the folder."""
        return self._place(task_id) / f"{task_id}.{int(attempt)}.log"

    def read(self, task_id: str, attempt: int) -> str:
        """Give an attempt's output so far; empty if it has none."""
        try:
            return self.path(task_id, attempt).read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def attempts(self, task_id: str) -> list[int]:
        """List the attempts of a task that have output, in order."""
        numbers = (path.name[len(task_id) + 1 : -len(".log")] for path in self._place(task_id).glob(f"{task_id}.*.log"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    async def follow(self, task_id: str, attempt: int, finished: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """Give an attempt's output as it grows, until `finished` says that no more will come and all has been given."""
        path = self.path(task_id, attempt)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        position = 0
        while True:
            over = await finished()  # asked before reading: what was written before the end is then seen for sure
            for data in _chunks_from(path, position):
                position += len(data)
                if text := decoder.decode(data):
                    yield text
            if over:
                if text := decoder.decode(b"", final=True):
                    yield text
                return
            await asyncio.sleep(FOLLOW_EVERY)

    def remove(self, task_id: str, up_to_attempt: int) -> None:
        """Remove the output of a task's attempts up to a number, and the folder if it is empty then."""
        for attempt in range(1, up_to_attempt + 1):
            self.path(task_id, attempt).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._place(task_id).rmdir()

    def _place(self, task_id: str) -> Path:
        if not is_id(task_id):
            raise InvalidValue(f"not a task id: {task_id!r}")
        return self.folder / task_id[:6]


def _chunks_from(path: Path, position: int) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(position)
        while data := file.read(65_536):
            yield data


def cut_line(cap: int) -> bytes:
    """Give the line that ends a file which has reached its cap."""
    return f"\n… the rest of the output was cut: an attempt may write {cap:,} bytes\n".encode()


class CappedFile:
    """A file that is made at the first line, takes no more than its cap, and never raises.

    What is already in the file counts, so a second writer may go on where the first one died.
    """

    __slots__ = ("_cap", "_closed", "_done", "_file", "_line", "_lock", "_path", "_room")

    _open: ClassVar[set[CappedFile]] = set()

    def __init__(self, path: Path, cap: int) -> None:
        self._path = path
        self._cap = cap
        self._room: int | None = None
        self._file: int | None = None
        self._line = bytearray()
        # reentrant: a finaliser or a signal handler may print in the middle of a write by the same thread
        self._lock = threading.RLock()
        self._done = False
        self._closed = False

    def write(self, text: str | bytes) -> bool:
        """Take some output; False if the file has been closed and somebody else must have it."""
        if self._done:
            return not self._closed
        with self._lock:
            if self._done:
                return not self._closed
            # a character is at least a byte, so what lies beyond the cap need not even be encoded
            text = text[: self._cap + 1]
            data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            self._line += data
            problem = self._write_line() if b"\n" in data or len(self._line) >= _LINE_LIMIT else None
        if problem is not None:
            _warn(self._path, problem)
        return True

    def flush(self) -> None:
        """Write an unfinished line."""
        with self._lock:
            problem = None if self._done else self._write_line()
        if problem is not None:
            _warn(self._path, problem)

    def close(self) -> None:
        """Write what is left; further output is refused."""
        self.flush()
        with self._lock:
            self._closed = self._done = True
            self._let_go()

    def _write_line(self) -> OSError | None:
        data, self._line = self._line, bytearray()
        if not data:
            return None
        try:
            self._append(data)
        except OSError as problem:
            self._done = True
            self._let_go()
            return problem
        return None

    def _append(self, data: bytearray) -> None:
        file = self._file
        if file is None:
            file = _open_for_append(self._path)
            if self._room is None:
                self._room = self._cap - os.fstat(file).st_size
            self._file = file
            CappedFile._open.add(self)
        assert self._room is not None
        if self._room < 0:  # an earlier writer has cut it
            self._done = True
        elif len(data) > self._room:
            end = self._room
            while end and data[end] & 0xC0 == 0x80:  # not in the middle of a character
                end -= 1
            _write_all(file, data[:end] + cut_line(self._cap))
            self._done = True
        else:
            _write_all(file, data)
            self._room -= len(data)
        if self._done or len(CappedFile._open) > _KEPT_OPEN:
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            CappedFile._open.discard(self)


def _open_for_append(path: Path) -> int:
    for _ in range(3):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except FileNotFoundError:  # the first file there, or a pruner has just removed the empty folder
            path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


def _write_all(file: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


_warned = False


def _warn(path: Path, problem: OSError) -> None:
    """Say once that output cannot be kept: a full disk must not also fill the log."""
    global _warned
    if not _warned:
        _warned = True
        _logger.warning("the output of attempts cannot be kept, first seen at %s: %s", path, problem)


class Sink:
    """Where one attempt's output goes. Making and closing one costs next to nothing; the file comes with the first output."""

    __slots__ = ("_attempt", "_ended", "_file", "_files", "_task_id")

    _beginning = threading.Lock()

    def __init__(self, files: OutputFiles, task_id: str, attempt: int) -> None:
        self._files = files
        self._task_id = task_id
        self._attempt = attempt
        self._file: CappedFile | None = None
        self._ended = False

    def write(self, text: str | bytes) -> bool:
        """Take some output; False if the attempt has ended and its output is no more wanted here."""
        return self._begin(text) if self._file is None else self._file.write(text)

    def flush(self) -> None:
        """Write an unfinished line."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write what is left. What threads of the attempt print from now on goes to the process's own streams."""
        # without a lock: it is set before the file is looked for, and a beginner looks at it after the file is there
        self._ended = True
        if self._file is not None:
            self._file.close()

    def _begin(self, text: str | bytes) -> bool:
        if self._ended:
            return False
        with self._beginning:
            if self._file is None:
                self._file = CappedFile(self._files.path(self._task_id, self._attempt), self._files.cap)
            file = self._file
        took = file.write(text)
        if self._ended:
            file.close()
        return took


current_sink: contextvars.ContextVar[Sink | None] = contextvars.ContextVar("duetime.sink", default=None)


class Capture:
    """Leads what this process prints and logs to the current sink; without one, everything goes where it always went.

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
        self._logs = LogHandler(current_sink.get, self._streams)
        self._logs.install()

    def undo(self) -> None:
        self._logs.uninstall()
        # who has put another stream in place meanwhile keeps it
        if sys.stdout is self._streams[0]:
            sys.stdout = self._before[0]
        if sys.stderr is self._streams[1]:
            sys.stderr = self._before[1]


class _Stream:
    """Stands for `sys.stdout` or `sys.stderr`; whatever is not about writing is the original's business."""

    def __init__(self, original: TextIO | None) -> None:
        self._original = original  # None in a program without a console

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        sink = current_sink.get()
        if (sink is None or not sink.write(text)) and self._original is not None:
            self._original.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        sink = current_sink.get()
        if sink is not None:
            sink.flush()
        elif self._original is not None:
            self._original.flush()

    def isatty(self) -> bool:
        return current_sink.get() is None and self._original is not None and self._original.isatty()

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(getattr(self._original, "buffer", None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Bytes:
    """Stands for the `buffer` of a stream."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def write(self, data: bytes | bytearray | memoryview) -> int:
        sink = current_sink.get()
        if (sink is None or not sink.write(bytes(data))) and self._original is not None:
            self._original.write(data)
        return len(data)

    def flush(self) -> None:
        sink = current_sink.get()
        if sink is not None:
            sink.flush()
        elif self._original is not None:
            self._original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Writer(Protocol):
    """What log lines can be written to; the answer False means that it did not take them."""

    def write(self, text: str, /) -> int: ...


class LogHandler(logging.Handler):
    """Gives log records, as lines, to what `find` gives at that moment.

    A record that one of the program's own handlers prints to a captured stream is left to that one, in its own format.
    A record that nobody takes is treated as if this handler did not exist: Python's last resort prints warnings.
    """

    def __init__(self, find: Callable[[], Writer | None], captured: Iterable[object]) -> None:
        super().__init__()
        self._find = find
        self._captured = tuple(captured)
        self._task_logger_had_no_level = False
        self.setFormatter(_LogFormatter())

    def install(self) -> None:
        """Join the root logger; what handlers log with `ctx.log` is wanted from INFO on, unless the program says otherwise."""
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
