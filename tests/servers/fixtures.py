"""Fixtures for tests that need a real server. A server that is missing fails the tests that ask for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from tests.servers import postgres, running
from tests.servers.installations import installations
from tests.servers.log import excerpt
from tests.servers.postgres import Postgres
from tests.servers.schemas import end_schemas, schemas

NewPostgres: TypeAlias = Callable[..., Postgres]
NEWEST = "postgres-18"


_log_sizes = pytest.StashKey[dict[Path, int]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_log_sizes] = {server.folder: server.log_size() for server in postgres.started}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the servers wrote during this test."""
    report = yield
    if report.failed:
        sizes = item.stash.get(_log_sizes, {})
        logs = {server: excerpt(server.log(since=sizes.get(server.folder, 0))) for server in postgres.started}
        report.sections += [(f"log of {server.name} during this test", log) for server, log in logs.items() if log]
    return report


def pytest_sessionfinish() -> None:
    end_schemas()
    running.end()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The address of an empty store on the newest server, which another test has emptied for this one."""
    name = running.newest_postgres()
    schema = schemas(name).take()
    yield running.postgres_url(name, schema=schema)
    schemas(name).give_back(schema)


@pytest.fixture
def bare_postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a schema of the test's own on the newest server; there is no such schema before the test or after it."""
    name = running.newest_postgres()
    schema = f"t_{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]}"
    yield running.postgres_url(name, schema=schema)
    with psycopg.connect(running.postgres_url(name), autocommit=True) as connection:
        connection.execute(f"drop schema if exists {schema} cascade".encode())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked so on each kind of store."""
    if metafunc.definition.get_closest_marker("each_store") is not None:
        metafunc.parametrize("store_url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store: a SQLite file, and for a test that is marked `each_store` PostgreSQL too."""
    on_postgres = getattr(request, "param", "sqlite") == "postgres"
    return str(request.getfixturevalue("postgres_url")) if on_postgres else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def new_postgres() -> Iterator[NewPostgres]:
    """Starts servers of the test's own, to be killed and changed at will; they are gone after the test."""
    with ExitStack() as stack:

        def new_postgres(name: str = NEWEST, settings: Mapping[str, str] | None = None) -> Postgres:
            return stack.enter_context(Postgres(installations()[name], settings))

        yield new_postgres
