"""A kit for testing programs without waiting: the real store and the real executor, on a clock that only the test moves.

    async with duetime.testing.using(app) as t:
        await place_order(7)                       # your code, which submits expire_order for 30 minutes later
        t.assert_submitted(expire_order, order_id=7)
        await t.advance(minutes=30)                # runs it, at its due instant

Nothing runs in the background. Attempts run one at a time, in the order in which they come due, so every run of a test is the same.
What a worker does in the background (apply gates and cancels, sweep, settle) happens here between two attempts.

`simulate` is for what such tests cannot show: it runs whole workers in virtual time, lets them crash, and finds what handlers do twice.
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
from duetime.targets.notices.notice import Notice, ToldChange
from duetime.testing.kit import Kit, Ran
from duetime.testing.requests import SentRequest, UnansweredRequest
from duetime.testing.simulation.simulate import NeverEnded, NotIdempotent, Simulation, simulate
from duetime.testing.stores import SteppedSqlite, closing, stepped_store

__all__ = [
    "Kit",
    "NeverEnded",
    "NotIdempotent",
    "Notice",
    "Ran",
    "SentRequest",
    "Simulation",
    "ToldChange",
    "UnansweredRequest",
    "simulate",
    "using",
]

DEFAULT_LIMIT = 1_000


class using:  # noqa: N801  # lower case, like contextlib.suppress
    """Run an app on an empty store, on a clock that the test moves, for the length of a block: `async with using(app) as t`.

    In synchronous code: `with using(app) as t`, then `app.sync(t.advance(minutes=30))`.

    The clock starts at `now`, by default the next full second. `resources` are what `ctx.get` finds; without them the app's own
    lifespan runs. `url` names a database to use instead of memory, for code that submits on a `connection=` to it: on PostgreSQL
    the kit makes a schema of its own there and drops it at the end. `file` is short for the URL of a SQLite file. With
    `raise_errors`, `advance` and `drain` raise the first failure of a handler. `limit` is how many attempts may run at one instant
    beyond those that were already due; more count as an endless loop.
    """

    def __init__(
        self,
        app: App,
        *,
        now: datetime | None = None,
        resources: Sequence[object] | None = None,
        url: str | None = None,
        file: str | os.PathLike[str] | None = None,
        raise_errors: bool = False,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if not isinstance(app, App):
            raise InvalidValue(f"using takes an App, got {type(app).__name__}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue(f"limit must be a whole number of at least 1, got {limit!r}")
        if url is not None and file is not None:
            raise InvalidValue("using takes either url or file; file is short for the URL of a SQLite file")
        self._app = app
        self._start_at = -(-SystemClock().now() // SECOND) * SECOND if now is None else to_instant(now, "now")
        self._resources = resources
        self._url = url
        self._path = ":memory:" if file is None else os.fspath(file)
        self._raise_errors = raise_errors
        self._limit = limit
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Kit:
        if self._stack is not None:
            raise RuntimeError("this block has been entered already; call using(app) again for another one")
        app, clock = self._app, ManualClock(self._start_at)
        self._stack = AsyncExitStack()
        async with AsyncExitStack() as stack:
            opening = closing(SteppedSqlite(self._path, clock=clock)) if self._url is None else stepped_store(self._url, clock)
            store = await stack.enter_async_context(opening)
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
