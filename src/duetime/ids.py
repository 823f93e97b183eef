"""Task ids: UUIDs of version 7 whose twelve bits after the version name the task's shard.

48 bits  milliseconds since the epoch (by the submitting process's clock, for order only; nothing is decided by it)
 4 bits  version, 7
12 bits  shard: of a keyed task from (handler, key), so that a sharded store can keep a key unique within one shard
 2 bits  variant
62 bits  a counter with a random start in each millisecond, so that the ids of one process keep the order of submitting
"""

from __future__ import annotations

import os
import random
import re
import secrets
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from duetime import clock

SHARDS = 4096
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_LEAST = "00000000-0000-0000-0000-000000000000"
_GREATEST = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class _Generator:
    """Makes ids. It has its own random source, because programs that seed `random` alike would make the same ids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reseed()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self.begin_with(random.Random(os.urandom(32)))

    def begin_with(self, source: random.Random) -> None:
        """Take random numbers from a source from now on."""
        self._lock = threading.Lock()
        self._random = source
        self._ends = 0  # nanoseconds since the epoch at which the present millisecond ends
        self._begin()

    def __call__(self, shard: int | None = None) -> str:
        if clock.wall() >= self._ends:
            self._begin()
        # read as one: another thread may begin the next millisecond meanwhile. `next` gives each number to one thread only.
        head, instant, top, numbers = self._parts
        if shard is None:
            return "%s%012x" % (head, next(numbers))  # noqa: UP031  a third faster than an f-string, and there are many ids
        return "%s%03x%s%012x" % (instant, shard, top, next(numbers))  # noqa: UP031  for the same reason

    def _begin(self) -> None:
        """Begin a millisecond: set the parts that its ids share and the start of their counter."""
        with self._lock:
            now = clock.wall() // 1_000_000
            if now * 1_000_000 < self._ends:  # another thread has done it
                return
            instant = f"{now >> 16:08x}-{now & 0xFFFF:04x}-7"
            top = f"-{0x8000 | self._random.getrandbits(14):04x}-"
            # the top bit of the counter starts as 0, so that it never overflows
            self._parts = f"{instant}{self._random.getrandbits(12):03x}{top}", instant, top, count(self._random.getrandbits(47))
            self._ends = (now + 1) * 1_000_000


new_id = _Generator()
_tokens: random.Random | None = None  # of a simulation; otherwise tokens are unpredictable


def token(size: int) -> str:
    """Return random bytes as text, two digits each: the name of something that nobody else may have."""
    return secrets.token_hex(size) if _tokens is None else _tokens.randbytes(size).hex()


@contextmanager
def predictable(seed: int) -> Iterator[None]:
    """Make ids and tokens follow from a seed within the block, for a simulation. Tokens that guard something are not made here."""
    global _tokens
    before, _tokens = _tokens, random.Random(seed)
    new_id.begin_with(random.Random(seed + 1))
    try:
        yield
    finally:
        _tokens = before
        new_id.begin_with(random.Random(os.urandom(32)))


def key_shard(handler: str, key: str) -> int:
    """Return the shard of a keyed task, the same in every process and version."""
    return zlib.crc32(f"{handler}\0{key}".encode()) % SHARDS


def shard_of(task_id: str) -> int:
    return int(task_id[15:18], 16)


def is_id(text: str) -> bool:
    return _ID.match(text) is not None


def id_bounds(prefix: str) -> tuple[str, str] | None:
    """Return the least and the greatest text in the form of an id that begin so, for a look-up by range; None if no id begins so."""
    least, greatest = prefix + _LEAST[len(prefix) :], prefix + _GREATEST[len(prefix) :]
    return (least, greatest) if _FORM.match(least) else None
