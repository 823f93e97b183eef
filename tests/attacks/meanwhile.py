"""How much of the work of a request is done in one piece, for which the event loop serves nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

# Of all CPU time that a request took, with the client's part of it. A request that holds the loop uses nearly all of it in one piece.
SMALL = 1 / 3


async def largest_share(request: Awaitable[T]) -> tuple[T, float]:
    """Await a request to a server on this loop; return its answer, and the share of all work that the loop did without a break.

    CPU time is compared with CPU time, so it does not matter how busy the machine is. What other tests have left in memory is kept from
    the garbage collector, which would walk through it in one piece.
    """
    gc.freeze()
    before, largest = time.process_time(), 0.0

    async def look() -> None:
        nonlocal largest
        used = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            used, last = time.thread_time(), used
            largest = max(largest, used - last)

    looking = asyncio.create_task(look())
    try:
        answer = await request
        await asyncio.sleep(0.005)  # for a look after the last piece
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        gc.unfreeze()
    return answer, largest / (time.process_time() - before)
