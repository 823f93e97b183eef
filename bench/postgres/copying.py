"""COPY of the rows that a bulk of submitted tasks makes, into the same tables and indexes, with the same commits.

The rows are taken from a database in which Duetime has stored tasks, in PostgreSQL's binary form and in batches as large as
Duetime's calls were, before the time begins. So nothing is measured but the server that takes them and commits.
"""

from __future__ import annotations

import io
import sys
import time

import asyncpg
import uvloop

from bench.peers.lines import BATCH, say

TABLES = ("due", "tally")  # short plain tasks are nowhere else


async def copy(source: str, target: str) -> float:
    """Return the tasks copied a second."""
    reading = await asyncpg.connect(source)
    tasks = int(await reading.fetchval("select count(*) from duetime.due"))
    batches = [
        [await _rows(reading, table, start if table != "tally" else start // BATCH, BATCH if table != "tally" else 1) for table in TABLES]
        for start in range(0, tasks, BATCH)
    ]
    await reading.close()
    writing = await asyncpg.connect(target)
    began = time.perf_counter()
    for batch in batches:
        async with writing.transaction():
            for table, rows in zip(TABLES, batch, strict=True):
                await writing.copy_to_table(table, schema_name="duetime", source=io.BytesIO(rows), format="binary")
    elapsed = time.perf_counter() - began
    copied = int(await writing.fetchval("select count(*) from duetime.due"))
    assert copied == tasks, (copied, tasks)
    await writing.close()
    return tasks / elapsed


async def _rows(connection: asyncpg.Connection[asyncpg.Record], table: str, start: int, count: int) -> bytes:
    """Return rows in the order in which they were stored."""
    rows = io.BytesIO()
    await connection.copy_from_query(
        f"select * from duetime.{table} order by ctid offset {start} limit {count}", output=rows, format="binary"
    )
    return rows.getvalue()


if __name__ == "__main__":
    say({"rate": uvloop.run(copy(sys.argv[1], sys.argv[2]))})
