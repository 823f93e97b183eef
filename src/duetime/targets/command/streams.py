"""What a command prints and what it returns, read by the worker as it comes: nothing is gathered but the last of it and the result."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
from collections.abc import Callable

from duetime.model.task import MAX_PAYLOAD
from duetime.targets.output import Sink

MAX_TAIL = 8_192
_AT_ONCE = 65_536
_MOST_LEFT = 16  # reads: a pipe holds a mebibyte at most, unless root made it larger
_MARK = b"::progress "
_LONGEST_MARK = 1_024
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_PROGRESS = re.compile(rb"::progress +([01](?:\.\d*)?|\.\d+)(?: +([^\n]*))?\r?")


class Pipe:
    """A pipe of commands that are run one after the other: `writer` is theirs, and what comes out of it is passed to `take`."""

    def __init__(self) -> None:
        self.take: Callable[[bytes], None] = ignore
        self._loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._loop.add_reader(self._reader, self._read)

    def passed_on(self) -> None:
        """Close the end that others have now."""
        os.close(self.writer)
        self.writer = -1

    def _read(self) -> bool:
        try:
            data = os.read(self._reader, _AT_ONCE)
        except BlockingIOError:
            return False
        if data:
            self.take(data)
        else:  # nobody can write to it any more
            self._loop.remove_reader(self._reader)
        return bool(data)

    def drain(self) -> None:
        """Read what is in it now. A descriptor may have been passed to somebody who goes on writing, so not more than it can hold."""
        for _ in range(_MOST_LEFT):
            if self._reader < 0 or not self._read():
                break

    def close(self) -> None:
        self.drain()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        self._reader = -1
        if self.writer >= 0:
            self.passed_on()


def ignore(data: bytes) -> None:
    """Pass nothing on: nobody wants what a pipe holds between two commands."""


class Result:
    """The result of a command; what is longer than allowed is read and dropped."""

    def __init__(self) -> None:
        self.data = b""

    def take(self, data: bytes) -> None:
        self.data += data[: MAX_PAYLOAD + 1 - len(self.data)]


class Printed:
    """The output of a command: lines `::progress 0.5 text` report progress, everything else goes to the attempt's sink."""

    def __init__(self, sink: Sink | None, report: Callable[[float, str], None]) -> None:
        self._sink = sink
        self._report = report
        self._held = b""  # the beginning of a line that may become a mark
        self._fresh = True  # whether the next byte begins a line
        self._tail = b""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a character may come in two pieces

    @property
    def tail(self) -> str:
        """The last that was printed."""
        return self._tail.decode("utf-8", "replace")

    def take(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        start = data.rfind(b"\n") + 1
        last = data[start:]
        if (start or self._fresh) and last and _may_be_mark(last):
            data, self._held = data[:start], last
        if not data:
            return
        if _MARK in data:
            data = self._without_marks(data)
        self._fresh = not data or data.endswith(b"\n")
        self._write(data)

    def end(self) -> None:
        """Pass on what was held back."""
        last, self._held = self._held, b""
        if last and not self._is_mark(last):
            self._write(last)

    def _without_marks(self, data: bytes) -> bytes:
        lines = _LINES.findall(data)
        first = 0 if self._fresh else 1
        kept = [line for at, line in enumerate(lines) if at < first or not line.endswith(b"\n") or not self._is_mark(line)]
        return b"".join(kept)

    def _is_mark(self, line: bytes) -> bool:
        found = _PROGRESS.fullmatch(line.rstrip(b"\n")) if line.startswith(_MARK) else None
        if found is None or float(found[1]) > 1:
            return False
        self._report(float(found[1]), (found[2] or b"").decode("utf-8", "replace").strip())
        return True

    def _write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-MAX_TAIL:]
        if self._sink is not None and self._sink.write(data):
            self._sink.echo(self._decode(data))


def _may_be_mark(line: bytes) -> bool:
    return len(line) <= _LONGEST_MARK and (line.startswith(_MARK) or _MARK.startswith(line))
