"""^C in a command that waits for a store: the command is cancelled once and cleans up.

`asyncio.run` raises KeyboardInterrupt at the second ^C, in whatever Python code runs then, also inside the event loop. `timeout -s INT`
sends two at once, and a command was seen to hang after that. Here the signal is an ordinary callback of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from duetime.cli.failures import INTERRUPTED

T = TypeVar("T")

IMPATIENT_AFTER = 0.5  # seconds after the first ^C; a later one ends the process at once


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. After ^C it is cancelled, and when it has ended KeyboardInterrupt is raised."""
    first_at: float | None = None

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupted() -> None:
            nonlocal first_at
            if first_at is None:
                first_at = loop.time()
                task.cancel()
            elif loop.time() - first_at > IMPATIENT_AFTER:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(INTERRUPTED)

        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: it receives no signals
            loop.add_signal_handler(signal.SIGINT, interrupted)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if first_at is None:
            raise
        raise KeyboardInterrupt from None
