"""The cost ledger (`make costs`) counts exactly, and the page that keeps it is whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bench.costs.ledger import BEGIN as TABLE_BEGIN
from bench.costs.ledger import COSTS, END, PAGE, Ledger, grown, kept
from bench.costs.measuring import CASES, Version, measure, phases_of
from bench.costs.sqlite_meter import SqliteMeter
from bench.costs.stores import PostgresServer, SqliteFile
from bench.costs.wire_meter import MeteredConversation, WireMeter
from bench.rounds import ROOT

ROWS = [(store, case, phase) for store in (SqliteFile.name, PostgresServer.name) for case in CASES for phase in phases_of(case)]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> SqliteMeter:
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)  # put back after the test
    return SqliteMeter.install()


def test_statements_transactions_and_log_bytes_of_sqlite_are_counted(meter: SqliteMeter, tmp_path: Path) -> None:
    connection = sqlite3.connect(str(tmp_path / "counted.db"), isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table numbers (n integer)")

    def insert(times: int) -> dict[str, float]:
        before = meter.read()
        connection.execute("begin immediate")
        connection.executemany("insert into numbers values (?)", [(number,) for number in range(3)])
        for _ in range(times):
            connection.execute("select count(*) from numbers").fetchall()
        connection.execute("commit")
        return meter.since(before)

    frame = 24 + connection.execute("pragma page_size").fetchone()[0]
    once, twice = insert(1), insert(2)
    connection.close()
    assert {**once, "longest": 0} == {"statements": 6, "transactions": 1, "wal": frame, "longest": 0}
    assert {**twice, "longest": 0} == {"statements": 7, "transactions": 1, "wal": frame, "longest": 0}
    assert once["longest"] > 0


def test_a_transaction_that_could_not_begin_is_not_counted(meter: SqliteMeter, tmp_path: Path) -> None:
    first, second = (sqlite3.connect(str(tmp_path / "counted.db"), isolation_level=None, timeout=0) for _ in range(2))
    first.execute("begin immediate")
    before = meter.read()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        second.execute("begin immediate")
    first.execute("commit")
    second.execute("begin immediate")
    second.execute("commit")
    counted = meter.since(before)
    first.close()
    second.close()
    assert counted["transactions"] == 2


def test_a_log_that_begins_again_is_followed(meter: SqliteMeter, tmp_path: Path) -> None:
    connection = sqlite3.connect(str(tmp_path / "counted.db"), isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table numbers (n integer)")
    frame = 24 + connection.execute("pragma page_size").fetchone()[0]
    before = meter.read()
    for _ in range(3):
        connection.execute("insert into numbers values (1)")
        connection.execute("pragma wal_checkpoint(restart)").fetchall()
    grew = meter.since(before)["wal"]
    connection.close()
    assert grew == 3 * frame


def test_round_trips_and_transactions_are_counted_on_the_wire() -> None:
    def message(kind: bytes, body: bytes = b"") -> bytes:
        return kind + (4 + len(body)).to_bytes(4) + body

    idle, inside = message(b"Z", b"I"), message(b"Z", b"T")
    done = message(b"C", b"SELECT 1\0")
    meter = WireMeter()
    conversation = MeteredConversation(meter)
    conversation.client((8).to_bytes(4) + (80_877_103).to_bytes(4))  # is there encryption?
    conversation.server(b"N")
    conversation.client(b"\0\0\0\x08\0\3\0\0")
    conversation.server(message(b"R", b"\0\0\0\0") + idle)
    before = meter.read()
    conversation.client(b"begin")
    conversation.server(done + inside)
    conversation.client(b"a long ")
    conversation.client(b"request")
    conversation.server(message(b"D", b"row") + done[:4])
    conversation.server(done[4:] + inside)
    conversation.client(b"commit")
    conversation.server(done + idle)
    conversation.server(message(b"A", b"a notification that nobody asked for"))
    conversation.client(b"one statement")
    conversation.server(done + idle)
    assert {**meter.since(before), "longest": 0} == {"statements": 4, "round_trips": 4, "transactions": 2, "longest": 0}


def test_a_case_is_measured_on_sqlite(tmp_path: Path) -> None:
    version, store, tasks = Version("now", ROOT), SqliteFile(tmp_path), 50
    counts = measure(version, store, "plain", tasks, count=True)
    assert counts["submit"]["transactions"] * tasks == pytest.approx(1)  # one call, one commit
    assert counts["submit"]["statements"] >= 1  # every task is a row of its own
    assert 0 < counts["run"]["transactions"] < counts["run"]["statements"]
    assert all(counts[phase]["wal"] > 0 for phase in ("submit", "run"))
    spent = measure(version, store, "single", tasks, count=False)
    assert spent.keys() == {"submit"}
    assert spent["submit"]["program"] > 0


def test_what_has_grown_is_named() -> None:
    row = ("SQLite", "plain", "submit")
    before, after = Ledger("a"), Ledger("b")
    for _ in range(3):
        before.note(row, {"statements": 2.0, "transactions": 1.0, "longest": 0.1})
        after.note(row, {"statements": 4.0, "transactions": 1.02, "longest": 9.0})
    assert grown(before, after) == ["SQLite, plain, submit: statements +100.0%, rounds differ by ±0%"]


def test_the_page_names_every_case_on_every_store_as_the_kept_figures_do() -> None:
    table = PAGE.read_text().partition(TABLE_BEGIN)[2].partition(END)[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == ["store", "case", "phase", *COSTS.values()]
    assert [tuple(line[:3]) for line in lines[2:]] == ROWS
    assert list(kept()) == ROWS
    for line in lines[2:]:
        for name, cell in zip(COSTS, line[3:], strict=True):
            value = kept()[line[0], line[1], line[2]].get(name)
            assert cell == "–" if value is None else float(cell.partition(" ")[0].replace(",", "")) == pytest.approx(value, rel=0.01)
