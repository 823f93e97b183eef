"""Making a store, and finding and repairing inconsistencies."""

import contextlib
import signal
import sqlite3
from pathlib import Path

from tests.cli.conftest import CommandLine, Program, Shop, until


def test_migrate_creates_a_store_and_leaves_a_current_one_alone(duetime: CommandLine) -> None:
    assert duetime.lines("migrate") == [f"{duetime.url} was created"]
    assert duetime.lines("migrate") == [f"{duetime.url} is up to date"]
    duetime("tasks")


def test_the_doctor_finds_nothing_in_a_healthy_store(duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("greet", "name=x", "--in", "1h")
    answer = duetime.lines("doctor")
    assert answer[-1] == "no problems"
    assert any(line.startswith("durability") and "survives" in line for line in answer)
    report = duetime.json("doctor")
    assert (report["healthy"], report["findings"], report["sqlite"]) == (True, [], sqlite3.sqlite_version)


def test_the_doctor_repairs_what_cannot_be(duetime: CommandLine, shop: Shop, tmp_path: Path) -> None:
    task_id = duetime.submit("greet", "name=x", "--key", "k", "--in", "1h")
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as damaged:
        damaged.execute("delete from duetime_due")
        damaged.commit()
    answer = duetime("doctor", code=1)
    assert f"problem: task without a location: {task_id}: is live but waits nowhere" in answer.stdout
    assert "1 problem left of 1" in answer.stdout
    assert duetime.lines("doctor", "--repair")[-1] == "1 problem, repaired"
    assert duetime.lines("doctor")[-1] == "no problems"
    assert duetime.json("task", task_id)["state"] == "pending"


def test_the_doctor_notes_work_without_a_worker_and_closed_gates(duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("greet", "name=x")
    duetime("gates", "pause", "fail")
    notes = [line for line in duetime.lines("doctor") if line.startswith("note: ")]
    assert notes[0] == "note: no worker: greet: 1 due task and no live worker that runs them"
    assert notes[1].startswith("note: closed gate: fail: pause all until it is opened, set by ")


def test_the_doctor_takes_tasks_back_from_a_dead_worker(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker() as worker:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/never")
        until(lambda: duetime.json("task", task_id)["state"] == "running", lambda: "the task to run")
        worker.signal(signal.SIGKILL)
        worker.process.wait()
    answer = duetime("doctor", code=1)
    assert "problem: dead worker: " in answer.stdout
    assert "what it holds (1 attempt) goes back" in answer.stdout
    assert "repaired: dead worker: " in duetime("doctor", "--repair").stdout
    assert duetime.json("task", task_id)["state"] == "pending"
    assert duetime.json("workers")["items"] == []


def test_top_of_an_empty_store_says_so(duetime: CommandLine) -> None:
    duetime("migrate")
    assert "no process has declared a handler yet" in duetime("top").stderr
