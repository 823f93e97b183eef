"""Memory over minutes of load: `make memory`, or `python -m bench.soak --minutes 60`.

One worker with 1,000 handlers, on a store with 10,000 collections and 100,000 schedules, runs tasks of every usual sort without a pause:
coroutines, plain functions, what prints, what fails, what runs in sub-processes. It is flat if the last third of the time needs at most a
twentieth more than the second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time

from bench.everyday import COLLECTIONS, HANDLERS, SCHEDULES, noop_like
from bench.rounds import console, in_process, median
from duetime.runtime.processes import children, resident

AT_ONCE = 500  # tasks of each sort that are submitted together
SORTS = ("noop", "plain", "prints", "plain_prints", "rich", "isolated")
EVERY = 5.0  # seconds between looks
FLAT = 1.05


async def soak(minutes: float) -> list[tuple[int, int]]:
    """Run tasks for so long; return the bytes of the worker, and of its sub-processes, at every look."""
    from bench.shop import app, new

    for number in range(HANDLERS):
        app.task(noop_like(), name=f"handler-{number:04}")
    looks: list[tuple[int, int]] = []
    began, submitted = time.monotonic(), 0
    async with app.worker() as worker:
        while (elapsed := time.monotonic() - began) < minutes * 60:
            await app.submit_many([new(sort, submitted + number) for sort in SORTS for number in range(AT_ONCE)])
            submitted += len(SORTS) * AT_ONCE
            while worker.executor.finished < submitted or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.01)
            if elapsed >= len(looks) * EVERY:
                looks.append((resident(os.getpid()), sum(resident(child) for child in children(os.getpid()))))
                console.print(f"{elapsed:5.0f} s, {submitted:,} tasks: {shown(looks[-1][0])}, sub-processes {shown(looks[-1][1])}")
    return looks


def shown(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def is_flat(name: str, looks: list[int]) -> bool:
    """Compare the last third of the looks with the second; the first is for caches to fill."""
    third = len(looks) // 3
    before, after = median(looks[third : 2 * third]), median(looks[2 * third :])
    flat = after <= FLAT * before
    console.print(f"{name}: {shown(before)}, then {shown(after)}, {after / before:.3f} ×, {'flat' if flat else 'NOT FLAT'}")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DUETIME_URL": f"sqlite:///{folder}/soak.db", "DUETIME_OUTPUT": f"{folder}/output"}
        console.print(f"storing {COLLECTIONS:,} collections and {SCHEDULES:,} schedules …")
        in_process("bench.everyday", "fill")
        looks = asyncio.run(soak(minutes))
    if len(looks) < 6:
        console.print("too short to say whether it is flat")
        return 0
    own, others = zip(*looks, strict=True)
    return 0 if all([is_flat("worker", list(own)), is_flat("sub-processes", list(others))]) else 1


if __name__ == "__main__":
    sys.exit(main())
