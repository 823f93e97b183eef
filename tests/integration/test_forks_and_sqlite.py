"""Forks of a process that uses SQLite: none is made while a thread is inside it, where the copy could never use it again."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from duetime.store.sqlite.connection import DatabaseThread, connect
from tests.servers.waiting import PATIENCE

STILL = 0.1  # seconds in which a fork that does not wait is made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[DatabaseThread]:
    opening = partial(connect, str(tmp_path / "store.db"), synchronous="full", writes=True)
    database = DatabaseThread(opening, name="writer", writes=True, patience=PATIENCE, path=str(tmp_path / "store.db"))
    yield database
    database.stop()


def test_a_fork_waits_for_the_end_of_a_transaction_and_its_copy_may_write(database: DatabaseThread, tmp_path: Path) -> None:
    begun, forking, forked = threading.Event(), threading.Event(), threading.Event()
    inside: list[str] = []

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("create table numbers (number integer)")
        inside.append("a transaction")
        begun.set()
        assert forking.wait(PATIENCE)
        forked.wait(STILL)
        inside.clear()

    writing = threading.Thread(target=database.call, args=(work,))
    writing.start()
    assert begun.wait(PATIENCE)
    codes: list[int] = []

    def fork() -> None:
        forking.set()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if not inside:
                    with sqlite3.connect(tmp_path / "store.db", timeout=PATIENCE) as connection:
                        connection.execute("insert into numbers values (1)")
                    code = 0
            finally:
                os._exit(code)
        forked.set()
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    forker = threading.Thread(target=fork)
    forker.start()
    forker.join(PATIENCE)
    writing.join(PATIENCE)
    assert codes == [0]
    assert database.call(lambda connection: connection.execute("select number from numbers").fetchall()) == [(1,)]


def test_threads_go_on_after_a_fork(database: DatabaseThread) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert database.call(lambda connection: connection.execute("select 1").fetchall()) == [(1,)]
