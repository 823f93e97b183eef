"""What attempts printed and logged, over HTTP: read, followed as an event stream, and searched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Header, Route
from duetime.api.shared import Shared
from duetime.api.tasks import addressed
from duetime.client.output import LogHits, OutputEvent, read_position
from duetime.errors import DuetimeError, InvalidValue
from duetime.model.access import Scope
from duetime.wire.fields import given
from duetime.wire.logs import LogsQuery, LogsSearchQuery, OutputList, log_event
from duetime.wire.problem import INVALID, Fault

EVENTS = "text/event-stream"
STILL_HERE = 15.0  # seconds of silence after which a comment shows that the connection lives; proxies close idle ones
LOOK_EVERY = 0.25  # seconds between looks whether the server is about to end

_encode = msgspec.json.Encoder().encode
_LAST_EVENT = Header("Last-Event-ID", "With `follow`: go on behind this event, as browsers do by themselves after a lost connection.")
_STREAM = (
    "With `follow=true`: server-sent events. `output` has `attempt` and `text`, and its id is where to resume; `attempt` tells that one "
    "began, or with an `outcome` that it ended; `end` with the task's `state` is the last."
)


async def logs(call: Call) -> Response:
    query = call.query(LogsQuery)
    record = await addressed(call)
    attempt = given(query.attempt)
    if query.follow:
        after = call.header("last-event-id")
        if after is not None:
            read_position(after)  # checked now, while a status can still be sent
        return EventStream(call, call.app.output.follow(record.id, attempt, after=after))
    after_attempt = int(query.cursor) if isinstance(query.cursor, str) else 0
    page = await call.app.output.page(record.id, attempt=attempt, after=after_attempt, limit=query.limit)
    return answer(OutputList(page.items, None if page.next is None else str(page.next)))


async def search(call: Call) -> Response:
    query = call.query(LogsSearchQuery)
    call.allow_filter(given(query.handler))
    if query.q is UNSET:
        raise Refusal(INVALID, "the parameter q is missing: say what to search for", faults=[Fault("is missing", parameter="q")])
    try:
        found = await call.app.output.search(
            query.q,
            handler=given(query.handler),
            collection=given(query.collection),
            after=given(query.after),
            before=given(query.before),
            limit=query.limit,
            cursor=given(query.cursor),
        )
    except InvalidValue as error:
        name = "cursor" if "cursor" in str(error) else "q"
        raise Refusal(INVALID, str(error), faults=[Fault(str(error), parameter=name)]) from None
    return answer(found)


class EventStream(Response):
    """Sends what happens as server-sent events until it is over, the client has gone or the server stops.

    A client that has not received `end` requests the stream again with the id of its last event.
    """

    def __init__(self, call: Call, events: AsyncIterator[OutputEvent]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
        super().__init__(status_code=200, headers=headers, media_type=EVENTS)
        del self.headers["content-length"]
        self._shared: Shared = call.shared
        self._events = events
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
        coming: asyncio.Future[OutputEvent] = asyncio.ensure_future(anext(self._events))
        silent_since = loop.time()
        yield b": follows\n\n"  # so that the client knows that the connection is there
        try:
            while not self._shared.stopping:
                await asyncio.wait((coming, gone), timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if coming.done():
                    event = coming.result()
                    yield _written(event)
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


def _written(event: OutputEvent) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.position.encode(), event.kind.encode(), _encode(log_event(event)))


ROUTES = (
    Route(
        name="read_logs", method="GET", path="/v1/tasks/{id}/logs", endpoint=logs, scope=Scope.READ,
        summary="Return what a task's attempts printed and logged, or follow it as it comes.",
        query=LogsQuery, answer=OutputList, stream=_STREAM, problems=(404,), headers=(_LAST_EVENT,),
    ),
    Route(
        name="search_logs", method="GET", path="/v1/logs", endpoint=search, scope=Scope.READ,
        summary="Find attempts by words of what they printed and logged, the latest first.", query=LogsSearchQuery, answer=LogHits,
    ),
)  # fmt: skip
