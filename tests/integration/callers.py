"""Programs that have a PostgreSQL connection of their own, one for each kind that `connection=` takes.

Each writes in its driver's usual way. Those of synchronous drivers never suspend, so the same test runs in a thread without an
event loop too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import psycopg2  # type: ignore[import-untyped]
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


class Caller(Protocol):
    """A program with a connection. `connection` is what it passes to Duetime."""

    connection: Any

    async def begin(self) -> None: ...
    async def execute(self, statement: str) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


Open = Callable[[str], AbstractAsyncContextManager[Caller]]


def bare(url: str, scheme: str = "postgresql") -> str:
    """Return an address without Duetime's own options."""
    return urlunsplit(urlsplit(url)._replace(scheme=scheme, query=""))


class Asyncpg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._transaction: Any = None

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class Plain:
    """psycopg and psycopg2: they begin at the first statement."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        await self.execute("set local application_name = 'shop'")

    async def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class AsyncPsycopg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        await self.execute("set local application_name = 'shop'")

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class Alchemy:
    """A connection or a session of SQLAlchemy."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        self.connection.begin()

    async def execute(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class AsyncAlchemy:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        await self.connection.begin()

    async def execute(self, statement: str) -> None:
        await self.connection.execute(sqlalchemy.text(statement))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


# ---- how each is opened ----


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(bare(url))
    yield Asyncpg(connection)
    await connection.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(bare(url), min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield Asyncpg(connection)


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(bare(url)) as connection:
        yield Plain(connection)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(bare(url)) as connection:
        yield AsyncPsycopg(connection)


@asynccontextmanager
async def _psycopg2(url: str) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(bare(url))
    yield Plain(connection)
    connection.close()


def _alchemy(driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = sqlalchemy.create_engine(bare(url, f"postgresql+{driver}"), poolclass=NullPool)
        with engine.connect() as connection:
            yield Alchemy(connection)

    return opened


def _alchemy_async(driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(bare(url, f"postgresql+{driver}"), poolclass=NullPool)
        async with engine.connect() as connection:
            yield AsyncAlchemy(connection)

    return opened


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[Caller]:
    with Session(sqlalchemy.create_engine(bare(url, "postgresql+psycopg"), poolclass=NullPool)) as session:
        yield Alchemy(session)


@asynccontextmanager
async def _scoped_session(url: str) -> AsyncIterator[Caller]:
    scope = scoped_session(sessionmaker(sqlalchemy.create_engine(bare(url, "postgresql+psycopg2"), poolclass=NullPool)))
    yield Alchemy(scope)
    scope.remove()


@asynccontextmanager
async def _async_session(url: str) -> AsyncIterator[Caller]:
    async with AsyncSession(create_async_engine(bare(url, "postgresql+asyncpg"), poolclass=NullPool)) as session:
        yield AsyncAlchemy(session)


@asynccontextmanager
async def _async_scoped_session(url: str) -> AsyncIterator[Caller]:
    maker = async_sessionmaker(create_async_engine(bare(url, "postgresql+psycopg"), poolclass=NullPool))
    scope = async_scoped_session(maker, scopefunc=lambda: None)
    yield AsyncAlchemy(scope)
    await scope.remove()


SYNCHRONOUS: dict[str, Open] = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "sqlalchemy-psycopg": _alchemy("psycopg"),
    "sqlalchemy-psycopg2": _alchemy("psycopg2"),
    "session": _session,
    "scoped-session": _scoped_session,
}
ASYNCHRONOUS: dict[str, Open] = {
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "psycopg-async": _psycopg_async,
    "sqlalchemy-asyncpg": _alchemy_async("asyncpg"),
    "sqlalchemy-psycopg-async": _alchemy_async("psycopg"),
    "async-session": _async_session,
    "async-scoped-session": _async_scoped_session,
}
CALLERS = SYNCHRONOUS | ASYNCHRONOUS
