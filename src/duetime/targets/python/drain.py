"""What a child process prints, from any code, goes to its attempt's file."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import sys
import termios
import threading
from pathlib import Path

from duetime.runtime.permissions import make_folder, mode_of
from duetime.targets.output import cut_line


class Drain(threading.Thread):
    """Moves what is printed to descriptors 1 and 2, by Python, C code and sub-processes alike, to the attempt's file.

    Between attempts it goes to the worker's own standard error. At the cap the descriptors are pointed to /dev/null, so a
    handler that prints without end costs nothing more. Data moves by `splice`: all text is in the pipe or in the file at
    any time, so the worker, which can read the pipe too, misses nothing when this process dies.
    """

    def __init__(self, source: int, passed_through: int) -> None:
        super().__init__(name="duetime-output", daemon=True)
        self._source = source
        self._passed_through = passed_through
        self._can_pass = select.poll()
        self._can_pass.register(passed_through, select.POLLOUT)
        self._entry = os.dup(1)
        self._nowhere = os.open(os.devnull, os.O_RDWR)
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._file: int | None = None
        self._cap = 0
        self._space = 0
        self._cut = False
        faulthandler.enable(file=self._entry)

    @property
    def capturing(self) -> bool:
        return self._path is not None

    def run(self) -> None:
        readable = select.poll()
        readable.register(self._source, select.POLLIN)
        while True:
            # the GIL is needed between poll and read: text of a crashing process stays in the pipe
            readable.poll()
            with self._lock:
                self._move()

    def begin(self, path: str | None, cap: int) -> None:
        """Send output to a file from now on."""
        with self._lock:
            self._empty()
            self._path = None if path is None else Path(path)
            self._cap = self._space = cap

    def end(self) -> bool:
        """Put everything printed so far into the file and close it. Return whether there was something."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        with self._lock:
            self._empty()
            wrote = self._file is not None
            if self._file is not None:
                os.close(self._file)
            if self._cut:
                os.dup2(self._entry, 1)
                os.dup2(self._entry, 2)
            self._path, self._file, self._cut = None, None, False
            return wrote

    def _empty(self) -> None:
        """Move what is in the pipe now, not what a sub-process keeps adding."""
        left = int.from_bytes(fcntl.ioctl(self._source, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
        while left > 0:
            moved = self._move()
            if not moved:
                return
            left -= moved

    def _move(self) -> int:
        try:
            if self._path is None:
                return self._pass_through()
            if self._space == 0 and not self._cut:
                self._cut_off()
            if self._cut:
                return self._splice(self._nowhere, 65_536)
            if self._file is None:
                make_folder(self._path.parent, like=self._path.parent.parent)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, mode_of(self._path.parent))
                os.lseek(self._file, 0, os.SEEK_END)
            moved = self._splice(self._file, self._space)
            self._space -= moved
            return moved
        except BlockingIOError:
            return 0
        except OSError:  # a full disk and the like: the attempt must not notice
            self._cut_off()
            return 0

    def _cut_off(self) -> None:
        self._cut = True
        os.dup2(self._nowhere, 1)
        os.dup2(self._nowhere, 2)
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.write(self._file, cut_line(self._cap))

    def _splice(self, target: int, limit: int) -> int:
        try:
            return os.splice(self._source, target, limit)
        except BlockingIOError:
            raise
        except (AttributeError, OSError):  # not on this system, or not into this kind of file
            data = os.read(self._source, limit)
            left = memoryview(data)
            while left:
                left = left[os.write(target, left) :]
            return len(data)

    def _pass_through(self) -> int:
        data = os.read(self._source, select.PIPE_BUF)
        if self._can_pass.poll(0):  # a worker whose standard error is stuck must not stop the next attempt
            with contextlib.suppress(OSError):
                os.write(self._passed_through, data)
        return len(data)
