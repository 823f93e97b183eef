"""The checker itself: a good history passes, and each broken one is found out."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.fleet import ROOT
from tests.chaos.history import Event, History, Journal, read

A, B = "task-a", "task-b"


def event(kind: str, at: float, task: str = A, fence: int = 1, pid: int = 1, **more: object) -> Event:
    return Event(kind=kind, at=at, wall=100 + at, task=task, fence=fence, pid=pid, handler="h", **more)  # type: ignore[arg-type]


SUBMITTED = event("submitted", 0)
START, END = event("start", 1), event("end", 2, how="returned")
DONE = {A: "succeeded"}


def again(at: float) -> list[Event]:
    """Give a second attempt, in another process."""
    return [event("start", at, fence=2, pid=2), event("end", at + 2, fence=2, pid=2, how="returned")]


def found(events: list[Event], finals: dict[str, str] | None = None) -> list[str]:
    return [violation.partition(":")[0] for violation in History(sorted(events, key=lambda each: each.at)).violations(finals or DONE)]


def test_good_histories_pass() -> None:
    assert found([SUBMITTED, START, END]) == []
    assert found([SUBMITTED, START, Event(kind="killed", at=3, pid=1), *again(4)]) == []
    retried = [SUBMITTED, START, event("end", 2, how="ValueError"), event("start", 3, fence=2), event("end", 4, fence=2, how="returned")]
    assert found(retried) == []
    gated = [SUBMITTED, event("gate", 0.5), event("opened", 0.9), START, END]
    assert found(gated) == []
    cancelled = [SUBMITTED, event("cancelled", 1)]
    assert found(cancelled, {A: "cancelled"}) == []


@pytest.mark.parametrize(
    ("rule", "events", "finals"),
    [
        ("lost", [SUBMITTED], {A: "pending"}),
        ("lost", [SUBMITTED], {B: "succeeded"}),
        ("lost", [SUBMITTED, START], {A: "succeeded"}),
        ("lost", [SUBMITTED, START, event("end", 2, how="ValueError")], {A: "succeeded"}),
        ("unknown", [START, END], DONE),
        ("overlap", [SUBMITTED, START, END, *again(1.5)], DONE),
        ("overlap", [SUBMITTED, START, event("start", 1.5, fence=2, pid=2), Event(kind="killed", at=1.6, pid=1), END], DONE),
        ("overlap", [SUBMITTED, START, Event(kind="killed", at=3, pid=1), *again(2)], DONE),
        ("overlap", [SUBMITTED, START, END, event("overlap", 1.2, fence=2)], DONE),
        ("early", [SUBMITTED, event("start", 1, due=101.5), END], DONE),
        ("fence", [SUBMITTED, START, event("end", 1.5, how="x"), event("start", 3), event("end", 4, how="returned")], DONE),
        ("fence", [SUBMITTED, *again(-5), event("start", 3), event("end", 4, how="returned")], DONE),
        ("gate", [SUBMITTED, event("gate", 0.5), START, END], DONE),
        ("gate", [SUBMITTED, event("gate", 0.5, collection="eu"), event("start", 1, collection="eu"), END], DONE),
        ("gate", [SUBMITTED, event("gate", 0.5), event("start", 1, collection="eu"), END, event("opened", 3)], DONE),
        ("cancel", [SUBMITTED, event("cancelled", 0.5), START, END], DONE),
    ],
)
def test_a_broken_history_is_found_out(rule: str, events: list[Event], finals: dict[str, str]) -> None:
    assert rule in found(events, finals)


def test_a_gate_on_one_collection_leaves_the_others_alone() -> None:
    assert found([SUBMITTED, event("gate", 0.5, collection="eu"), event("start", 1, collection="us"), END]) == []


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write("submitted", task=A)
    journal.close()
    with (tmp_path / "journal").open("a") as file:
        file.write('{"kind": "start", "at"')
    assert [each.kind for each in read(tmp_path / "journal")] == ["submitted"]


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.chaos.history import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(500): journal.write('submitted', task=f'{sys.argv[2]}-{number}', how='x' * 200)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "journal"), str(each)], cwd=ROOT) for each in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len({each.task for each in read(tmp_path / "journal")}) == 1_500


def test_the_lock_of_an_attempt_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "print(1, flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    file = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)
