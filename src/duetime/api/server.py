"""Serving the API: uvicorn with bounded connections (`protocol.py`), the duties beside it, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from duetime.api.access import check_host, is_loopback
from duetime.api.app import UNKNOWN, Api
from duetime.api.background import beside
from duetime.api.protocol import ARRIVE_WITHIN, IDLE_FOR, READ_WITHIN, Protocol, most_connections
from duetime.app.app import App
from duetime.errors import CannotListen, InvalidValue

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8420
GRACE = 30.0
BACKLOG = 2_048  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 8  # asyncio takes so many before the first of them can be refused
LOOK_EVERY = 0.01

_logger = logging.getLogger("duetime.api")


class Server(uvicorn.Server):
    """Serves the API of an App.

    The caller handles signals and calls `stop`. A `listener` is a socket on loopback that another process has bound, used instead of
    host and port; this server closes it in this process only. With a `certificate`, a file in PEM with its chain, it speaks TLS; the
    file `key` has its private key, unless the certificate's has. `connections` is how many may be open at once, by default what the limit
    of open files leaves.
    """

    def __init__(
        self,
        app: App,
        *,
        api: Api | None = None,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        listener: socket.socket | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        grace: float = GRACE,
        arrive_within: float = ARRIVE_WITHIN,
        read_within: float = READ_WITHIN,
        connections: int | None = None,
    ) -> None:
        self.app = app
        self.api = api or Api(app)
        self._host, self._port, self._listener = host, port, listener
        self._grace, self._encrypted = grace, certificate is not None
        check_certificate(certificate, key)
        self._stopped, self._ending = asyncio.Event(), asyncio.Event()
        bounds = {
            "arrive_within": arrive_within,
            "read_within": read_within,
            "most_connections": connections or most_connections(),
            "waiting": {},
            "note_refused": staticmethod(lambda status: self.api.shared.figures.note(UNKNOWN, status, 0.0)),
        }
        super().__init__(
            uvicorn.Config(
                self.api,
                http=type("BoundProtocol", (Protocol,), bounds),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_FOR),
                backlog=ACCEPTED_AT_ONCE,
                ssl_certfile=certificate,
                ssl_keyfile=key,
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
            # decided once: a server that required tokens must not become open when the last one has expired
            self.asks_for_tokens = not is_loopback(self._host) or await self.app.tokens.in_use()
            self.url = url_of(listener, encrypted=self._encrypted)
            await stack.enter_async_context(beside(self.api, tokens=self.asks_for_tokens, url=self.app.config.public_url or self.url))
            self.config.load()
            self.lifespan = self.config.lifespan_class(self.config)
            await self.startup(sockets=[listener])
            listener.listen(BACKLOG)
            ticking = asyncio.create_task(self.main_loop())
            try:
                yield self
            finally:
                self.should_exit = True
                self._ending.set()
                self.api.stop()
                await ticking
                await self.shutdown(sockets=[listener])

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


def check_certificate(certificate: str | Path | None, key: str | Path | None) -> None:
    """Raise InvalidValue for files that cannot serve TLS."""
    if certificate is None:
        if key is not None:
            raise InvalidValue("a key is of no use without a certificate; give both")
        return
    try:
        # a key that needs a passphrase is refused and not asked for: nobody may be there to type it
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        raise InvalidValue(
            f"no certificate and key can be read from {files}: {getattr(error, 'reason', None) or error}; both are files in PEM, the "
            "certificate with its chain, and the key without a passphrase"
        ) from None


def url_of(listener: socket.socket, *, encrypted: bool = False) -> str:
    name: tuple[Any, ...] = listener.getsockname()
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{'https' if encrypted else 'http'}://{host}:{name[1]}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop where it is installed: a request costs a third less."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
