"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on what a client without a token can make the server keep or wait for.

What is refused here is refused before there is a request, so it is counted in the metrics and not logged: anybody can send it.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from functools import partial

import httptools
import msgspec
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from duetime.api.call import TAKE_TIME
from duetime.api.problems import Refusal, headers_of, problem_of
from duetime.wire.problem import BAD_REQUEST, BUSY, HEADERS_TOO_LARGE, MEDIA_TYPE, TARGET_TOO_LONG, TOO_SLOW

ARRIVE_WITHIN = 30.0  # seconds for the whole of a request, from its first byte to its last
READ_WITHIN = 30.0  # seconds in which a client must read a part of the answer that waits for it
IDLE_FOR = 75.0  # seconds for which an idle connection is kept open
MOST_HEAD = 65_536  # bytes of the target and all headers together, and of trailers
MOST_TARGET = 16_384
MOST_HEADERS = 100
LAST_CALL = 0.2  # seconds for which a stopping server waits for the first request of a new connection
LINGER = 1.0  # seconds in which a client can read why it was refused, while the rest of what it sends is thrown away
RESERVED_FILES = 64  # at least so many are left to the store, to logs and to sub-processes

_HEAD = f"the head of a request, or its trailers, have more than {MOST_HEAD:,} bytes; send less in headers"
_HEADERS = f"a request has more than {MOST_HEADERS} headers; send fewer"
_TARGET = f"the address with its query has more than {MOST_TARGET:,} bytes; send less in the query"
_NOT_HTTP = "the request is not HTTP/1.1"


def most_connections() -> int:
    """Return how many connections may be open at once: what the limit of open files leaves, with a reserve for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2**31 if files == resource.RLIM_INFINITY else files
    return max(1, files - max(RESERVED_FILES, files // 4))


class Protocol(HttpToolsProtocol):
    """Ends requests that arrive too slowly, are too large before their body, or whose answer nobody reads.

    When there are more connections than descriptors allow, the one that has been without a request for the longest time makes way: a
    client that works is served, however many connections others keep open in silence. `waiting` has the connections that wait for
    their client, for a request or until it has read, the longest first.
    """

    arrive_within = ARRIVE_WITHIN
    read_within = READ_WITHIN
    most_connections = 2**31
    waiting: dict[Protocol, None]
    note_refused: Callable[[int], None]

    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _outside = 0  # bytes since the request began, or since its head, or a part of its body, was complete
    _received = 0  # bytes of the present read
    _has_head = False
    _refused = False
    _stopping = False

    # ---- a connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections and not self._make_way():
            self._refuse(Refusal(BUSY, "all connections of this server are at work; try again"))
            self.transport.close()
            return
        self.waiting[self] = None
        self._expect()

    def _make_way(self) -> bool:
        """Close the connection that has been waiting for the longest time; return whether there was one."""
        for oldest in self.waiting:
            del self.waiting[oldest]
            oldest.transport.abort()
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        for timer in (self._unread, self._lingering):
            if timer is not None:
                timer.cancel()
        self._unread = self._lingering = None
        self.waiting.pop(self, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it to run after a reset

    def shutdown(self) -> None:
        """Close once the present request, or the one that is arriving, is answered. A client that was able to connect gets its answer."""
        self._stopping = True
        if self._arriving is None or self._has_head:
            super().shutdown()
        elif self._outside == 0:
            self.loop.call_later(LAST_CALL, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self._arriving is not None and self._outside == 0 and not self._has_head:
            self.transport.close()

    # ---- what arrives ----

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._received = len(data)
        self._outside += self._received
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, Refusal) else Refusal(BAD_REQUEST, _NOT_HTTP))
            return
        except httptools.HttpParserUpgrade:  # answered as HTTP/1.1, which is always allowed
            pass
        if self._outside > MOST_HEAD:
            self._refuse(Refusal(TARGET_TOO_LONG, _TARGET) if len(self.url) > MOST_TARGET else Refusal(HEADERS_TOO_LARGE, _HEAD))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._arriving is None:
            self._expect()

    def on_headers_complete(self) -> None:
        if self._received > MOST_TARGET or self._outside > MOST_TARGET:
            if len(self.url) > MOST_TARGET:
                raise Refusal(TARGET_TOO_LONG, _TARGET)
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MOST_HEAD:
                raise Refusal(HEADERS_TOO_LARGE, _HEAD)
        if len(self.headers) > MOST_HEADERS:
            raise Refusal(HEADERS_TOO_LARGE, _HEADERS)
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            raise Refusal(BAD_REQUEST, _NOT_HTTP)
        super().on_headers_complete()
        self.headers = []  # trailers would be added to the headers that the request is judged by
        self.scope["extensions"] = {TAKE_TIME: {"extend": partial(self._take_time, self.scope)}}
        self._has_head, self._outside = True, 0
        self.waiting.pop(self, None)
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._outside = 0
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        self._outside = 0

    def on_message_complete(self) -> None:
        self._arrived()
        self._outside = 0
        super().on_message_complete()

    def _expect(self) -> None:
        self._has_head = False
        self._arriving = self.loop.call_later(self.arrive_within, self._too_slow)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _take_time(self, scope: HTTPScope, seconds: float) -> None:
        """Give a request more time to arrive, once it is known to be one of those that need it."""
        if self._arriving is not None and self.scope is scope:
            self._arriving.cancel()
            self._arriving = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(Refusal(TOO_SLOW, f"the request did not arrive within {self.arrive_within:g} seconds"))

    # ---- what is answered ----

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_if_unread()
        elif self.cycle.response_complete:  # otherwise another request has arrived already
            self.waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.waiting[self] = None
        self._abort_if_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.cycle.response_complete:
            self.waiting.pop(self, None)
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_if_unread()

    def _abort_if_unread(self) -> None:
        """End the connection if its client reads nothing of what waits for it: a close alone would wait for that without end."""
        left = self.transport.get_write_buffer_size()
        if left and self._unread is None:
            self._unread = self.loop.call_later(self.read_within, self._look_for_progress, left)

    def _look_for_progress(self, before: int) -> None:
        self._unread = None
        if 0 < before <= self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self._abort_if_unread()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with a problem and end the connection. Requests before this one that have arrived whole are answered first."""
        self._arrived()
        self.waiting.pop(self, None)
        self._refused = True
        self.note_refused(refusal.kind.status)
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._write_problem(refusal)

    def _write_problem(self, refusal: Refusal) -> None:
        problem = problem_of(refusal)
        body = msgspec.json.encode(problem)
        head = [STATUS_LINE[problem.status], b"content-type: ", MEDIA_TYPE.encode(), b"\r\ncontent-length: %d\r\n" % len(body)]
        head += [f"{name}: {text}\r\n".encode() for name, text in headers_of(refusal, problem).items()]
        self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", body]))
        # closed at once, with bytes that nobody has read, the connection would be reset and the answer lost
        self.transport.write_eof()
        self.flow.resume_reading()
        self.waiting[self] = None
        self._lingering = self.loop.call_later(LINGER, self.transport.abort)
