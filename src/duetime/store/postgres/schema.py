"""The schema's version, and how it moves forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Link
from duetime.store.postgres.statements import in_schema, statements, steps

ENCODING = "UTF8"

# What making our tables meets where there are others of the same names: tables, functions, types, a table of versions with other columns.
_CLASH = (
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateFunctionError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedColumnError,
    asyncpg.DatatypeMismatchError,
)


async def version(link: Link, address: Address) -> int | None:
    """Give the version of the tables, None if there are none; those of a newer Duetime are refused."""
    sql = statements(address.schema)
    [[known]] = await link.rows(sql.has_versions)
    if not known:
        return None
    with _clashes(address):
        return await _version(link, address)


def newest() -> int:
    """Give the version that this Duetime needs."""
    return len(steps())


async def migrate(link: Link, address: Address, now: Instant) -> list[str]:
    """Run the missing migrations, all in one transaction, and name them.

    Processes that start at once wait for one another: whoever comes second finds nothing left to do. The version row of a step
    is written before its statements.
    """
    with _clashes(address):
        async with link.connection.transaction():
            return await _migrate(link, address, now)


@contextmanager
def _clashes(address: Address) -> Iterator[None]:
    """Say that somebody else's tables are in the way, where statements meet them."""
    try:
        yield
    except _CLASH as error:
        quoted = in_schema("duetime.x", address.schema).removesuffix(".x")
        raise StoreUnavailable(
            f"the schema {address.schema} of the store {address.shown} already holds tables that are not Duetime's, or of an earlier "
            f"commit that was never released ({error}); name another schema in the URL (?schema=…), or remove this one with all that "
            f"is in it: drop schema {quoted} cascade"
        ) from error


async def _migrate(link: Link, address: Address, now: Instant) -> list[str]:
    sql = statements(address.schema)
    done = []
    await link.rows(sql.lock_migrations)
    [[encoding, database]] = await link.rows(sql.encoding)
    if encoding != ENCODING:
        raise StoreUnavailable(
            f"the store {address.shown} needs a database with encoding {ENCODING}, and {database} has {encoding}; make one with "
            f"create database … encoding '{ENCODING}' locale 'C' template template0, and name that in the URL"
        )
    [[exists]] = await link.rows(sql.has_schema)
    if not exists:
        await link.script(in_schema("create schema duetime.x", address.schema).removesuffix(".x"))
    [[known]] = await link.rows(sql.has_versions)
    if not known:
        await link.script(sql.create_versions)
    current = await _version(link, address)
    for step in steps():
        if step.version > current:
            await link.rows(sql.add_version, [step.version, step.name, now])
            await link.script(in_schema(step.text, address.schema))
            done.append(f"{step.version:04d} {step.name}")
    return done


def script(schema: str) -> str:
    """Give all migrations as one text that a person may read and run."""
    sql = statements(schema)
    name = in_schema("duetime.x", schema).removesuffix(".x")
    parts = ["begin;", f"create schema if not exists {name};", f"{sql.create_versions};"]
    for step in steps():
        parts.append(in_schema(f"insert into duetime.version (version, name, applied_at) values ({step.version}, '{step.name}', "
                               "(extract(epoch from now()) * 1000000)::bigint);", schema))  # fmt: skip
        parts.append(in_schema(step.text, schema).strip())
    return "\n\n".join([*parts, "commit;"]) + "\n"


def refuse_old(address: Address, found: int | None) -> StoreUnavailable:
    """Refuse to work on tables that are not there or not up to date."""
    if found is None:
        return StoreUnavailable(f"the store {address.shown} has no tables of Duetime in its schema {address.schema}; run `duetime migrate`")
    return StoreUnavailable(
        f"the tables in the schema {address.schema} of the store {address.shown} have version {found}, older than the {newest()} "
        "that this Duetime needs; run `duetime migrate`"
    )


async def _version(link: Link, address: Address) -> int:
    sql = statements(address.schema)
    [[current]] = await link.rows(sql.current_version)
    if current > newest():
        raise StoreUnavailable(
            f"the tables in the schema {address.schema} of the store {address.shown} have version {current}, but this Duetime knows up to "
            f"{newest()}; upgrade Duetime on this machine"
        )
    return int(current)
