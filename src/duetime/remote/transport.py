"""Requests to a server: one pool of connections per event loop, and retries of requests that are safe to repeat."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import email.utils
import logging
import os
import random
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from duetime.clock import SECOND, Instant, SystemClock
from duetime.config import Masked
from duetime.errors import DuetimeError, InvalidValue, MissingExtra, NotAllowed, StoreUnavailable
from duetime.model.retry_after import read_retry_after
from duetime.remote.address import in_the_clear, read_address
from duetime.remote.problems import error_of, read_problem

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as missing:
    raise MissingExtra(f"a server is reached with the package {missing.name}: pip install 'duetime[http]'") from None

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"

# Seconds for which a request is retried. A server that has answered before is probably restarting; one that never has is probably not
# there.
PATIENCE, FIRST_PATIENCE = 10.0, 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
CONNECT_WITHIN = 5.0
ANSWER_WITHIN = 30.0  # in addition to the time that the server is to wait
IDLE_FOR = 30.0  # shorter than servers and proxies keep idle connections, so that none is used at the moment when it is closed
AT_ONCE = 64  # concurrent requests; those that wait for a task have their own limit, because they last long
WAITING_AT_ONCE = 512
CLOCKS_APART = 2.0  # seconds: `Date` has whole seconds, so a smaller difference means nothing

_logger = logging.getLogger("duetime")
_warned: set[str] = set()
_AGAIN = (429, 502, 503, 504)


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class NoAnswer(StoreUnavailable):
    """There was no answer. Unless `sent`, the server has not seen the request."""

    def __init__(self, message: str, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.hopeless = hopeless


class _Pool:
    """The connections of one event loop.

    They are closed when the loop ends, so an App needs no `async with`. A suspended async generator does that: a loop closes its
    generators when it ends, and when nobody refers to them any more.
    """

    def __init__(self, session: aiohttp.ClientSession, kept: AsyncGenerator[None, None]) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.short = asyncio.Semaphore(AT_ONCE)
        self.long = asyncio.Semaphore(WAITING_AT_ONCE)
        self.pid = os.getpid()
        self._kept = kept
        _pools.add(self)

    @classmethod
    async def open(cls, headers: Mapping[str, str]) -> _Pool:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_FOR), cookie_jar=aiohttp.DummyCookieJar(), headers=headers
        )
        kept = _closing(session)
        await anext(kept)
        return cls(session, kept)

    async def close(self) -> None:
        await self._kept.aclose()


async def _closing(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    _sessions.add(session)
    try:
        yield
    finally:
        await session.close()
        _sessions.discard(session)


# Referenced until they are closed: a session that is collected together with its App would warn before its loop can close it.
_sessions: set[aiohttp.ClientSession] = set()
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the pools of loops that run until the interpreter exits, such as that of `app.sync`."""
    for pool in list(_pools):
        if pool.loop.is_running() and pool.pid == os.getpid():  # in a forked child a loop only seems to run
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(pool.close(), pool.loop).result(1.0)


