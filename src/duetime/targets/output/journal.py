"""The journal of a worker: what its attempts print, line by line, in one append-only file instead of a file per attempt.

A frame is a head, `<task> <attempt> <offset> <size>` and a newline, and then so many bytes. `offset` counts the bytes that the attempt
had written before. Each is one `write`, so a finished line outlives the process that printed it. The journal is cut into segments,
`journal.<number>.log`, that are removed once the store has all of it: an attempt that prints one line costs one `write`, where a file of
its own costs a file that is made, opened, listed, read and removed.

A fork of the worker (a handler may fork) writes segments of its own, `journal.<number>.<pid>.log`: they belong to one process each.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from duetime.runtime.forks import forget_in_forks
from duetime.runtime.permissions import make_folder, mode_of

SEGMENT = 1_048_576  # bytes after which a segment is followed by the next: a reader of one attempt looks through all of them
MOST_LOOKED_THROUGH = 64  # segments: with more the store has been away for long, and reading one attempt must not read it all

_SEGMENT = re.compile(r"journal\.([0-9]{1,12})(?:\.([0-9]{1,10}))?\.log\Z")
_LONGEST_HEAD = 96

Name = tuple[str, int]


class Frame(NamedTuple):
    """Some bytes that an attempt wrote, after `offset` others."""

    name: Name
    offset: int
    data: bytes


class Segment(NamedTuple):
    """A file of a journal. In the order of its parts they are in the order of writing."""

    number: int
    fork: int
    path: Path


class Journal:
    """Appends frames, from any thread. A file is made when there is something to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # reentrant: a finaliser or a signal handler may print in the middle of a write by the same thread
        self._lock = threading.RLock()
        self._number = 0
        self._fork = ""
        self._path: Path | None = None
        self._file = -1
        self._size = 0
        forget_in_forks(self)

    def append(self, task: str, attempt: int, offset: int, data: bytes | bytearray) -> None:
        """Write a frame, whole or not at all. Raises OSError."""
        frame = b"".join((f"{task} {attempt} {offset} {len(data)}\n".encode("ascii"), data))
        with self._lock:
            if self._file < 0:
                self._open()
            file, size = self._file, self._size
            written = os.write(file, frame)
            if written < len(frame):
                self._write_rest(file, size, frame, written)
            self._size = size + len(frame)
            if self._size >= SEGMENT:
                self._close()

    def _write_rest(self, file: int, size: int, frame: bytes, written: int) -> None:
        try:
            while written < len(frame):
                written += os.write(file, frame[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, size)  # a head without its bytes would make what follows unreadable
            raise

    def _open(self) -> None:
        self._number += 1
        path = self.folder / f"journal.{self._number}{self._fork}.log"
        self._file, self._path, self._size = open_for_append(path), path, 0

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._path = -1, None

    def retire(self, path: Path, size: int) -> bool:
        """Remove a segment of which this many bytes are needed no more, unless more was written; return whether it is gone."""
        with self._lock:
            if path == self._path:
                if self._size != size:
                    return False
                self._close()
            elif path.exists() and path.stat().st_size != size:
                return False
            path.unlink(missing_ok=True)
            return True

    def close(self) -> None:
        with self._lock:
            self._close()

    def forget_after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread may have held it
        self._close()
        self._fork = f".{os.getpid()}"


def open_for_append(path: Path) -> int:
    for _ in range(3):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode_of(path.parent))
        except FileNotFoundError:  # the first file there, or a pruner has just removed the empty folder
            make_folder(path.parent, like=path.parent.parent)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode_of(path.parent))


# ---- reading ----


def segments(folder: Path) -> list[Segment]:
    """List the segments in a worker's folder, in the order of writing."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = ((match, folder / name) for name in names if (match := _SEGMENT.match(name)) is not None)
    return sorted(Segment(int(match[1]), int(match[2] or 0), path) for match, path in found)


class Frames:
    """The frames in some bytes of a segment. `end`, after them: how many bytes they took; `broken`: what follows is no frame.

    `torn`: the last frame may lack some of its bytes, because nobody writes the rest any more.
    """

    def __init__(self, data: bytes, *, torn: bool = False) -> None:
        self._data = data
        self._torn = torn
        self.end = 0
        self.broken = False

    def __iter__(self) -> Iterator[Frame]:
        data, at = self._data, 0
        while at < len(data):
            newline = data.find(b"\n", at, at + _LONGEST_HEAD)
            if newline < 0:
                self.broken = len(data) - at >= _LONGEST_HEAD
                break
            try:
                task, attempt, offset, size = data[at:newline].decode("ascii").split(" ")
                end = newline + 1 + int(size)
                frame = Frame((task, int(attempt)), int(offset), data[newline + 1 : end])
            except ValueError:
                self.broken = True
                break
            if end > len(data):
                if self._torn:
                    self.end = len(data)
                    yield frame
                break
            self.end = at = end
            yield frame


def read_attempt(folder: Path, task: str, attempt: int, offset: int, limit: int) -> tuple[bytes, bool] | None:
    """Read what an attempt wrote from an offset on; return whether that was all. None if its journal does not have that (any more)."""
    data, begin = bytearray(), -1
    listed = segments(folder)
    if len(listed) > MOST_LOOKED_THROUGH:
        return None
    for segment in listed:
        try:
            text = segment.path.read_bytes()
        except OSError:  # shipped meanwhile, or not for this user to read
            return None
        if task.encode() not in text:
            continue
        for frame in Frames(text):
            if frame.name == (task, attempt):
                begin = frame.offset if begin < 0 else begin
                data += frame.data
    if begin < 0 or begin > offset:
        return None
    found = data[offset - begin : offset - begin + limit + 1]
    return bytes(found[:limit]), len(found) <= limit


def attempts_of(folder: Path, task: str) -> set[int]:
    """Return which attempts of a task have something in a journal."""
    found: set[int] = set()
    for segment in segments(folder)[-MOST_LOOKED_THROUGH:]:
        with contextlib.suppress(OSError):
            text = segment.path.read_bytes()
            if task.encode() in text:
                found |= {frame.name[1] for frame in Frames(text) if frame.name[0] == task}
    return found
