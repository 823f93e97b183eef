"""^C in a command that waits for a store: it ends in order, once, wherever it is.

`asyncio.run` raises KeyboardInterrupt at the second ^C in whatever Python happens to run, also inside the event loop; `timeout -s INT`
sends two at once, and a command was seen to hang after that. Here a signal is a callback of the event loop like any other.
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

IMPATIENT_AFTER = 0.5  # seconds after which another ^C is meant, and ends the process at once


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command; KeyboardInterrupt after ^C, when it has ended in order."""
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

        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread: no signals come here
            loop.add_signal_handler(signal.SIGINT, interrupted)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if first_at is None:
            raise
        raise KeyboardInterrupt from None
