"""The schema's version, and how it moves forward."""

from __future__ import annotations

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.connection import Link
from duetime.store.postgres.statements import in_schema, statements, steps
from duetime.store.sql import Statements


async def is_current(link: Link, sql: Statements) -> bool:
    """Tell whether all migrations have run; a schema from a newer version is refused."""
    [[known]] = await link.rows(sql.has_versions)
    return known and await _version(link, sql) == len(steps())


async def migrate(link: Link, schema: str, now: Instant) -> list[str]:
    """Run the missing migrations, all in one transaction, and name them.

    Processes that start at once wait for one another: whoever comes second finds nothing left to do. The version row of a step
    is written before its statements.
    """
    sql = statements(schema)
    done = []
    async with link.connection.transaction():
        await link.rows(sql.lock_migrations)
        [[exists]] = await link.rows(sql.has_schema)
        if not exists:
            await link.script(in_schema("create schema duetime.x", schema).removesuffix(".x"))
        [[known]] = await link.rows(sql.has_versions)
        if not known:
            await link.script(sql.create_versions)
        current = await _version(link, sql)
        for step in steps():
            if step.version > current:
                await link.rows(sql.add_version, [step.version, step.name, now])
                await link.script(in_schema(step.text, schema))
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


def refuse_old() -> StoreUnavailable:
    """Refuse to work on tables that are not there or not up to date."""
    return StoreUnavailable("the store's tables are missing or older than this version; run `duetime migrate`")


async def _version(link: Link, sql: Statements) -> int:
    [[current]] = await link.rows(sql.current_version)
    if current > len(steps()):
        raise StoreUnavailable(
            f"the store's tables have version {current}, but this Duetime knows up to {len(steps())}; upgrade Duetime on this machine"
        )
    return int(current)
