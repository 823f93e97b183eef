"""Connections to the server: made when needed, kept while they work, given up at the first doubt.

This is the door at which the driver's exceptions become ours. A connection on which anything but a plain refusal of a statement
happened is never used again; the next verb makes a new one. Every verb may be repeated, so one that met a connection which had died
unnoticed is repeated once on a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from duetime.errors import InvalidValue, StoreUnavailable
from duetime.store.postgres.address import Address
from duetime.store.postgres.runner import Runner

logger = logging.getLogger("duetime.store")

T = TypeVar("T")

CONNECT_WITHIN = 10.0
SILENCE = 10_000  # milliseconds for which sent bytes may stay unanswered by the other host before the kernel gives up
TURNS = 5

# Refusals after which the same verb may simply be tried again: deadlock, serialization, a lock not had in time.
_AGAIN = frozenset({"40P01", "40001", "55P03"})
NO_PARTITION = "23514"


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


async def connect(address: Address, *, lazy_commits: bool = False, within: float = CONNECT_WITHIN) -> Link:
    """Open a connection; `lazy_commits` is for one that writes nothing but wake-ups."""
    settings = {} if address.pooled else dict(address.session_settings)
    if lazy_commits and not address.pooled:
        settings["synchronous_commit"] = "off"
    connection = await asyncpg.connect(
        address.dsn,
        timeout=within,
        command_timeout=address.timeout,
        statement_cache_size=0 if address.pooled else 256,
        max_cached_statement_lifetime=0,
        server_settings=settings,
    )
    _notice_silence(connection)
    try:
        incarnation = await connection.fetchval(_INCARNATION)
    except asyncpg.PostgresError:  # a service that does not tell
        incarnation = _UNTOLD
    except BaseException:
        connection.terminate()
        raise
    # behind a pooler another server may take over without a word to us, so there claims ask themselves
    return Link(connection, None if address.pooled and incarnation != _UNTOLD else incarnation)


_UNTOLD = "unknown"
# The timeline changes when a replica takes over; a replica itself has none to tell and is no place for us.
_INCARNATION = "select case when pg_is_in_recovery() then 'replica' else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end"


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
        self._room: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        self._closed = False
        self._incarnation: str | None = None
        self.repair: Callable[[], Awaitable[None]] | None = None  # makes partitions that a statement missed
        self.arrive: Callable[[Link], Awaitable[None]] | None = None  # called with the first connection to a server that has taken over

    async def close(self) -> None:
        self._closed = True
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
        """Lend a connection; whatever goes wrong with it is translated, and it comes back only if it is in order."""
        async with await self._admission():
            link = await self._take()
            self._busy.add(link)
            try:
                yield link
            except BaseException as error:
                if not _harmless(error) or not link.usable or link.connection.is_in_transaction():
                    link.drop()
                raise translated(error, self._address) from error
            finally:
                self._busy.discard(link)
                link.used = True
                if link.usable and not self._closed:
                    self._idle.append(link)
                else:
                    link.drop()

    async def _admission(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreUnavailable(f"the store {self._address.shown} is not open; await open() first")
        if self._room is None or self._loop is not loop:
            self._idle.clear()  # they belonged to an event loop of the past
            self._loop, self._room = loop, asyncio.Semaphore(self._address.connections)
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)
        return self._room

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
        except BaseException as error:
            raise translated(error, self._address) from error
        if link.incarnation != self._incarnation:
            try:
                if self.arrive is not None:
                    await self.arrive(link)
            except BaseException as error:
                link.drop()
                raise translated(error, self._address) from error
            self._incarnation = link.incarnation
        return link

    async def rows(self, sql: str, parameters: Sequence[Any] = (), *, timeout: float | None = None) -> list[Sequence[Any]]:
        """Run one statement in a transaction of its own."""
        return await self._persist(lambda link: link.rows(sql, parameters, timeout))

    async def once(self, job: Callable[[Link], Awaitable[T]]) -> T:
        """Run a job that must not be repeated behind the caller's back, unless it was refused and so did nothing."""
        return await self._persist(job, after_loss=False)

    async def transaction(self, job: Callable[[Runner], Awaitable[T]]) -> T:
        """Run a job in a transaction; it may be begun again from the start."""

        async def inside(link: Link) -> T:
            async with link.connection.transaction():
                return await job(link)

        return await self._persist(inside)

    async def _persist(self, job: Callable[[Link], Awaitable[T]], *, after_loss: bool = True) -> T:
        """Repeat a job that was refused for a passing reason, and once one whose connection had died while it was idle."""
        fresh, was_used = not after_loss, False
        for turn in range(TURNS):
            try:
                async with self.link() as link:
                    was_used = link.used
                    return await job(link)
            except Refused as refusal:
                if turn == TURNS - 1:
                    raise StoreUnavailable(f"the store {self._address.shown} refused again and again: {refusal}") from refusal
                if refusal.state == NO_PARTITION and self.repair is not None:
                    await self.repair()
                else:
                    await asyncio.sleep(0.01 * 2**turn)
            except Gone:
                if fresh or not was_used:
                    raise
                fresh = True
        raise AssertionError("unreachable")


class Refused(StoreUnavailable):
    """A statement was refused for a reason that passes."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class Gone(StoreUnavailable):
    """The connection is gone, or the server is."""


class Rejected(Exception):
    """A refusal that the verb itself answers, known by its SQLSTATE."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


LANE_GONE = "DT004"
EXPECTED = frozenset({"23505", "DT001", "DT002", "DT003", LANE_GONE})


def _harmless(error: BaseException) -> bool:
    """Tell whether a connection can be used again after an error."""
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return False
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] not in ("08", "57", "53", "25", "58", "XX")
    # a cancelled or timed out statement may still be under way
    return isinstance(error, Exception) and not isinstance(error, OSError | TimeoutError)


def translated(error: BaseException, address: Address) -> BaseException:
    """Turn what the driver raises into what the seam promises."""
    where = f"the store {address.shown}"
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        return _by_state(error, error.sqlstate, where)
    if isinstance(error, TimeoutError):
        return Gone(f"{where} did not answer in time")
    if isinstance(error, OSError | asyncpg.PostgresError | asyncpg.InternalClientError):
        return Gone(f"{where} cannot be reached: {error}")
    if isinstance(error, asyncpg.DataError | OverflowError | UnicodeEncodeError):
        return InvalidValue(f"a value cannot be stored: {error}")
    if isinstance(error, asyncpg.InterfaceError):
        return Gone(f"the connection to {where} is gone: {error}")
    return error


def _by_state(error: asyncpg.PostgresError, state: str, where: str) -> Exception:
    message = str(error)
    if state in EXPECTED or (state == "54000" and "NOTIFY" in message):  # the server's queue of wake-ups is full
        return Rejected(message, state)
    if state in _AGAIN or (state == NO_PARTITION and "no partition" in message):
        return Refused(message, state)
    if state in ("42P01", "3F000", "42883", "42703"):
        return StoreUnavailable(f"{where} has not the tables that this version needs ({message}); run `duetime migrate`")
    if state == "42501":
        return StoreUnavailable(f"{where} does not allow this to its user ({message}); docs/postgres.md lists the privileges needed")
    if state in ("28P01", "28000", "3D000"):
        return StoreUnavailable(f"{where} cannot be opened: {message}")
    if state.startswith("22"):
        return InvalidValue(f"a value cannot be stored: {message}")
    if state[:2] in ("08", "57", "53", "58", "25"):
        return Gone(f"{where} cannot answer: {message}")
    return StoreUnavailable(f"{where} failed: {message} (SQLSTATE {state})")
