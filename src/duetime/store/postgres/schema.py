"""The schema's tables and functions, and how they move forward.

Tables are made by numbered steps, each of which runs once. Functions and views are code: they are made again whenever the program's differ
from those in the schema. `create or replace` keeps grants and running sessions as they are, and refuses to change the arguments and
results of a function, which an older program relies on; a signature that no program calls any more is dropped by a step of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import msgspec

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Link
from duetime.store.postgres.statements import FUNCTIONS, functions, functions_digest, in_schema, statements, steps

ENCODING = "UTF8"

# What making our tables meets where there are others of the same names: tables, functions, types, tables of versions with other columns.
_CLASH = (
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateFunctionError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedTableError,
    asyncpg.DatatypeMismatchError,
    asyncpg.InvalidFunctionDefinitionError,
    asyncpg.InvalidTableDefinitionError,
    asyncpg.WrongObjectTypeError,
)


class Versions(msgspec.Struct, frozen=True):
    """What a schema holds: the number of its tables, and the number and digest of its functions."""

    tables: int
    functions: int
    digest: str

    @property
    def current(self) -> bool:
        """Whether this Duetime can work with it as it is; newer functions serve the program before them as well."""
        return self.tables == newest() and not self.functions_behind

    @property
    def functions_behind(self) -> bool:
        return self.functions < FUNCTIONS or (self.functions == FUNCTIONS and self.digest != functions_digest())


async def versions(link: Link, address: Address) -> Versions | None:
    """Return what the schema holds, None if nothing; what only a newer Duetime can work with is refused."""
    [[known]] = await link.rows(statements(address.schema).has_versions)
    if not known:
        return None
    with _clashes(address):
        return await _versions(link, address)


def newest() -> int:
    """Return the version of the tables that this Duetime needs."""
    return len(steps())


async def migrate(link: Link, address: Address, now: Instant) -> None:
    """Run the missing steps and make the functions, all in one transaction.

    Processes that start at once wait for one another: the second one finds nothing left to do. The version row of a step
    is written before its statements.
    """
    with _clashes(address):
        try:
            async with link.connection.transaction():
                await _migrate(link, address, now)
        except asyncpg.InsufficientPrivilegeError as error:
            found = await versions(link, address)
            if found is None:
                raise
            # a role that works on the store but may not change it, after an upgrade: grants would not help
            raise refuse_old(address, found, may_not=str(error)) from error


@contextmanager
def _clashes(address: Address) -> Iterator[None]:
    """Turn errors of statements that meet other tables of the same names into a message that says so."""
    try:
        yield
    except _CLASH as error:
        quoted = in_schema("duetime.x", address.schema).removesuffix(".x")
        raise StoreUnavailable(
            f"the schema {address.schema} of the store {address.shown} already holds tables that are not Duetime's, or of an earlier "
            f"commit that was never released ({error}); name another schema in the URL (?schema=…), or remove this one with all that "
            f"is in it: drop schema {quoted} cascade"
        ) from error


async def _migrate(link: Link, address: Address, now: Instant) -> None:
    sql = statements(address.schema)
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
    found = await _versions(link, address) if known else Versions(0, 0, "")
    for step in steps():
        if step.version > found.tables:
            await link.rows(sql.add_version, [step.version, step.name, now])
            await link.script(in_schema(step.text, address.schema))
    if found.functions_behind:
        await link.rows(sql.note_functions, [FUNCTIONS, functions_digest(), now])
        await link.script(in_schema(functions(), address.schema))


def script(schema: str) -> str:
    """Return all that makes the tables and functions as one text that a person may read and run."""
    sql = statements(schema)
    name = in_schema("duetime.x", schema).removesuffix(".x")
    now = "(extract(epoch from now()) * 1000000)::bigint"
    parts = ["begin;", f"create schema if not exists {name};", f"{sql.create_versions};"]
    for step in steps():
        row = f"({step.version}, '{step.name}', {now})"
        parts.append(in_schema(f"insert into duetime.version (version, name, applied_at) values {row};", schema))
        parts.append(in_schema(step.text, schema).strip())
    row = f"({FUNCTIONS}, '{functions_digest()}', {now})"
    parts.append(in_schema(f"insert into duetime.functions (version, digest, made_at) values {row};", schema))
    parts.append(in_schema(functions(), schema).strip())
    return "\n\n".join([*parts, "commit;"]) + "\n"


def refuse_old(address: Address, found: Versions | None, may_not: str = "") -> StoreUnavailable:
    """Refuse to work on tables or functions that are not there or not up to date; `may_not`: why this role cannot bring them up to date."""
    if found is None:
        return StoreUnavailable(f"the store {address.shown} has no tables of Duetime in its schema {address.schema}; run `duetime migrate`")
    if found.tables < newest():
        what = (
            f"the tables in the schema {address.schema} of the store {address.shown} have version {found.tables}, older than the {newest()}"
        )
    else:
        what = f"the functions in the schema {address.schema} of the store {address.shown} are older than those"
    as_whom = f" as the role that owns them, for this one may not ({may_not})" if may_not else ""
    return StoreUnavailable(f"{what} that this Duetime needs; run `duetime migrate`{as_whom}")


async def _versions(link: Link, address: Address) -> Versions:
    sql = statements(address.schema)
    [[tables]] = await link.rows(sql.current_version)
    _refuse_newer("tables", tables, newest(), address)
    made = await link.rows(sql.current_functions)
    number, digest = made[0] if made else (0, "")
    _refuse_newer("functions", number, FUNCTIONS + 1, address)
    return Versions(tables, number, digest)


def _refuse_newer(what: str, found: int, known: int, address: Address) -> None:
    if found > known:
        raise StoreUnavailable(
            f"the {what} in the schema {address.schema} of the store {address.shown} have version {found}, but this Duetime knows up to "
            f"{known}; upgrade Duetime on this machine"
        )
