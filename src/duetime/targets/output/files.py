"""Where one attempt's output goes: into the worker's journal, or, if another process writes it too, into a file of its own; up to a cap.

Every finished line is written at once instead of being gathered for 200 ms: the file then holds everything when the
process is killed in the next instant, which is when people want to read it; a follower misses nothing; and no timer thread
is needed. It costs 1.6 µs more a line, 0.03 s for an attempt that fills its file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec

from duetime.errors import InvalidValue
from duetime.ids import is_id
from duetime.secrets.redacting import Redactor
from duetime.targets.output.echo import Echo, Lines, Printed
from duetime.targets.output.journal import Journal, open_for_append, read_attempt

DEFAULT_CAP = 1_048_576

_LINE_LIMIT = 8_192  # what is written although no newline has come yet
_KEPT_OPEN = 64  # more than that and files are opened for each line: descriptors are wanted for other things too

_logger = logging.getLogger("duetime.output")


class OutputFiles:
    """The output in one folder: a journal of all attempts, and files of those of child processes, `<id>.<attempt>.log`.

    Without a journal every attempt has a file. `ended` is called when an attempt has ended that may have written something. `echo`, if
    there is one, gets each printed line too.
    """

    def __init__(
        self, folder: str | Path, cap: int = DEFAULT_CAP, ended: Callable[[], None] | None = None, *, journal: Journal | None = None
    ) -> None:
        if cap < 0:
            raise InvalidValue(f"the cap of an output file must not be negative, got {cap}")
        self.folder = Path(folder)
        self.cap = cap
        self.ended = ended
        self.journal = journal
        self.echo: Echo | None = None

    def path(self, task_id: str, attempt: int) -> Path:
        """Return the path of an attempt's file, whether it exists or not. Only task ids are accepted, so no path leaves the folder."""
        return self.folder / f"{_checked(task_id)}.{int(attempt)}.log"

    def open(self, task_id: str, attempt: int, *, shared: bool) -> Capped:
        """Return what takes an attempt's output; a file of its own if another process writes it too."""
        if shared or self.journal is None:
            return CappedFile(self.path(task_id, attempt), self.cap)
        return CappedFrames(self.journal, _checked(task_id), attempt, self.cap)


def _checked(task_id: str) -> str:
    if not is_id(task_id):
        raise InvalidValue(f"not a task id: {task_id!r}")
    return task_id


def cut_line(cap: int) -> bytes:
    """Return the line that ends a file which has reached its cap."""
    return f"\n… the rest of the output was cut: an attempt may write {cap:,} bytes\n".encode()


class Capped:
    """Takes no more output than its cap, line by line, and never raises. Where it puts a line is up to `_put`."""

    __slots__ = ("_cap", "_closed", "_done", "_line", "_lock", "_space", "redactor")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._space: int | None = None
        self._line = bytearray()
        # reentrant: a finaliser or a signal handler may print in the middle of a write by the same thread
        self._lock = threading.RLock()
        self._done = False
        self._closed = False
        self.redactor: Redactor | None = None

    def _begin(self) -> int:
        """Make ready for the next line; return how much there is already, which is asked for once."""
        raise NotImplementedError

    def _put(self, data: bytes | bytearray) -> None:
        raise NotImplementedError

    def _let_go(self, *, done: bool) -> None:
        """Release what a line needed, if it must not be kept open."""
        raise NotImplementedError

    @property
    def _name(self) -> object:
        raise NotImplementedError

    def write(self, text: str | bytes) -> bool:
        """Take some output; return False if the file has been closed, so that the caller writes it elsewhere."""
        if self._done:
            return not self._closed
        with self._lock:
            if self._done:
                return not self._closed
            if self.redactor is None and len(text) > self._cap:
                # a character is at least a byte, so what lies beyond the cap need not even be encoded
                text = text[: self._cap + 1]
            data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            self._line += data
            problem = self._write_line() if b"\n" in data or (len(self._line) >= _LINE_LIMIT and self._is_long) else None
        if problem is not None:
            _warn(self._name, problem)
        return True

    def flush(self, *, last: bool = False) -> None:
        """Write an unfinished line; what may be the beginning of a secret waits for its end."""
        with self._lock:
            problem = None if self._done else self._write_line(last=last)
        if problem is not None:
            _warn(self._name, problem)

    def close(self) -> None:
        """Write what is left; further output is refused."""
        with self._lock:
            problem = self._write_line(last=True) if self._line and not self._done else None
            self._closed = self._done = True
            self._let_go(done=True)
        if problem is not None:
            _warn(self._name, problem)

    @property
    def _is_long(self) -> bool:
        """Whether a line is written although its end has not come: later if the end of a long secret must be awaited."""
        return self.redactor is None or len(self._line) >= _LINE_LIMIT + self.redactor.longest

    def _write_line(self, *, last: bool = False) -> OSError | None:
        data, self._line = self._line, bytearray()
        if self.redactor is not None:
            data = bytearray(self.redactor.lines(bytes(data), last=last))
            # what a line ends with may be the beginning of a secret; a newline is in none, because lines are blanked one by one
            held = 0 if last else min(self.redactor.longest, len(data) - data.rfind(b"\n") - 1)
            data, self._line = data[: len(data) - held], data[len(data) - held :]
        if not data:
            return None
        try:
            self._append(data)
        except OSError as problem:
            self._done = True
            self._let_go(done=True)
            return problem
        return None

    def _append(self, data: bytearray) -> None:
        written = self._begin()
        if self._space is None:
            self._space = self._cap - written
        if self._space < 0:  # an earlier writer has cut it
            self._done = True
        elif len(data) > self._space:
            end = self._space
            while end and data[end] & 0xC0 == 0x80:  # not in the middle of a character
                end -= 1
            self._put(data[:end] + cut_line(self._cap))
            self._done = True
        else:
            self._put(data)
            self._space -= len(data)
        self._let_go(done=self._done)


