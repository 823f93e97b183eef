"""Connections to the server: made when needed, kept while they work, given up at the first doubt.

This is the door at which the driver's exceptions become ours (`translation` has the words). A connection on which anything but a plain
refusal of a statement happened is never used again; the next verb makes a new one. Every verb may be repeated, so one that met a
connection which had died unnoticed is repeated once on a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import asyncpg

from duetime.errors import InvalidValue, StoreUnavailable
from duetime.runtime.forks import Original
from duetime.store.postgres.address import Address
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.settings import check, facts
from duetime.store.postgres.translation import LANE_GONE, NO_PARTITION, Gone, Refused, Rejected, connection_refusal, translated

__all__ = ["LANE_GONE", "Database", "Gone", "Link", "Refused", "Rejected", "connect", "translated"]

logger = logging.getLogger("duetime.store")

T = TypeVar("T")

CONNECT_WITHIN = 10.0
SILENCE = 10_000  # milliseconds for which sent bytes may stay unanswered by the other host before the kernel gives up
MAX_RETRIES = 5


class Link:
    """One connection and what is known of its server; a `Runner` for our own statements."""

    def __init__(self, connection: asyncpg.Connection, incarnation: str | None) -> None:
        self.connection = connection
        self.incarnation = incarnation
        self.used = False

    async def rows(self, sql: str, parameters: Sequence[Any] = (), timeout: float | None = None) -> list[Sequence[Any]]:
        found: list[Sequence[Any]] = await self.connection.fetch(sql, *parameters, timeout=timeout)
        return found

    async def script(self, text: str) -> None:
        """Run several statements that take no parameters."""
        await self.connection.execute(text)

    @property
    def usable(self) -> bool:
        return not self.connection.is_closed()

    def drop(self) -> None:
        with contextlib.suppress(Exception):  # whatever is wrong with it, we are done with it
            self.connection.terminate()


async def connect(address: Address, *, lazy_commits: bool = False, within: float | None = None) -> Link:
    """Open a connection; `lazy_commits` is for one that writes nothing but wake-ups.

    It takes no longer than a statement may, 10 s at most. Errors in the URL are reported as such.
    """
    settings = {} if address.pooled else dict(address.session_settings)
    if lazy_commits and not address.pooled:
        settings["synchronous_commit"] = "off"
    try:
        connection = await asyncpg.connect(
            address.dsn,
            timeout=min(CONNECT_WITHIN, address.timeout) if within is None else within,
            command_timeout=address.timeout,
            statement_cache_size=0 if address.pooled else 256,
            max_cached_statement_lifetime=0,
            server_settings=settings,
        )
    except Exception as error:
        refused = connection_refusal(error, address)
        if refused is None:
            raise
        raise refused from error
    _notice_silence(connection)
    try:
        incarnation, *found = await _look(connection, facts(pooled=address.pooled))
        check(found, address.shown, pooled=address.pooled)
    except BaseException:
        connection.terminate()
        raise
    # behind a pooler another server may take over unnoticed, so there each claim checks it
    return Link(connection, None if address.pooled and incarnation != _UNTOLD else incarnation)


_UNTOLD = "unknown"
# The timeline changes when a replica takes over; a replica itself has none and cannot serve as a store.
_INCARNATION = "case when pg_is_in_recovery() then 'replica' else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end"


async def _look(connection: asyncpg.Connection, facts: str) -> Sequence[Any]:
    """Return the server's incarnation and some facts of the session, in one round trip."""
    try:
        row: Sequence[Any] = await connection.fetchrow(f"select {_INCARNATION}, {facts}")
    except asyncpg.PostgresError:  # a service that does not report its incarnation
        row = await connection.fetchrow(f"select '{_UNTOLD}', {facts}")
    return row


def _notice_silence(connection: asyncpg.Connection) -> None:
    """Let the kernel end a connection whose other end no longer answers."""
    transport = getattr(connection, "_transport", None)
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE)


