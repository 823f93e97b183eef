"""Serving the API: uvicorn with httptools, a bound on how long a request may take to arrive, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from duetime.api.access import OpenOnLoopback, check_host, is_loopback
from duetime.api.app import Api
from duetime.api.duties import performing
from duetime.api.problems import Refusal, problem_of
from duetime.app.app import App
from duetime.client.access.tokens import UseNotes
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.model.figures import STORE_ERRORS, FigureKey
from duetime.runtime.service import Alarms, Service
from duetime.wire.problem import BAD_REQUEST, HEADERS_TOO_LARGE, MEDIA_TYPE, TOO_SLOW, Kind
from duetime.worker.metrics import Counting, FigureWriter

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8420
ARRIVE_WITHIN = 30.0  # seconds for the whole of a request, from its first byte to its last
IDLE_FOR = 75.0  # seconds for which an idle connection is kept open
MOST_HEAD = 65_536
GRACE = 30.0
LAST_CALL = 0.2  # seconds for which a stopping server waits for the first request of a new connection
LOOK_EVERY = 0.01

_logger = logging.getLogger("duetime.api")


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit that it lacks: a request that does not arrive in time, or whose head does not end, is ended."""

    arrive_within = ARRIVE_WITHIN
    _arriving: asyncio.TimerHandle | None = None
    _head = 0
    _stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._arriving is not None and self._head >= 0:
            self._head += len(data)
        super().data_received(data)
        # checked afterwards, so that body data that arrives with the head does not count
        if self._arriving is not None and self._head > MOST_HEAD:
            self._refuse(HEADERS_TOO_LARGE, f"the head of a request has more than {MOST_HEAD:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._arriving is None:
            self._expect()

    def on_headers_complete(self) -> None:
        self._head = -1
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._arrived()
        super().on_message_complete()

    def shutdown(self) -> None:
        """Close once the present request, or the one that is arriving, is answered. A client that was able to connect gets its answer."""
        self._stopping = True
        if self._arriving is None or self._head < 0:
            super().shutdown()
        elif self._head == 0:
            self.loop.call_later(LAST_CALL, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self._arriving is not None and self._head == 0:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._arrived()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
        else:
            self._write_problem(BAD_REQUEST, "the request is not HTTP/1.1")

    def _expect(self) -> None:
        self._head = 0
        self._arriving = self.loop.call_later(self.arrive_within, self._too_slow)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _too_slow(self) -> None:
        self._refuse(TOO_SLOW, f"the request did not arrive within {self.arrive_within:g} seconds")

    def _refuse(self, kind: Kind, detail: str) -> None:
        self._arrived()
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self._write_problem(kind, detail)
        else:
            self.transport.close()

    def _write_problem(self, kind: Kind, detail: str) -> None:
        body = msgspec.json.encode(problem_of(Refusal(kind, detail)))
        head = [STATUS_LINE[kind.status], b"content-type: ", MEDIA_TYPE.encode(), b"\r\ncontent-length: %d\r\n" % len(body)]
        self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", body]))
        self.transport.close()


class CannotListen(DuetimeError):
    """The address is in use, or does not belong to this machine."""


class Server(uvicorn.Server):
    """Serves the API of an App.

    The caller handles signals and calls `stop`. A `listener` is a socket on loopback that another process has bound, used instead of
    host and port; this server closes it in this process only.
    """

    def __init__(
        self,
        app: App,
        *,
        api: Api | None = None,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        listener: socket.socket | None = None,
        grace: float = GRACE,
        arrive_within: float = ARRIVE_WITHIN,
    ) -> None:
        self.app = app
        self.api = api or Api(app)
        self._host, self._port, self._listener = host, port, listener
        self._grace = grace
        self._duties: Sequence[Service] = ()
        self._stopped, self._ending = asyncio.Event(), asyncio.Event()
        protocol = type("BoundProtocol", (Protocol,), {"arrive_within": arrive_within})
        super().__init__(
            uvicorn.Config(
                self.api,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_FOR),
                backlog=2_048,
            )
        )
        self.url = ""
        self.asks_for_tokens = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        """Serve as long as the block lasts; the App is open meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            if not is_loopback(self._host):
                await stack.enter_async_context(self.app)
                await check_host(self._host, self.app)
            listener = stack.enter_context(contextlib.closing(self._listener or await listen(self._host, self._port)))
            self.app.specs  # noqa: B018  imports the modules of `imports=`: their handlers' payloads are checked here
            await stack.enter_async_context(self.app)
            await stack.enter_async_context(self._access())
            await stack.enter_async_context(self._counting())
            self._duties = await stack.enter_async_context(performing(self.app))
            self.api.shared.pulses += [duty.pulse for duty in self._duties]
            self.config.load()
            self.lifespan = self.config.lifespan_class(self.config)
            await self.startup(sockets=[listener])
            self.url = url_of(listener)
            ticking = asyncio.create_task(self.main_loop())
            try:
                yield self
            finally:
                self.should_exit = True
                self._ending.set()
                self.api.stop()
                await ticking
                await self.shutdown(sockets=[listener])

    @contextlib.asynccontextmanager
    async def _counting(self) -> AsyncIterator[None]:
        """Write the metrics of pull workers and duties as long as the block lasts, and the rest at its end."""
        alarms = Alarms()
        writer = FigureWriter(self.app.store, f"server {secrets.token_hex(8)}", alarms, self._totals)
        self.api.shared.pulses.append(writer.pulse)
        writer.start()
        try:
            yield
        finally:
            await writer.stop()
            alarms.close()
            with contextlib.suppress(StoreUnavailable):
                await writer.write()

    def _totals(self) -> dict[FigureKey, int]:
        totals = self.api.shared.pull.totals()
        totals[FigureKey(STORE_ERRORS)] = sum(duty.pulse.store_errors for duty in self._duties)
        for duty in self._duties:
            if isinstance(duty, Counting):
                totals |= duty.totals()
        return totals

    @contextlib.asynccontextmanager
    async def _access(self) -> AsyncIterator[None]:
        """Require tokens, and record their uses, if there are any when the block begins; otherwise allow everything, on loopback.

        This is decided once: a server that required tokens must not become open when the last one has expired.
        """
        self.asks_for_tokens = not is_loopback(self._host) or await self.app.tokens.in_use()
        if not self.asks_for_tokens:
            self.api.access = OpenOnLoopback(self.app.user)
            yield
            return
        alarms = Alarms()
        notes = UseNotes(self.app.tokens, alarms)
        self.api.shared.pulses.append(notes.pulse)
        notes.start()
        try:
            yield
        finally:
            await notes.stop()
            alarms.close()
            try:
                await self.app.tokens.note_uses()
            except StoreUnavailable as error:
                _logger.warning("the last uses of tokens could not be written: %s", error)

    async def run_until_stopped(self, started: Callable[[Server], None]) -> None:
        """Serve until SIGTERM or SIGINT. A second signal stops without waiting for requests in progress."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            async with self.running():
                started(self)
                await self._stopped.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        if self._stopped.is_set():
            self.force_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Keep the Date header right until the server stops. uvicorn's own loop wakes up ten times a second to check for that."""
        while not self.should_exit:
            await self.on_tick(0)
            try:
                async with asyncio.timeout(1.0):
                    await self._ending.wait()
            except TimeoutError:
                continue

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, let requests finish within the grace period, and cancel the rest."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            server.close()
        state, end = self.server_state, loop.time() + self._grace
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and loop.time() < end and not self.force_exit:  # noqa: ASYNC110  # uvicorn's own sets
            await asyncio.sleep(LOOK_EVERY)
        if state.tasks:
            _logger.warning("the server stops although %d requests are under way", len(state.tasks))
        for connection in list(state.connections):
            connection.transport.abort()
        left = list(state.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def listen(host: str, port: int) -> socket.socket:
    """Bind the address, before anything else is started."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # with the protocol's number: asyncio takes only such a socket for one of TCP, and an answer whose head and body are written one
        # after the other would otherwise wait 40 ms for the acknowledgement of its head
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        hint = "; another server listens there already: give another --port, or 0 for any free one" if error.errno == 98 else ""
        raise CannotListen(f"cannot listen on {host}, port {port}: {error.strerror or error}{hint}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    name: tuple[Any, ...] = listener.getsockname()
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop where it is installed: a request costs a third less."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
