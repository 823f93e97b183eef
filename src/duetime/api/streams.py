"""Server-sent events: an answer that goes on as long as something comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from duetime.api.call import Call
from duetime.api.shared import Shared
from duetime.errors import DuetimeError

E = TypeVar("E")

EVENTS = "text/event-stream"
STILL_HERE = 15.0  # seconds of silence after which a comment shows that the connection lives; proxies close idle ones
LOOK_EVERY = 0.25  # seconds between looks whether the server is about to end


class EventStream(Response, Generic[E]):
    """Sends what happens as server-sent events until it is over, the client has gone or the server stops.

    A client that has not received `end` requests the stream again with the id of its last event.
    """

    def __init__(self, call: Call, events: AsyncIterator[E], written: Callable[[E], bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
        super().__init__(status_code=200, headers=headers, media_type=EVENTS)
        del self.headers["content-length"]
        self._shared: Shared = call.shared
        self._events = events
        self._written = written
        self._only_head = call.request.method == "HEAD"

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            if not self._only_head:
                async for data in self._sent(gone):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _sent(self, gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """Yield what to send, until the client has gone or nothing more will come."""
        loop = asyncio.get_running_loop()
        coming: asyncio.Future[E] = asyncio.ensure_future(anext(self._events))
        silent_since = loop.time()
        yield b": follows\n\n"  # so that the client knows that the connection is there
        try:
            while not self._shared.stopping:
                await asyncio.wait((coming, gone), timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if coming.done():
                    event = coming.result()
                    yield self._written(event)
                    silent_since = loop.time()
                    coming = asyncio.ensure_future(anext(self._events))
                elif loop.time() - silent_since >= STILL_HERE:
                    yield b": still here\n\n"
                    silent_since = loop.time()
        # the end; or the store is down or has pruned the task: the client requests the stream again
        except (StopAsyncIteration, DuetimeError):
            return
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