class Database:
    """A few connections, shared by all verbs of one store object in one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._capacity: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        self._closed = False
        self._original = Original()
        self._met = False
        self._incarnation: str | None = None
        self.repair: Callable[[], Awaitable[None]] | None = None  # makes partitions that a statement missed
        self.arrive: Callable[[Link], Awaitable[None]] | None = None  # called with the first connection to a server that has taken over

    async def close(self) -> None:
        self._closed = True
        if self._original.copied:  # the connections are those of the process that this is a fork of
            return
        links, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            for link in links:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(link.connection.close(timeout=1.0), 2.0)
        for link in (*links, *self._busy):
            link.drop()
        if self._guard is not None and self._loop is asyncio.get_running_loop():
            await self._guard.aclose()

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Lend a connection. Its errors are translated, and it is reused only if it is still in order."""
        async with await self._admission():
            link = await self._take()
            self._busy.add(link)
            try:
                yield link
            except BaseException as error:
                if not _harmless(error) or not link.usable or link.connection.is_in_transaction():
                    link.drop()
                _raise(translated(error, self._address, under_way=True), error)
            finally:
                self._busy.discard(link)
                link.used = True
                if link.usable and not self._closed:
                    self._idle.append(link)
                else:
                    link.drop()

    async def _admission(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._closed or self._original.copied:
            raise StoreUnavailable(f"the store {self._address.shown} is not open; await open() first")
        if self._capacity is None or self._loop is not loop:
            self._idle.clear()  # they belonged to an earlier event loop
            self._loop, self._capacity = loop, asyncio.Semaphore(self._address.connections)
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)
        return self._capacity

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Close idle connections when their event loop ends, also if nobody has closed the store: loops end their generators."""
        try:
            yield
        finally:
            idle, self._idle = self._idle, []
            for link in idle:
                link.drop()
            await asyncio.sleep(0)

    async def _take(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if link.usable:
                return link
        try:
            link = await connect(self._address)
        except InvalidValue as error:
            if self._met:  # it was good enough before, so the server is another now: no fault of what the verb was given
                raise Gone(str(error)) from error
            raise
        except BaseException as error:
            _raise(translated(error, self._address), error)
        self._met = True
        if link.incarnation != self._incarnation:
            try:
                if self.arrive is not None:
                    await self.arrive(link)
            except BaseException as error:
                link.drop()
                _raise(translated(error, self._address), error)
            self._incarnation = link.incarnation
        return link

    async def rows(self, sql: str, parameters: Sequence[Any] = (), *, timeout: float | None = None) -> list[Sequence[Any]]:
        """Run one statement in a transaction of its own."""
        return await self._persist(lambda link: link.rows(sql, parameters, timeout))

    async def once(self, job: Callable[[Link], Awaitable[T]]) -> T:
        """Run a job that must not be repeated automatically, unless it was refused and so did nothing."""
        return await self._persist(job, after_loss=False)

    async def transaction(self, job: Callable[[Runner], Awaitable[T]]) -> T:
        """Run a job in a transaction; it may be begun again from the start."""

        async def inside(link: Link) -> T:
            async with link.connection.transaction():
                return await job(link)

        return await self._persist(inside)

    async def _persist(self, job: Callable[[Link], Awaitable[T]], *, after_loss: bool = True) -> T:
        """Repeat a job that was refused for a passing reason, and once one whose connection had died while it was idle."""
        fresh, was_used, in_doubt = not after_loss, False, False
        for retry in range(MAX_RETRIES):
            try:
                async with self.link() as link:
                    was_used = link.used
                    return await job(link)
            except Refused as refused:
                if retry == MAX_RETRIES - 1:
                    raise StoreUnavailable(f"{refused} (refused {MAX_RETRIES} times)") from refused
                if refused.state == NO_PARTITION and self.repair is not None:
                    await self.repair()
                else:
                    await asyncio.sleep(0.01 * 2**retry)
            except Gone as loss:
                if fresh or not was_used:
                    if in_doubt and not loss.in_doubt:  # the first try may have been done, whatever became of the second
                        raise Gone(str(loss), in_doubt=True) from loss
                    raise
                fresh, in_doubt = True, loss.in_doubt
        raise AssertionError("unreachable")


def _raise(error: BaseException, cause: BaseException) -> NoReturn:
    """Raise what an exception was translated to; one that needed no translation keeps its own cause."""
    if error is cause:
        raise error
    raise error from cause


def _harmless(error: BaseException) -> bool:
    """Return whether a connection can be used again after an error."""
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return False
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] not in ("08", "57", "53", "25", "58", "XX")
    # a cancelled or timed out statement may still be running
    return isinstance(error, Exception) and not isinstance(error, OSError | TimeoutError)
