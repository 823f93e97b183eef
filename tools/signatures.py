"""Write store/postgres/functions/signatures.txt: what a released program may call and read in a PostgreSQL schema.

Run it with each release, on an empty server or one whose schema `signatures` may be dropped: `python -m tools.signatures postgresql://…`.
Until the next release a test holds the schema to it, so that a worker of the release goes on while newer programs start beside it.
"""

import asyncio
import sys
from pathlib import Path

import psycopg

from duetime.store.open import store_from_url
from duetime.store.postgres.statements import FUNCTIONS

FILE = Path(__file__).resolve().parent.parent / "src" / "duetime" / "store" / "postgres" / "functions" / "signatures.txt"
SCHEMA = "signatures"
_NOTES = f"""\
# What programs with the functions of number {FUNCTIONS} call and read. Written by `python -m tools.signatures`.
"""
_QUERY = """
select format('%%s %%s(%%s)%%s', case p.prokind when 'p' then 'procedure' else 'function' end, p.proname, pg_get_function_arguments(p.oid),
    coalesce(' returns ' || pg_get_function_result(p.oid), ''))
from pg_proc as p where p.pronamespace = %(schema)s::regnamespace
union all
select format('%%s %%s.%%s %%s', case c.relkind when 'v' then 'view' else 'table' end, c.relname, a.attname,
    format_type(a.atttypid, a.atttypmod))
from pg_class as c join pg_attribute as a on a.attrelid = c.oid
where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
and a.attnum > 0 and not a.attisdropped
"""


def signatures(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> set[str]:
    """Return a line for each function with what it takes and returns, and for each column of a table or view."""
    found = connection.execute(_QUERY.encode(), {"schema": schema}).fetchall()
    return {str(line).replace(f"{schema}.", "duetime.") for (line,) in found}


def recorded() -> set[str]:
    """Return the lines as the last release had them."""
    return {line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")}


async def _make(url: str) -> None:
    store = store_from_url(f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}")
    await store.open()
    await store.close()


def main(url: str) -> None:
    asyncio.run(_make(url))
    with psycopg.connect(url, autocommit=True) as connection:
        lines = sorted(signatures(connection, SCHEMA))
        connection.execute(f"drop schema {SCHEMA} cascade".encode())
    FILE.write_text(_NOTES + "\n".join(lines) + "\n", "utf-8")
    print(f"{FILE}: {len(lines)} lines")


if __name__ == "__main__":
    main(sys.argv[1])
