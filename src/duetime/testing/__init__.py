"""A kit for testing programs without waiting: the real store and the real executor, on a clock that only the test moves.

    async with duetime.testing.using(app) as t:
        await place_order(7)                       # your code, which submits expire_order for 30 minutes later
        t.assert_submitted(expire_order, order_id=7)
        await t.advance(minutes=30)                # runs it, at its due instant

Nothing runs in the background. Attempts run one at a time, in the order in which they come due, so every run of a test is the same.
What a worker does in the background (apply gates and cancels, sweep, settle) happens here between two attempts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType

from duetime.app.app import App
from duetime.clock import SECOND, ManualClock, SystemClock, to_instant
from duetime.errors import InvalidValue
from duetime.runtime.portal import running_loop
from duetime.testing.kit import Kit, Ran
from duetime.testing.parts import SteppedStore

__all__ = ["Kit", "Ran", "using"]

DEFAULT_LIMIT = 1_000


class using:  # noqa: N801  # lower case, like contextlib.suppress
    """Run an app in memory, on a clock that the test moves, for the length of a block: `async with using(app) as t`.

    In synchronous code: `with using(app) as t`, then `app.sync(t.advance(minutes=30))`.

    The clock starts at `now`, by default the next full second. `resources` are what `ctx.get` finds; without them the app's own
    lifespan runs. `file` is a SQLite file to use instead of memory, for code that submits on a `connection=` to it. With
    `raise_errors`, `advance` and `drain` raise the first failure of a handler. `limit` is how many attempts may run at one instant
    beyond those that were already due; more count as an endless loop.
    """

    def __init__(
        self,
        app: App,
        *,
        now: datetime | None = None,
        resources: Sequence[object] | None = None,
        file: str | os.PathLike[str] | None = None,
        raise_errors: bool = False,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if not isinstance(app, App):
            raise InvalidValue(f"using takes an App, got {type(app).__name__}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue(f"limit must be a whole number of at least 1, got {limit!r}")
        self._app = app
        self._start_at = -(-SystemClock().now() // SECOND) * SECOND if now is None else to_instant(now, "now")
        self._resources = resources
        self._path = ":memory:" if file is None else os.fspath(file)
        self._raise_errors = raise_errors
        self._limit = limit
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Kit:
        if self._stack is not None:
            raise RuntimeError("this block has been entered already; call using(app) again for another one")
        app, clock = self._app, ManualClock(self._start_at)
        store = SteppedStore(self._path, clock)
        self._stack = AsyncExitStack()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            stack.callback(_restoring(app))
            await stack.enter_async_context(app.using_store(store))
            kit = Kit(app, store, clock, raise_errors=self._raise_errors, limit=self._limit)
            await stack.enter_async_context(kit._running(self._resources))
            self._stack = stack.pop_all()
        return kit

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._stack is not None:
            await self._stack.aclose()

    def __enter__(self) -> Kit:
        if running_loop() is not None:
            raise RuntimeError("an event loop runs here: write `async with using(app)`")
        return self._app.sync(self._hold())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._app.sync(self._release())

    async def _hold(self) -> Kit:
        """Enter and leave the block in one asyncio task, as some resources require, in the loop of `app.sync`."""
        self._leave = asyncio.Event()
        entered: asyncio.Future[Kit] = asyncio.get_running_loop().create_future()

        async def block() -> None:
            async with self as kit:
                entered.set_result(kit)
                await self._leave.wait()

        self._holder = asyncio.create_task(block(), name="duetime testing")
        await asyncio.wait((self._holder, entered), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await self._holder
        return entered.result()

    async def _release(self) -> None:
        self._leave.set()
        await self._holder


def _restoring(app: App) -> Callable[[], None]:
    """Return a function that restores the app's present services, for the end of a block; blocks may be nested."""
    client, gates, insight = app.client, app.gates, app.insight

    def restore() -> None:
        app.client, app.gates, app.insight = client, gates, insight

    return restore
