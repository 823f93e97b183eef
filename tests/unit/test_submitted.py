"""Where lists by the time of submitting begin and end on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from duetime.clock import Instant, ManualClock
from duetime.model.query import Query, write_cursor
from duetime.store.sqlite import schema
from duetime.store.sqlite.read import _ALL, _WALKS, _Walk, seq_bounds
from duetime.store.sqlite.runner import SyncRunner, drive
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.submit import Submission
from tests.conformance.build import new_task

START = ManualClock().now()


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection, now=0)
        yield connection


def submit(connection: sqlite3.Connection, *instants: Instant) -> None:
    for instant in instants:
        drive(Submission(SyncRunner(connection), instant).add([new_task()]))


def facts(connection: sqlite3.Connection) -> tuple[int, int]:
    high, back = connection.execute(SQL.submitted_facts).fetchone()
    return high, back


def test_bounds_are_exact_while_the_clock_is_right(connection: sqlite3.Connection) -> None:
    submit(connection, *(START + number // 2 for number in range(40)))
    assert facts(connection) == (0, 0)
    connection.execute("delete from duetime_task where seq between 7 and 12 or seq in (1, 20, 40)")
    rows = connection.execute("select seq, submitted_at from duetime_task").fetchall()
    for instant in range(START - 1, START + 22):
        since, before = seq_bounds(connection, Query(submitted_after=instant, submitted_before=instant))
        assert since is not None
        assert before is not None
        matching = [seq for seq, submitted_at in rows if submitted_at < instant]
        assert [seq for seq, _ in rows if seq < before] == matching
        assert [seq for seq, _ in rows if seq < since] == matching


def test_an_old_setback_widens_no_later_list(connection: sqlite3.Connection) -> None:
    submit(connection, START, START + 1_000, START + 10, *range(START + 20, START + 3_000, 100))
    assert facts(connection) == (START + 1_000, 990)
    since, before = seq_bounds(connection, Query(submitted_after=START + 2_000, submitted_before=START + 2_500))
    rows = dict(connection.execute("select seq, submitted_at from duetime_task").fetchall())
    assert since is not None
    assert before is not None
    assert (rows[since], rows[since - 1]) == (START + 2_020, START + 1_920)
    assert (rows[before], rows[before - 1]) == (START + 2_520, START + 2_420)


def test_nothing_is_looked_for_where_it_is_not_asked_for(connection: sqlite3.Connection) -> None:
    submit(connection, START)
    assert seq_bounds(connection, Query()) == (None, None)
    assert seq_bounds(connection, Query(submitted_before=START, cursor=write_cursor(1))) == (None, None)


def test_an_empty_store_has_bounds_too(connection: sqlite3.Connection) -> None:
    assert seq_bounds(connection, Query(submitted_after=0, submitted_before=START)) == (0, 0)


@pytest.mark.parametrize("walk", [_ALL, *_WALKS.values()])
def test_a_walk_begins_and_ends_at_its_bounds(connection: sqlite3.Connection, walk: _Walk) -> None:
    text = f"explain query plan {SQL.record}\n{walk.source}\nwhere {walk.beyond} and {walk.since}\n{walk.order}"
    plan = [row[3] for row in connection.execute(text, {"limit": 10, "seq": 10, "since_seq": 1})]
    assert plan[0].startswith("SEARCH"), plan
    assert plan[0].endswith(("(rowid>? AND rowid<?)", "(task>? AND task<?)")), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan
