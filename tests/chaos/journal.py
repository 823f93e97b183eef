"""The journal: what handlers and tests write down, one JSON line per event, into one file that all processes share.

An attempt also holds a lock of the kernel's as long as its code runs, on a byte that stands for its task and one that stands for its
key. If another attempt finds such a lock taken, two ran at once, whatever the clocks say.
"""

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from duetime import Context
from duetime.model.fences import ATTEMPTS

Kind = Literal[
    "submitted",  # acknowledged to a client
    "perhaps",  # a client got no answer and asked no more
    "start",
    "end",
    "overlap",
    "killed",  # by the test; it lived until then
    "died",  # by itself, noticed now
    "frozen",
    "gate",
    "opened",
    "cancelled",
    "stepped",  # the store's clock is off by `offset` from now on
    "down",  # the server is killed
    "severed",  # from now on what the store acknowledges may be gone after the fail-over
    "promoted",
]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line. `at` is CLOCK_MONOTONIC, which all processes of a machine share; `wall` the machine's time of day.

    `pid` is the process that ran it, `worker` the worker's, which differs for a handler in a sub-process.
    """

    kind: Kind
    at: float
    wall: float = 0.0
    pid: int = 0
    worker: int = 0
    task: str = ""
    fence: int = 0
    due: float = 0.0
    handler: str = ""
    collection: str | None = None
    key: str | None = None
    how: str = ""
    offset: float = 0.0

    @property
    def number(self) -> int:
        """The attempt's number."""
        return self.fence % ATTEMPTS


_decode = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode

HOLDING = "hold"  # a file beside the journal: as long as it exists, attempts of handlers with `held` go on
SCANS = 3
WORKER = "CHAOS_WORKER"  # a worker's process id, which it puts into its own environment so that its sub-processes know it


class Journal:
    """Appends events: one write per line, so that lines never mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._locks = path.with_name(f"{path.name}.locks")

    def close(self) -> None:
        os.close(self._file)

    def write(self, kind: Kind, **fields: object) -> None:
        # the machine's own clock, also in a process whose time.time() lies on purpose
        wall = time.clock_gettime(time.CLOCK_REALTIME)
        event = Event(kind=kind, at=time.monotonic(), wall=wall, **{"pid": os.getpid(), **fields})  # type: ignore[arg-type]
        os.write(self._file, _encode(event) + b"\n")

    @contextlib.contextmanager
    def attempt(self, ctx: Context) -> Iterator[None]:
        """Record one attempt from its first to its last instruction."""
        task = ctx.task
        facts = {"task": task.id, "fence": ctx.fence, "worker": int(os.environ.get(WORKER) or os.getpid())}
        more = {"handler": task.handler, "collection": task.collection, "key": task.key, "due": task.due_at.timestamp()}
        # a file description of its own, because locks of one description do not exclude each other
        file = os.open(self._locks, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            names = [task.id] if task.key is None else [task.id, f"{task.handler} {task.key}"]
            free = [locked(file, name) for name in names]
            if not all(free):
                self.write("overlap", **facts)
            self.write("start", **facts, **more)
            try:
                yield
            except BaseException as error:
                self.write("end", how=type(error).__name__, **facts)
                raise
            self.write("end", how="returned", **facts)
        finally:
            os.close(file)

    @contextlib.contextmanager
    def within(self, ctx: Context, limit: str, running: int) -> Iterator[None]:
        """Hold one of so many locks of a limit as long as an attempt runs. If none is free, more run at once than may.

        The kernel frees the lock of a process that dies, so nobody has to guess until when its attempts ran.
        """
        file = os.open(self._locks, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # again if none is free: others may have moved on while this one looked
            if not any(locked(file, f"limit {limit} {number}") for _ in range(SCANS) for number in range(running)):
                self.write(
                    "overlap",
                    task=ctx.task.id,
                    fence=ctx.fence,
                    handler=f"limit {limit}",
                    worker=int(os.environ.get(WORKER) or os.getpid()),
                )
            yield
        finally:
            os.close(file)


def locked(file: int, name: str) -> bool:
    """Lock the byte that stands for a name; tell whether it was free. A million files, one for each, would be slow to remove."""
    byte = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 2
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def read(path: Path, *, start: int = 0) -> tuple[list[Event], int]:
    """Read events from an offset in the file; return them in the order of the clock, and the next offset. A cut line is left out."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    events = []
    for line in data.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            events.append(_decode(line))
    events.sort(key=lambda event: event.at)
    return events, start + len(data)
