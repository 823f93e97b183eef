"""What the targets of one worker share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from duetime.targets.python.children import ChildPool
from duetime.targets.python.middleware import Middleware
from duetime.targets.python.threads import Threads

MOST_SUSPECTS = 4  # sub-processes for tasks whose process died; one poisonous task may have made hundreds of suspects


class TargetHost:
    """Middleware, threads and sub-processes. `children` is None where the app cannot be imported by another process."""

    def __init__(self, middleware: Iterable[Middleware] = ()) -> None:
        self.middleware = list(middleware)
        self.threads = Threads()
        self.children: ChildPool | None = None
        self.suspects = asyncio.Semaphore(MOST_SUSPECTS)

    def kill(self) -> None:
        """Kill all sub-processes now; from any thread, because the event loop may be blocked."""
        if self.children is not None:
            self.children.kill()

    async def close(self) -> None:
        self.threads.close()
        if self.children is not None:
            await self.children.close()