class CappedFile(Capped):
    """A file that is made at the first line. What is already in it counts, so a second writer may go on where the first one died."""

    __slots__ = ("_file", "_path")

    _open: ClassVar[set[CappedFile]] = set()

    def __init__(self, path: Path, cap: int) -> None:
        super().__init__(cap)
        self._path = path
        self._file: int | None = None

    def _begin(self) -> int:
        if self._file is None:
            self._file = open_for_append(self._path)
            CappedFile._open.add(self)
        return os.fstat(self._file).st_size if self._space is None else 0

    def _put(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        _write_all(self._file, data)

    def _let_go(self, *, done: bool) -> None:
        if self._file is not None and (done or len(CappedFile._open) > _KEPT_OPEN):
            os.close(self._file)
            self._file = None
            CappedFile._open.discard(self)

    @property
    def _name(self) -> object:
        return self._path


class CappedFrames(Capped):
    """An attempt's part of a journal."""

    __slots__ = ("_attempt", "_journal", "_offset", "_task")

    def __init__(self, journal: Journal, task: str, attempt: int, cap: int) -> None:
        super().__init__(cap)
        self._journal = journal
        self._task = task
        self._attempt = attempt
        self._offset = 0

    def _begin(self) -> int:
        return 0

    def _put(self, data: bytes | bytearray) -> None:
        self._journal.append(self._task, self._attempt, self._offset, data)
        self._offset += len(data)

    def _let_go(self, *, done: bool) -> None:
        pass

    @property
    def _name(self) -> object:
        return self._journal.folder


def _write_all(file: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


_warned = False


def _warn(path: object, problem: OSError) -> None:
    """Log once that output cannot be kept: a full disk must not also fill the log."""
    global _warned
    if not _warned:
        _warned = True
        _logger.warning("the output of attempts cannot be kept, first seen at %s: %s", path, problem)


class Sink(msgspec.Struct, eq=False):
    """Where one attempt's output goes. Making and closing one costs next to nothing; the file comes with the first output."""

    _files: OutputFiles
    _task_id: str
    _attempt: int
    _handler: str = ""
    _file: Capped | None = None
    _ended: bool = False
    _elsewhere: bool = False
    _lines: Lines | None = None
    _redactor: Redactor | None = None

    _beginning: ClassVar[threading.Lock] = threading.Lock()

    def share(self) -> Path:
        """Return the path of the file for a child process, which may write it too."""
        self._elsewhere = True
        return self._files.path(self._task_id, self._attempt)

    def unshare(self) -> None:
        """Note that a child process has written nothing: nobody has to look for its file."""
        self._elsewhere = False

    def redact(self, redactor: Redactor | None) -> None:
        """Blank secrets in all that is written from now on."""
        self._redactor = redactor
        if self._file is not None:
            self._file.redactor = redactor

    def write(self, text: str | bytes) -> bool:
        """Take some output; return False if the attempt has ended."""
        return self._begin(text) if self._file is None else self._file.write(text)

    @property
    def echoes(self) -> bool:
        """Whether anybody wants what is printed."""
        return self._files.echo is not None

    def echo(self, text: str) -> None:
        """Pass on what was printed, if anybody wants it; what is logged has its own ways."""
        echo = self._files.echo
        if echo is None:
            return
        with self._beginning:
            if self._lines is None:
                self._lines = Lines(self._blanking(echo), self._handler, self._task_id, self._attempt, self._files.cap)
        self._lines.write(text)

    def _blanking(self, echo: Echo) -> Echo:
        return lambda printed: echo(printed if self._redactor is None else _blanked(printed, self._redactor))

    def flush(self) -> None:
        """Write an unfinished line."""
        if self._file is not None:
            self._file.flush()

    def read(self) -> str:
        """Return what the attempt has written so far. Only for the attempt itself: its file is removed soon after its end.

        A journal has no more than what the store does not have yet.
        """
        self.flush()
        if isinstance(self._file, CappedFrames):
            found = read_attempt(self._files.folder, self._task_id, self._attempt, 0, 2 * self._files.cap)
            return "" if found is None else found[0].decode("utf-8", "replace")
        try:
            return self._files.path(self._task_id, self._attempt).read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Write what is left. What threads of the attempt print from now on goes to the process's own streams."""
        # no lock is needed: this is set before the file is looked for, and `_begin` reads it after the file is set
        self._ended = True
        if self._file is not None:
            self._file.close()
        if self._elsewhere and self._files.echo is not None:
            self.echo(self.read())  # all at once: a child process moves what is printed past Python
        if self._lines is not None:
            self._lines.close()
        if (self._file is not None or self._elsewhere) and self._files.ended is not None:
            self._files.ended()

    def _begin(self, text: str | bytes) -> bool:
        if self._ended:
            return False
        with self._beginning:
            if self._file is None:
                self._file = self._files.open(self._task_id, self._attempt, shared=self._elsewhere)
                self._file.redactor = self._redactor
            file = self._file
        took = file.write(text)
        if self._ended:
            file.close()
        return took


def _blanked(printed: Printed, redactor: Redactor) -> Printed:
    return printed._replace(line=redactor.text(printed.line))
