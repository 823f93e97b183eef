"""Stores that tests use one after the other are as new each time."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from duetime.store.open import store_from_url
from tests.conformance.build import new_task
from tests.servers import running
from tests.servers.schemas import Schemas


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    schemas = Schemas(running.newest_postgres())
    yield schemas
    schemas.close()


def address(schema: str) -> str:
    return running.postgres_url(running.newest_postgres(), schema=schema)


def rows(schema: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(running.postgres_url(running.newest_postgres())) as connection:
        return connection.execute(sql.format(schema).encode()).fetchall()


async def test_a_store_is_empty_and_another_one_when_the_next_test_takes_it(schemas: Schemas) -> None:
    schema = schemas.take()
    [new] = rows(schema, "select identity, lanes_version from {}.control")
    store = store_from_url(address(schema))
    await store.open()
    await store.add([new_task(), new_task(key="one")])
    await store.close()
    schemas.give_back(schema)
    assert schemas.take() == schema
    [(identity, lanes)] = rows(schema, "select identity, lanes_version from {}.control")
    assert (identity != new[0], lanes) == (True, new[1])
    assert rows(schema, "select count(*) from {0}.due, {0}.task, {0}.lane") == [(0,)]
    schemas.give_back(schema)


@pytest.mark.parametrize(
    "change",
    [
        "create or replace function {}.clock() returns bigint language sql as 'select 1::bigint'",
        "alter table {}.task add column surprise text",
        "delete from {}.version",
        "drop schema {} cascade",
    ],
)
def test_a_store_whose_tables_or_functions_were_changed_is_not_used_again(schemas: Schemas, change: str) -> None:
    schema = schemas.take()
    with psycopg.connect(running.postgres_url(running.newest_postgres())) as connection:
        connection.execute(change.format(schema).encode())
    schemas.give_back(schema)
    other = schemas.take()
    assert other != schema
    schemas.give_back(other)
