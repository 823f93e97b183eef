"""Task ids: UUIDs of version 7 whose twelve bits after the version name the task's shard.

48 bits  milliseconds since the epoch (the submitting process's clock: for order only, nothing is decided by it)
 4 bits  version, 7
12 bits  shard: of a keyed task from (handler, key), so that a store of many shards can hold a key's uniqueness in one
 2 bits  variant
62 bits  random start, counting up within a millisecond, so that the ids of one process keep the order of submitting
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import zlib

SHARDS = 4096
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


class _Generator:
    """Makes ids; own random source, because a program that seeds `random` would otherwise repeat another's ids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reseed()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(os.urandom(32))
        self._milliseconds = 0
        self._counter = 0
        self._head = self._time = self._top = ""  # the parts of an id that the ids of one millisecond share

    def __call__(self, shard: int | None = None) -> str:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._milliseconds:
                self._begin(now)
            self._counter = count = self._counter + 1
            if shard is None:
                return f"{self._head}{count:012x}"
            return f"{self._time}{shard:03x}{self._top}{count:012x}"

    def _begin(self, now: int) -> None:
        self._milliseconds = now
        # the top bit of the counter is left free so that counting up never runs over
        self._counter = self._random.getrandbits(47)
        self._time = f"{now >> 16:08x}-{now & 0xFFFF:04x}-7"
        self._top = f"-{0x8000 | self._random.getrandbits(14):04x}-"
        self._head = f"{self._time}{self._random.getrandbits(12):03x}{self._top}"


new_id = _Generator()


def key_shard(handler: str, key: str) -> int:
    """Name the shard of a keyed task: the same for every process and version."""
    return zlib.crc32(f"{handler}\0{key}".encode()) % SHARDS


def shard_of(task_id: str) -> int:
    return int(task_id[15:18], 16)


def is_id(text: str) -> bool:
    return _ID.match(text) is not None
