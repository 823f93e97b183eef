"""Schemas of a store on PostgreSQL that tests use one after the other.

To create one with all its tables and to drop it takes ten times as long as to empty it.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any, NamedTuple

import psycopg

from duetime.store.open import store_from_url
from tests.servers import running

MANY = 5_000  # rows that leave enough behind for later tests to notice
SINGLE_FACTS = ("version", "functions", "control")

# What a test may have changed besides rows. Partitions are left out: stores make them for each day, and they go with their rows.
_SHAPE = """
select md5(string_agg(part, ',' order by part)) from (
    select 'schema ' || coalesce(nspacl::text, '') as part from pg_namespace where oid = (%(schema)s::text)::regnamespace
    union all
    select concat('relation ', relname, relkind, reloptions, relacl, (
            select string_agg(concat(attname, atttypid, attnotnull), ' ' order by attnum) from pg_attribute
            where attrelid = c.oid and attnum > 0 and not attisdropped))
        from pg_class as c where relnamespace = (%(schema)s::text)::regnamespace and not relispartition
    union all
    select concat('function ', proname, md5(replace(prosrc, %(schema)s::text, '')), proconfig, proacl)
        from pg_proc where pronamespace = (%(schema)s::text)::regnamespace
    union all
    select concat('trigger ', tgname, tgenabled) from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = (%(schema)s::text)::regnamespace and not tgisinternal
) as parts
"""
_TABLES = """
select relname from pg_class where relnamespace = (%s::text)::regnamespace and relkind in ('r', 'p') and not relispartition order by relname
"""
_PARTITIONS = "select relname from pg_class where relnamespace = (%s::text)::regnamespace and relkind in ('r', 'p') and relispartition"
_SEQUENCES = "select sequencename, start_value, last_value from pg_sequences where schemaname = %s"


_schemas: dict[str, Schemas] = {}


def schemas(server: str) -> Schemas:
    """Return the empty stores on one of the session's servers."""
    if server not in _schemas:
        _schemas[server] = Schemas(server)
    return _schemas[server]


def end_schemas() -> None:
    while _schemas:
        _schemas.popitem()[1].close()


class Fresh(NamedTuple):
    """What a schema was like when it was new, and the statements that make it so again."""

    shape: str
    versions: list[Any]
    partitions: set[str]
    emptying: bytes
    restoring: bytes


class Schemas:
    """Empty stores on one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._spare: list[str] = []
        self._fresh: dict[str, Fresh] = {}
        # a lock that is still held here belongs to something that a test forgot to close
        self._connection = psycopg.connect(running.postgres_url(server), autocommit=True, connect_timeout=30, options="-c lock_timeout=20s")

    def take(self) -> str:
        """Return the name of a schema with the tables of a store and no rows."""
        return self._spare.pop() if self._spare else self._make()

    def give_back(self, schema: str) -> None:
        """Empty a schema, or drop it if more than some rows has changed there."""
        if self._is_intact(schema) and self._empty(schema):
            self._spare.append(schema)
        else:
            self.drop(schema)

    def drop(self, schema: str) -> None:
        self._fresh.pop(schema, None)
        self._connection.execute(f"drop schema if exists {schema} cascade".encode())

    def close(self) -> None:
        for schema in self._spare:
            self.drop(schema)
        self._connection.close()

    def _make(self) -> str:
        schema = f"t_{uuid.uuid4().hex[:20]}"

        async def open_once() -> None:
            store = store_from_url(running.postgres_url(self._server, schema=schema))
            await store.open()
            await store.close()

        opening = threading.Thread(target=lambda: asyncio.run(open_once()))  # a test's loop may run in this one
        opening.start()
        opening.join()
        tables = [name for (name,) in self._connection.execute(_TABLES, (schema,)) if name not in SINGLE_FACTS]
        sequences = self._connection.execute(_SEQUENCES, (schema,)).fetchall()
        restoring = [
            f"select setval('{schema}.{name}', {start if last is None else last}, {'false' if last is None else 'true'})"
            for name, start, last in sequences
        ]
        self._fresh[schema] = Fresh(
            self._shape(schema),
            self._versions(schema),
            self._partitions(schema),
            "; ".join(f"delete from {schema}.{table}" for table in tables).encode(),
            "; ".join([*restoring, self._restoring_control(schema)]).encode(),
        )
        return schema

    def _restoring_control(self, schema: str) -> str:
        """Return the statement that gives the store another identity, and all else that it has once the value of now."""
        cursor = self._connection.execute(f"select * from {schema}.control".encode())
        row = cursor.fetchone()
        assert row is not None
        assert cursor.description is not None
        facts = {column.name: value for column, value in zip(cursor.description, row, strict=True)}
        texts = [f"{name} = '{value}'" for name, value in facts.items() if name not in ("one", "identity")]
        return f"update {schema}.control set identity = gen_random_uuid(), {', '.join(texts)}"

    def _shape(self, schema: str) -> str:
        row = self._connection.execute(_SHAPE, {"schema": schema}).fetchone()
        assert row is not None
        return str(row[0])

    def _versions(self, schema: str) -> list[Any]:
        return self._connection.execute(f"select v::text from {schema}.version as v order by 1".encode()).fetchall() + (
            self._connection.execute(f"select f::text from {schema}.functions as f order by 1".encode()).fetchall()
        )

    def _partitions(self, schema: str) -> set[str]:
        return {name for (name,) in self._connection.execute(_PARTITIONS, (schema,))}

    def _is_intact(self, schema: str) -> bool:
        there = self._connection.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
        if there != (True,):
            return False
        fresh = self._fresh[schema]
        changed = (self._shape(schema), self._versions(schema)) != (fresh.shape, fresh.versions)
        return not changed and fresh.partitions <= self._partitions(schema)

    def _empty(self, schema: str) -> bool:
        """Delete all rows and restore what there is once; return whether they were few."""
        cursor = self._connection.execute(self._fresh[schema].emptying)  # one message, so one transaction
        deleted = cursor.rowcount
        while cursor.nextset():
            deleted += cursor.rowcount
        if made := self._partitions(schema) - self._fresh[schema].partitions:
            tables = ", ".join(f'{schema}."{name}"' for name in made)
            self._connection.execute(f"drop table if exists {tables}".encode())
        self._connection.execute(self._fresh[schema].restoring)
        return deleted < MANY
