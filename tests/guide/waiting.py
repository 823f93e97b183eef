"""Wait for something that a worker will do, without guessing how long it takes."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from duetime import App, Task
from tests.servers.waiting import PATIENCE


async def until(app: App, task: Task[Any], holds: Callable[[Task[Any]], bool], what: str) -> Task[Any]:
    """Look at a task until a condition holds; fail with a description after a long time."""
    deadline = time.monotonic() + PATIENCE
    while not holds(info := await app.get(task)):
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain for {what}, but the task is {info}"
        await asyncio.sleep(0.02)
    return info