class Transport:
    """Sends requests to one server. The token goes there and nowhere else: redirects are not followed."""

    def __init__(self, url: str, token: Masked | None) -> None:
        self.url = read_address(url)
        self._headers = {"accept": JSON, "user-agent": f"duetime/{version('duetime')}"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token.reveal()}"
            self._warn_once()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._answered = False
        self._clock = SystemClock()
        self._ahead: Instant = 0
        self._compared_at: float | None = None

    def __repr__(self) -> str:
        return f"<transport to {self.url}>"

    def _warn_once(self) -> None:
        if in_the_clear(self.url) and self.url not in _warned:
            _warned.add(self.url)
            _logger.warning("the token for %s travels unencrypted, and whoever reads it on its way can use it; use https://", self.url)

    def now(self) -> Instant:
        """Return the server's time as far as it is known. It is only for showing how long ago something was; nothing is decided by it."""
        return self._clock.now() + self._ahead

    async def close(self) -> None:
        """Close the connections of this event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    # ---- asking ----

    async def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
        wait: float = 0.0,
        patience: float | None = None,
    ) -> T:
        """Send a request, with a JSON body if there is one, and return the answer as `kind`."""
        data = None if body is None else msgspec.json.encode(body)
        answer = await self.send(method, path, query=query, data=data, headers=headers, again=again, wait=wait, patience=patience)
        return self.read(kind, answer)

    def read(self, kind: type[T], answer: Answer) -> T:
        """Decode an answer. Additional fields of a newer server are ignored."""
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            theirs = answer.headers.get("Duetime-Version", "unknown")
            raise DuetimeError(
                f"the answer of {self.url} (version {theirs}) is not what version {version('duetime')} understands: {error}"
            ) from None

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        media: str = JSON,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
        wait: float = 0.0,
        patience: float | None = None,
    ) -> Answer:
        """Send a request and return its answer; raise the error of an answer that is not a success.

        `again` (by default for GET): the request is safe to repeat even if the server may have seen it, so it is retried for a while
        when there is no answer. Any request is retried if the server cannot have carried it out. `wait` is how long the server is to
        wait.
        """
        sent = {**(headers or {}), **({} if data is None else {"content-type": media})}
        url = self._url(path, query)
        repeated = method == "GET" if again is None else again
        began, pause = time.monotonic(), FIRST_PAUSE
        while True:
            told: float | None = None
            try:
                answer = await self._once(method, url, data, sent, wait)
            except NoAnswer as error:
                problem: DuetimeError = error
                if error.hopeless or (error.sent and not repeated):
                    raise
            else:
                if 200 <= answer.status < 300:
                    return answer
                problem = self._error(method, path, answer)
                if answer.status not in _AGAIN or (answer.status != 429 and not repeated):
                    raise problem
                told = read_retry_after(answer.headers.get("Retry-After"), self._clock.now())
            delay = max(told or 0.0, pause * random.uniform(0.5, 1.0))
            longest = patience if patience is not None else PATIENCE if self._answered else FIRST_PATIENCE
            if time.monotonic() + delay > began + longest:
                raise problem
            await asyncio.sleep(delay)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def upload(self, url: str, path: Path, size: int) -> None:
        """Send a file to an address that the server has given, without the token: it may be that of somebody else.

        An address without a host is one of the server. Nothing is repeated: a caller begins anew.
        """
        whole = URL(self.url).join(URL(url, encoded=True)) if url.startswith("/") else URL(url, encoded=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=ANSWER_WITHIN)
        headers = {"content-length": str(size), "content-type": "application/octet-stream"}
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            with self._translated("PUT", whole), await asyncio.to_thread(path.open, "rb") as file:
                async with session.put(whole, data=file, headers=headers, timeout=timeout, allow_redirects=False) as response:
                    answer = Answer(response.status, response.headers, await response.read())
        if not 200 <= answer.status < 300:
            if read_problem(answer.data) is not None:
                raise self._error("PUT", whole.path, answer)
            said = answer.data[:200].decode("utf-8", "replace")
            raise StoreUnavailable(f"the upload to {whole.host} was answered {answer.status}: {said}")

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a streamed answer, such as server-sent events. Raises NoAnswer if it is cut off."""
        url = self._url(path, query)
        pool = await self._pool()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=ANSWER_WITHIN * 2)
        wanted = {**(headers or {}), "accept": "text/event-stream"}
        async with pool.long:
            with self._translated("GET", url):
                async with pool.session.get(url, headers=wanted, timeout=timeout, allow_redirects=False) as response:
                    if response.status != 200:
                        raise self._error("GET", path, Answer(response.status, response.headers, await response.read()))
                    self._answered = True
                    yield aiter(response.content.iter_any())

    async def _once(self, method: str, url: URL, data: bytes | None, headers: Mapping[str, str], wait: float) -> Answer:
        pool = await self._pool()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=ANSWER_WITHIN + wait)
        async with pool.long if wait else pool.short:
            with self._translated(method, url):
                async with pool.session.request(
                    method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    answer = Answer(response.status, response.headers, await response.read())
        self._answered = self._answered or answer.status < 500
        self._compare(answer.headers.get("Date"))
        return answer

    @contextlib.contextmanager
    def _translated(self, method: str, url: URL) -> Iterator[None]:
        """Turn errors of the connection into NoAnswer."""
        unsure = "" if method == "GET" else "; it may or may not have been carried out"
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise NoAnswer(
                f"{self.url} is not trusted: {error.certificate_error}; have it show a certificate that this machine trusts",
                sent=False,
                hopeless=True,
            ) from None
        except aiohttp.ClientSSLError as error:
            raise NoAnswer(
                f"there is no encrypted connection to {self.url}: {error.strerror or error}; does it speak http:// only?",
                sent=False,
                hopeless=True,
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise NoAnswer(f"the server at {self.url} cannot be reached: {error.strerror or error}; is it running?", sent=False) from None
        except aiohttp.ConnectionTimeoutError:
            raise NoAnswer(f"the server at {self.url} did not accept a connection within {CONNECT_WITHIN:g} s", sent=False) from None
        except TimeoutError:
            raise NoAnswer(f"the server at {self.url} did not answer {method} {url.path} in time{unsure}", sent=True) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswer(f"the connection to {self.url} was cut during {method} {url.path}: {reason}{unsure}", sent=True) from None

    # ---- parts ----

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            opened = await _Pool.open(self._headers)
            pool = self._pools.setdefault(loop, opened)
            for ended in [each for each in self._pools if each.is_closed()]:
                del self._pools[ended]
        return pool

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        url = URL(f"{self.url}{path}", encoded=True)
        return url.with_query(dict(query)) if query else url

    def _error(self, method: str, path: str, answer: Answer) -> DuetimeError:
        problem = read_problem(answer.data)
        if problem is not None:
            error = error_of(problem)
            if answer.status == 401 and "authorization" not in self._headers:
                return NotAllowed(f"{error}; give one as token=… or in DUETIME_TOKEN")
            return error
        if 300 <= answer.status < 400:
            where = answer.headers.get("Location", "elsewhere")[:200]
            return InvalidValue(f"{self.url} leads to {where}, and tokens are not sent there unasked; use the URL that is meant")
        if answer.status >= 500 or answer.status == 429:
            return StoreUnavailable(f"{method} {path} was answered {answer.status} on the way to {self.url}; try again")
        return InvalidValue(
            f"{method} {self.url}{path} was answered {answer.status}, but not by a Duetime server; check the URL, "
            "which is that of `duetime server`, without /v1"
        )

    def _compare(self, date: str | None) -> None:
        """Estimate, once a minute, how far the server's clock is ahead of this machine's."""
        now = time.monotonic()
        if date is None or (self._compared_at is not None and now - self._compared_at < 60):
            return
        with contextlib.suppress(ValueError):
            ahead = email.utils.parsedate_to_datetime(date).timestamp() - self._clock.now() / SECOND
            self._ahead = round(ahead * SECOND) if abs(ahead) >= CLOCKS_APART else 0
            self._compared_at = now
