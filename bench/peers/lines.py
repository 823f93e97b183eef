"""What a program written in Python reads and writes on its standard streams; `bench.peers` has the words."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable

BATCH = 1_000
SAY_EVERY = 0.01


def say(value: object) -> None:
    # not `print`: a worker may capture what handlers print
    os.write(1, json.dumps(value).encode() + b"\n")


def read_line() -> str:
    return sys.stdin.readline()


async def lines() -> AsyncIterator[str]:
    """Yield the lines of standard input until it ends."""
    while line := await asyncio.to_thread(read_line):
        yield line


class Starts:
    """Reports the starts of tasks: every one, or only how many there were."""

    def __init__(self, mode: str) -> None:
        self._count = 0
        self._first = 0.0
        self._said = 0
        self.note: Callable[[float], None] = self._each if mode == "each" else self._counted

    def _each(self, reference: float) -> None:
        say([reference, time.time()])

    def _counted(self, reference: float) -> None:
        if self._count == 0:
            self._first = time.time()
        self._count += 1

    async def report(self) -> None:
        """Say how many starts there were, as long as this process runs. In the mode `each` there is nothing left to say."""
        while True:
            await asyncio.sleep(SAY_EVERY)
            if self._count != self._said:
                self._said = self._count
                say([self._said, self._first])
