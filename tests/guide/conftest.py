"""The guide's chapters share one App on a fresh file and, where work is done, a worker beside the test."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from duetime import App
from tests.guide import shop
from tests.servers import running

# Chapters about what stores do run on each kind of store: `app` is on one after the other. The others are about targets, brokers and
# the testing kit, which do the same on each.
ON_EACH_STORE = {
    "test_1_first_steps",
    "test_2_handlers",
    "test_3_operating",
    "test_events",
    "test_jobs",
    "test_limits",
    "test_locks",
    "test_other_schedulers",
    "test_user_guide",
    "test_user_guide_operating",
    "test_user_guide_running",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any("app" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "app" in metafunc.fixturenames and not chosen and metafunc.module.__name__.rpartition(".")[2] in ON_EACH_STORE:
        metafunc.parametrize("app", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    on_postgres = getattr(request, "param", "sqlite") == "postgres"
    url = request.getfixturevalue("postgres_url") if on_postgres else f"sqlite:///{tmp_path}/duetime.db"
    async with App(url, user="anna@shop") as app:
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
