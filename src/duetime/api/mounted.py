"""The API inside of another ASGI application, below a prefix.

A framework tells what is mounted in it nothing of its own start and end. So the API starts with its first request, or with
`async with`, and stops when the App is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from starlette.requests import Request

from duetime.api.access import TokenAccess
from duetime.api.app import Api, Extension
from duetime.api.background import beside
from duetime.api.shared import Limits
from duetime.app.app import App
from duetime.client.access.sessions import Sessions
from duetime.model.access import Caller

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Mounted:
    """An ASGI application that answers as `duetime server` does; every request needs a token.

    As a context manager it opens the App, and starts at once instead of with the first request.
    """

    def __init__(self, app: App, *, limits: Limits, extension: Callable[[], Extension] | None = None) -> None:
        app.store_for("the API")
        self._app = app
        self._limits = limits
        self._extension = extension
        self._serving: _Serving | None = None
        app.before_close(self._stop)

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        try:
            await self._current().start()
        except BaseException as error:
            await self._app.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self._stop()
        await self._app.__aexit__(kind, error, traceback)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._current().api(scope, receive, send)
            case "lifespan":  # not mounted, but served alone
                await self._live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.__aenter__()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    def _current(self) -> _Serving:
        loop, serving = asyncio.get_running_loop(), self._serving
        if serving is None or serving.loop is not loop:
            if serving is not None and serving.loop.is_running():
                raise RuntimeError("this API is served by another event loop already; make one App, and one API, for each")
            self._serving = serving = _Serving(self._app, self._limits, None if self._extension is None else self._extension())
        return serving

    async def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        if serving.loop is asyncio.get_running_loop():
            await serving.stop()
        elif serving.loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(serving.stop(), serving.loop))
        # otherwise its event loop has ended, and with it all that ran


class _Serving:
    """The API in one event loop, from its first request until the App is closed."""

    def __init__(self, app: App, limits: Limits, extension: Extension | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.api = Api(app, limits=limits, extension=extension)
        self.api.access = _StartingAccess(app, self.start)
        self._app = app
        self._beside = contextlib.AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._started = False

    async def start(self) -> None:
        """Start once; after a failure, such as a store that does not answer, the next request tries again."""
        if self._started:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)  # a request that is given up does not give up for the others

    async def _start(self) -> None:
        try:
            self._app.specs  # noqa: B018  imports the modules of `imports=`: their handlers' payloads are checked here
            await self._app.open()
            await self._beside.enter_async_context(beside(self.api, tokens=True))
            self._started = True
        finally:
            self._starting = None

    async def stop(self) -> None:
        self.api.stop()
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._beside.aclose()


class _StartingAccess(TokenAccess):
    """Identifies callers by their tokens, after the start: requests that need no token need nothing that is started."""

    def __init__(self, app: App, start: Callable[[], Awaitable[None]]) -> None:
        super().__init__(app)
        self._start = start

    async def identify(self, request: Request) -> Caller:
        await self._start()
        return await super().identify(request)

    async def signed_in(self, request: Request, sessions: Sessions, secret: str | None) -> Caller:
        await self._start()
        return await super().signed_in(request, sessions, secret)
