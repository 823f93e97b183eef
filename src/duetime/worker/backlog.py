"""What a journal has that the store may not have yet: read segment by segment, and forgotten when the store has it.

What was read stays in memory until the store has taken it, a write's worth at a time; only then is a segment removed. So a store that is
away delays everything and loses nothing, and a worker that is killed leaves the segments to the next one, which reads them again: the
store says for each attempt how much it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from duetime.runtime.permissions import mode_of
from duetime.store.output import OutputChunk
from duetime.targets.output.files import OutputFiles
from duetime.targets.output.journal import Frame, Frames, Name, Segment, segments
from duetime.targets.output.spool import pieces, text_of, whole_characters

logger = logging.getLogger("duetime.output")


class Snapshot(NamedTuple):
    """How long each segment was, and which attempts ran, at one instant: an attempt that has a frame and did not run writes no more."""

    ends: Sequence[tuple[Segment, int]]
    running: Mapping[str, int]


class Unshipped(msgspec.Struct):
    """What was read of an attempt's output and is not known to be in the store. `start`: so many bytes lie before it."""

    name: Name
    start: int
    data: bytearray
    over: bool = False
    tried: bool = False  # it was sent before, and the store may have kept it


class Backlog:
    """The journal in one worker's folder, as its shipper reads it. `files` are those of the worker that lives, None of one that is dead."""

    def __init__(self, folder: Path, files: OutputFiles | None = None) -> None:
        self._folder = folder
        self._files = files or OutputFiles(folder)
        self._alive = files is not None
        self._read: dict[Path, int] = {}
        self._snapshot: Snapshot | None = None
        self._unshipped: dict[Name, Unshipped] = {}  # also of attempts that run and of which everything is shipped
        self._closed: set[Name] = set()  # what the store wants no more of
        self._refused: dict[Name, int] = {}  # what it cannot keep, and how far that is in a file of its own

    def look(self, running: Mapping[str, int]) -> None:
        """Take a snapshot, unless the last one is not read to its end. Call it in the event loop, where attempts begin and end."""
        if self._snapshot is None:
            ends = [(segment, size) for segment in segments(self._folder) if (size := _size(segment.path)) is not None]
            self._snapshot = Snapshot(ends, dict(running))

    @property
    def empty(self) -> bool:
        """Whether the journal is gone, and all of it in the store."""
        return self._snapshot is None and not self._unshipped and not segments(self._folder)

    @property
    def behind(self) -> bool:
        """Whether the last snapshot is not read to its end."""
        return self._snapshot is not None

    def pack(self, space: int) -> tuple[list[JournalParcel], int]:
        """Read the next part of the snapshot, of about so many bytes; return what is to be shipped, and how many bytes are left."""
        if self._snapshot is None:
            return [], space
        if not self._waiting():
            space = self._read_on(self._snapshot, space)
        parcels = [parcel for each in self._unshipped.values() if (parcel := self._parcel(each)) is not None]
        return parcels, space

    def _waiting(self) -> bool:
        """Return whether the store has not taken everything yet that was read before."""
        return any(each.over or whole_characters(each.data) for each in self._unshipped.values())

    def _read_on(self, snapshot: Snapshot, space: int) -> int:
        for segment, end in snapshot.ends:
            begin = self._read.get(segment.path, 0)
            while begin < end:
                if space <= 0:
                    return space
                data = _read(segment.path, begin, min(space, end - begin))
                frames = Frames(data, torn=not self._alive and begin + len(data) == end)
                self._take(frames)
                if frames.end:
                    begin += frames.end
                    space -= frames.end
                    self._read[segment.path] = begin
                elif frames.broken:
                    self._give_up(segment, begin)
                    break
                elif 0 < len(data) < end - begin:
                    space = end - begin  # a frame that is larger than a write
                else:
                    if not self._alive:
                        self._read[segment.path] = end  # a head that was never finished
                    break
        for each in self._unshipped.values():
            task, attempt = each.name
            each.over = snapshot.running.get(task) != attempt
        self._closed = {(task, attempt) for task, attempt in self._closed if snapshot.running.get(task) == attempt}
        self._snapshot = None
        return space

    def _take(self, frames: Iterable[Frame]) -> None:
        unshipped = self._unshipped
        for frame in frames:
            found = unshipped.get(frame.name)
            if found is not None:
                found.data += frame.data
            elif frame.name in self._refused:
                self._put_aside(frame.name, frame.data)
            elif frame.name not in self._closed:
                unshipped[frame.name] = Unshipped(frame.name, frame.offset, bytearray(frame.data))

    def _give_up(self, segment: Segment, begin: int) -> None:
        """Put a segment aside that cannot be read: it would hold up all others."""
        aside = segment.path.with_suffix(".unreadable")
        logger.warning("the output in %s cannot be read from byte %d on; it stays in %s", segment.path, begin, aside)
        segment.path.rename(aside)
        self._read.pop(segment.path, None)

    def _parcel(self, each: Unshipped) -> JournalParcel | None:
        size = len(each.data) if each.over else whole_characters(each.data)
        if not size and not each.over:
            return None
        chunks, start = [], each.start
        for piece in pieces(bytes(each.data[:size])):
            chunks.append(OutputChunk(*each.name, start, text_of(piece)))
            start += len(piece)
        if each.over:
            if chunks and self._alive and not each.tried:
                chunks[-1] = msgspec.structs.replace(chunks[-1], last=True)
            else:  # in a chunk of its own: it is accepted even if the text came before, in a write whose answer was lost
                chunks.append(OutputChunk(*each.name, start, "", last=True))
        return JournalParcel(self, each, chunks)

    def note(self, each: Unshipped, chunks: Sequence[OutputChunk], stored: int | None) -> None:
        """Go on from where the store is; forget an attempt of which it has everything, or wants no more."""
        each.tried = True
        complete = stored == chunks[-1].end
        if stored is None or (stored <= chunks[0].start and not complete):
            if not each.over:
                self._closed.add(each.name)
            del self._unshipped[each.name]
        elif complete and each.over:
            del self._unshipped[each.name]
        else:
            del each.data[: stored - each.start]
            each.start = stored
            each.tried = not complete

    def refuse(self, each: Unshipped) -> Path:
        """Put what the store cannot keep into a file of its own, for another worker to try; return its path."""
        del self._unshipped[each.name]
        self._refused[each.name] = each.start
        return self._put_aside(each.name, bytes(each.data))

    def _put_aside(self, name: Name, data: bytes) -> Path:
        """Write at the attempt's offset. What the store has before that is a hole in the file, and never read."""
        path = self._files.path(*name)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode_of(self._folder))
        try:
            self._refused[name] += os.pwrite(file, data, self._refused[name])
        finally:
            os.close(file)
        return path

    def retire(self) -> None:
        """Remove the segments of which the store has everything."""
        if self._waiting():
            return
        for segment in segments(self._folder):
            read = self._read.get(segment.path)
            if read is None or (segment.fork and self._unshipped):  # a fork that lives goes on writing
                continue
            if self._alive and not segment.fork and self._files.journal is not None:
                gone = self._files.journal.retire(segment.path, read)
            else:
                gone = _size(segment.path) == read
                if gone:
                    segment.path.unlink(missing_ok=True)
            if gone:
                del self._read[segment.path]


class JournalParcel(NamedTuple):
    """What is new of one attempt in a journal."""

    backlog: Backlog
    unshipped: Unshipped
    chunks: list[OutputChunk]

    @property
    def name(self) -> Name:
        return self.unshipped.name

    def note(self, stored: int | None) -> None:
        self.backlog.note(self.unshipped, self.chunks, stored)

    def refuse(self) -> Path:
        return self.backlog.refuse(self.unshipped)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:  # somebody tidied up
        return b""
