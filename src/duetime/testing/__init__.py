"""Test programs that use Duetime without waiting: the real store and the real executor, on a clock that only the test moves.

    async with duetime.testing.using(app) as t:
        await place_order(7)                       # your code, which submits expire_order for 30 minutes later
        t.assert_submitted(expire_order, order_id=7)
        await t.advance(minutes=30)                # runs it, at its due instant

Nothing runs by itself. Attempts run one at a time, in the order in which they come due, so a test gives the same result every
time. What a worker does in the background (listen for gates and cancels, sweep, settle) is done here between two attempts.
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


class using:  # noqa: N801  # reads as what it is, like contextlib.suppress
    """Let an app work in memory, on a clock that the test moves, as long as a block lasts: `async with using(app) as t`.

    From synchronous code it is `with using(app) as t`, and then `app.sync(t.advance(minutes=30))`.

    `now` is the time at which the clock starts, otherwise the next full second. `resources` are what `ctx.get` finds; without
    them the app's own lifespan runs. `file` keeps the tasks in a SQLite file instead of memory, for code that submits on a
    `connection=` to it. With `raise_errors` the first failure of a handler is raised by `advance` and `drain`. `limit` is how many
    attempts may run at one instant beyond those that were already due, before the kit takes them for an endless loop.
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
            stack.callback(_put_back(app))
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
        self._app.sync(self._let_go())

    async def _hold(self) -> Kit:
        """Enter and leave in one task, as some resources demand; it lives in the loop that serves `app.sync`."""
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

    async def _let_go(self) -> None:
        self._leave.set()
        await self._holder


def _put_back(app: App) -> Callable[[], None]:
    """Remember the services of an app, so that it has the very same ones when a block ends, also inside another block."""
    client, gates, insight = app.client, app.gates, app.insight

    def put_back() -> None:
        app.client, app.gates, app.insight = client, gates, insight

    return put_back
