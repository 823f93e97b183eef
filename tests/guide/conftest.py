"""The guide's chapters share one App on a fresh file and, where work is done, a worker beside the test."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from duetime import App
from tests.guide import shop
from tests.servers import running


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/duetime.db", user="anna@shop") as app:
        yield app


@pytest.fixture
def postgres_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty PostgreSQL database of the test's own."""
    server = running.newest_postgres()
    name = f"guide_{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]}"
    with psycopg.connect(running.postgres_url(server), autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)".encode())
        connection.execute(f"create database {name}".encode())
        yield running.postgres_url(server, database=name)
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def fresh_shop() -> Iterator[None]:
    """Let the next test find the shop as it was."""
    yield
    shop.orders.clear()
    shop.opened.clear()
    shop.seen.clear()
