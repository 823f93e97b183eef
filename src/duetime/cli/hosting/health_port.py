"""The health port of a worker: `/livez`, `/readyz` and `/metrics` over HTTP, for the probes of a platform.

It answers from a thread with an event loop of its own, because a handler may block the worker's. It takes nothing but the standard
library, so that a worker does not need the packages of a server: a probe sends one small GET, and that is all that is understood.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus

import msgspec

from duetime.api.problems import Refusal, headers_of, problem_of
from duetime.errors import CannotListen
from duetime.wire.problem import MEDIA_TYPE, NO_METHOD, NO_ROUTE

MOST_CONNECTIONS = 64
MOST_HEAD = 16_384  # bytes
WITHIN = 5.0  # seconds that a whole exchange may take


class Page(msgspec.Struct, frozen=True):
    """What is answered with 200."""

    body: bytes
    media: str = "application/json"


Pages = dict[str, Callable[[], Page]]  # by path; each may raise a Refusal, and is called in the thread of the port


class HealthPort:
    """Answers GET requests for some pages."""

    def __init__(self, listener: socket.socket, pages: Pages) -> None:
        self._listener = listener
        self._pages = pages
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="duetime health port", daemon=True)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answer as long as the block lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._converse, sock=self._listener, limit=MOST_HEAD))
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                return
            async with asyncio.timeout(WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.write_eof()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        try:
            page, status, headers = self._page(method, path), 200, {}
        except Refusal as refusal:
            problem = problem_of(refusal)
            page, status, headers = Page(msgspec.json.encode(problem), MEDIA_TYPE), problem.status, headers_of(refusal, problem)
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"content-type: {page.media}",
            f"content-length: {len(page.body)}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            *(f"{name}: {text}" for name, text in headers.items()),
            "connection: close",
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if method == "HEAD" else page.body)

    def _page(self, method: str, path: str) -> Page:
        page = self._pages.get(path)
        if page is None:
            raise Refusal(NO_ROUTE, f"there is nothing here; there are {', '.join(self._pages)}")
        if method not in ("GET", "HEAD"):
            raise Refusal(NO_METHOD, "only GET and HEAD are possible here", headers={"allow": "GET, HEAD"})
        return page()


def bind(host: str, port: int) -> socket.socket:
    """Bind the address of a health port."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = "; something else listens there already: give another --health-port, or 0 for any free one" if taken else ""
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CannotListen(f"the health port cannot listen on {host}, port {port}: {reason}{hint}") from None


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
