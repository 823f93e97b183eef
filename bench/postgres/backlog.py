"""Filling a database with tasks that are due next year and with finished ones, by multiplying a real one of each on the server."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.postgres.contestant import DUETIME
from bench.postgres.draining import drain
from bench.postgres.server import Server

CHUNK = 500_000
FINISHED = 1_000  # tasks that were really run, of which one is multiplied
YEAR, MONTH = 365 * 86_400, 30 * 86_400
COLUMNS = "select column_name from information_schema.columns where table_schema = 'duetime' and table_name = %s order by ordinal_position"


def fill(server: Server, database: str, number: int) -> None:
    """Make a database whose one lane holds so many far-future tasks, with as many finished tasks of the same handler."""
    url = server.url(database)
    server.fresh(database)
    DUETIME.do(url, "setup")
    DUETIME.do(url, "submit", FINISHED)
    drain(server, DUETIME, database, FINISHED, processes=1, left=0)
    DUETIME.do(url, "due", line=[time.time() + YEAR])
    # ids as if they had been submitted one after the other, a hundred in a millisecond, all of them before now
    finished, future = (_id(int(time.time() * 1e3) - 60_000 - calls * number // 100) for calls in (2, 1))
    with server.connect(database) as connection:
        connection.execute("set synchronous_commit = off")
        for start in range(1, number, CHUNK):
            stop = min(start + CHUNK, number)
            _multiply(connection, "due", start, stop, id=future, due_at=_spread("due_at"), pos=_spread("pos"))
        for start in range(FINISHED, number, CHUNK):
            stop = min(start + CHUNK, number)
            _multiply(connection, "history", start, stop, id=finished, finished_at=f"finished_at - ({number} - n) * 10")
        lane = "(select lane from duetime.history limit 1)"
        connection.execute(
            f"insert into duetime.tally (lane, state, n) values ({lane}, 'live', {number - 1}), "
            f"({lane}, 'succeeded', {number - FINISHED})".encode()
        )
    server.execute(database, "vacuum analyze", "checkpoint")


def _id(milliseconds: int) -> str:
    return f"(lpad(to_hex({milliseconds} + n / 100), 12, '0') || '7' || left(md5(n::text), 3) || '8' || right(md5(n::text), 15))::uuid"


def _spread(column: str) -> str:
    """Spread instants over a month, in another order than that of submitting; two tables get the same ones."""
    return f"{column} + (n * 7919::bigint % {MONTH}) * 1000000"


def _multiply(connection: psycopg.Connection[Any], table: str, start: int, stop: int, **changed: str) -> None:
    """Repeat the newest row of a table with other values in some columns; `n` counts."""
    names = [name for (name,) in connection.execute(COLUMNS, (table,)).fetchall()]
    values = ", ".join(changed.get(name, f"one.{name}") for name in names)
    one = f"(select * from duetime.{table} order by id desc limit 1) as one"
    statement = f"insert into duetime.{table} ({', '.join(names)}) select {values} from {one}, generate_series({start}, {stop - 1}) as n"
    connection.execute(statement.encode())
