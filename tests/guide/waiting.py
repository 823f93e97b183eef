"""Wait for something that a worker will do, without guessing how long it takes."""

import asyncio
from collections.abc import Callable
from typing import Any

from duetime import App, Task


async def until(app: App, task: Task[Any], holds: Callable[[Task[Any]], bool], what: str) -> Task[Any]:
    """Look at a task until a condition holds; fail with a description after ten seconds."""
    for _ in range(500):
        info = await app.get(task)
        if holds(info):
            return info
        await asyncio.sleep(0.02)
    raise AssertionError(f"waited ten seconds for {what}, but the task is {info}")
