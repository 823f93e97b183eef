"""The demo: it ends well by itself, cleans up when it is interrupted, and its report finds what it claims to rule out."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from duetime.cli.demo.command import verdict
from duetime.cli.demo.report import Evidence, Order, Product, Report, examine, print_report, read_journal
from duetime.cli.demo.shop import Entry
from tests.servers.waiting import PATIENCE

COMMAND = [sys.executable, "-m", "duetime.cli", "demo"]
BREACHES = ("lost", "expired although paid", "started although cancelled", "overlapping", "early", "stock wrong")
KILLED, DIED_AT = 11, 20_000


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


@pytest.mark.slow
def test_with_web_it_shows_itself_on_the_dashboard_until_it_is_interrupted(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--orders", "100", "--seconds", "3", "--web"], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    said = ""
    while "^C ends it" not in said:
        line = demo.stdout.readline()
        assert line, f"it ended too soon: {said}"
        said += line
    address = re.search(r"Dashboard: (http://\S+)", said)
    assert address is not None
    with urllib.request.urlopen(f"{address[1]}tasks", timeout=PATIENCE) as page:
        assert b"expire" in page.read()
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE)
    assert "Every promise was kept." in said
    assert list(tmp_path.iterdir()) == [], "it cleans up"


@pytest.mark.slow
def test_it_ends_by_itself_and_finds_every_promise_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--orders", "300", "--seconds", "4"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "SIGKILL" in done.stdout
    found = {name: re.search(rf"^ *{name} +(\S+)  ✓", done.stdout, re.MULTILINE) for name in BREACHES}
    assert {name: match and match[1] for name, match in found.items()} == dict.fromkeys(BREACHES, "0")
    numbers = {
        name: int(number.replace(",", "")) for name, number in re.findall(r"^  (\w[\w, ]+?)  +([\d,]+)  ", done.stdout, re.MULTILINE)
    }
    assert numbers["orders placed"] == 300
    assert numbers["paid, expiry cancelled"] + numbers["paid in the last moment"] + numbers["expired"] == 300
    assert numbers["expired"] > 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupt_ends_the_workers_and_removes_the_folder(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--orders", "300", "--seconds", "60"],
        env={**environment(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout.readline, "")
        workers = next(found for line in lines if (found := re.findall(r"processes (\d+) and (\d+)", line)))[0]
        demo.send_signal(number)
        assert demo.wait(PATIENCE) == 130
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


# ---- the report ----


def order(number: int, state: str, *, expires_at: int = 10_000, paid_at: int | None = None) -> Order:
    return Order(number, 0, 2, state, 0, expires_at, paid_at, 12_000 if state == "expired" else None)


def attempt(
    number: int, started_at: int, ended_at: int | None, *, attempt: int = 1, pid: int = 10, result: str = "restored"
) -> list[Entry]:
    start = Entry(number, f"task-{number}", attempt, pid, 10_000, started_at)
    return [start] if ended_at is None else [start, msgspec.structs.replace(start, ended_at=ended_at, result=result)]


def a_good_story() -> Evidence:
    """Order 1 expires, 2 is paid in time, 3 is hit by the kill and expires in its second attempt, 4 is paid while it runs."""
    return Evidence(
        orders=[order(1, "expired"), order(2, "paid", paid_at=5_000), order(3, "expired"), order(4, "paid", paid_at=11_000)],
        products=[Product(0, 100, 96)],
        journal=[
            *attempt(1, 10_001, 12_000),
            *attempt(3, 10_002, None, pid=KILLED),
            *attempt(4, 10_003, 12_000, result="paid"),
            *attempt(3, 20_001, 22_000, attempt=2),
        ],
        cancelled={2: 5_100},
        deaths={KILLED: DIED_AT},
    )


def breaches(report: Report) -> dict[str, list[int]]:
    return {name: list(found) for name, found in report.breaches.items() if found}


def test_a_good_story_has_no_breach_and_tells_the_hit_orders_apart() -> None:
    report = examine(a_good_story())
    assert report.all_kept
    assert breaches(report) == {}
    assert tuple(report.breaches) == BREACHES
    assert (report.placed, report.cancelled, report.paid_late, report.expired, report.run_twice, report.pieces) == (4, 1, 1, 2, 1, 4)
    assert [late for _, late in report.lateness] == [1, 3]
    assert [late for _, late in report.hit] == [10_001]


def test_an_attempt_that_was_claimed_but_never_started_counts_as_hit() -> None:
    evidence = a_good_story()
    journal = [entry for entry in evidence.journal if entry.pid != KILLED]
    report = examine(msgspec.structs.replace(evidence, journal=journal))
    assert report.all_kept
    assert [late for _, late in report.hit] == [10_001]


def without(number: int) -> Callable[[list[Entry]], list[Entry]]:
    return lambda journal: [entry for entry in journal if entry.order != number]


def without_ends(number: int) -> Callable[[list[Entry]], list[Entry]]:
    return lambda journal: [entry for entry in journal if entry.order != number or entry.ended_at is None]


def also(*entries: Entry) -> Callable[[list[Entry]], list[Entry]]:
    return lambda journal: [*journal, *entries]


@pytest.mark.parametrize(
    ("corrupt", "expected"),
    [
        pytest.param(without(1), {"lost": [1]}, id="an expired order that no attempt tells of"),
        pytest.param(without_ends(3), {"lost": [3]}, id="an order whose attempts never end"),
        pytest.param(also(*attempt(1, 11_000, 13_000, attempt=2)), {"overlapping": [1]}, id="a second attempt beside the first"),
        pytest.param(also(*attempt(3, 19_999, 20_500, attempt=3)), {"overlapping": [3]}, id="an attempt before the killed one was dead"),
        pytest.param(
            also(*attempt(1, 13_000, None), *attempt(1, 14_000, 15_000)), {"overlapping": [1]}, id="an attempt beside one without end"
        ),
        pytest.param(also(*attempt(4, 9_999, 9_999, result="paid")), {"early": [4]}, id="a start before the due time"),
        pytest.param(also(*attempt(2, 10_001, 12_000, result="paid")), {"started although cancelled": [2]}, id="a start after the cancel"),
        pytest.param(also(*attempt(4, 13_000, 14_000)), {"expired although paid": [4]}, id="stock restored for a paid order"),
    ],
)
def test_a_corrupted_journal_is_a_breach(corrupt: Callable[[list[Entry]], list[Entry]], expected: dict[str, list[int]]) -> None:
    evidence = a_good_story()
    report = examine(msgspec.structs.replace(evidence, journal=corrupt(list(evidence.journal))))
    assert breaches(report) == expected
    assert not report.all_kept


def test_an_open_order_is_lost_and_a_wrong_stock_is_found() -> None:
    evidence = a_good_story()
    orders = [*evidence.orders, order(5, "open")]
    report = examine(msgspec.structs.replace(evidence, orders=orders, products=[Product(0, 100, 95)]))
    assert breaches(report) == {"lost": [5], "stock wrong": [0]}


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_the_terminal_and_names_what_is_broken(width: int) -> None:
    evidence = a_good_story()
    broken = msgspec.structs.replace(evidence, journal=without(1)(list(evidence.journal)))
    written = io.StringIO()
    print_report(Console(width=width, file=written), examine(broken), broken)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any(re.match(r" *lost +1  ✗ broken, for example 1$", line) for line in lines)
    assert any("▲ SIGKILL at 0.0 s" in line for line in lines)


def test_the_exit_code_tells_whether_all_promises_were_kept() -> None:
    good, written = a_good_story(), io.StringIO()
    assert verdict(Console(file=written), good) == 0
    assert "Every promise was kept." in written.getvalue()
    broken = msgspec.structs.replace(good, journal=without(1)(list(good.journal)))
    assert verdict(Console(file=written), broken) == 1
    assert "Promises were broken: lost 1." in written.getvalue()


def test_the_journal_is_read_line_by_line_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert read_journal(path) == ([], 0)
    first, second = (msgspec.json.encode(entry) + b"\n" for entry in attempt(1, 10_001, 12_000))
    path.write_bytes(first + second[:10])
    entries, offset = read_journal(path)
    assert [entry.ended_at for entry in entries] == [None]
    path.write_bytes(first + second)
    entries, offset = read_journal(path, offset)
    assert [entry.ended_at for entry in entries] == [12_000]
    assert offset == len(first + second)
