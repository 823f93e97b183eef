"""The checker itself: a good history passes, and each broken one is found out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duetime.model.fences import ATTEMPTS
from tests.chaos.fleet import ROOT
from tests.chaos.history import Event, History, Journal, read
from tests.chaos.journal import locked

A, B = "task-a", "task-b"


def event(kind: str, at: float, task: str = A, fence: int = 1, pid: int = 1, **more: object) -> Event:
    return Event(kind=kind, at=at, wall=100 + at, task=task, fence=fence, pid=pid, handler="h", **more)  # type: ignore[arg-type]


SUBMITTED = event("submitted", 0)
START, END = event("start", 1), event("end", 2, how="returned")
DONE = {A: "succeeded"}


def again(at: float) -> list[Event]:
    """Give a second attempt, in another process."""
    return [event("start", at, fence=2, pid=2), event("end", at + 2, fence=2, pid=2, how="returned")]


def found(events: list[Event], finals: dict[str, str] | None = None, **more: dict[str, int]) -> list[str]:
    history = History(sorted(events, key=lambda each: each.at))
    return [violation.partition(":")[0] for violation in history.violations(DONE if finals is None else finals, **more)]


def ran(at: float, fence: int, worker: int, how: str = "returned") -> list[Event]:
    """Give an attempt of a second."""
    facts = {"fence": fence, "worker": worker, "pid": worker}
    return [event("start", at, **facts), event("end", at + 1, how=how, **facts)]  # type: ignore[arg-type]


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


def test_a_task_that_was_ended_by_another_attempt_than_its_last_is_found_out() -> None:
    lost = [SUBMITTED, *ran(1, 1, 7), Event(kind="died", at=2.5, pid=7), *ran(4, 2, 8)]
    assert found(lost, ended_by={A: 2}) == []
    assert found(lost, ended_by={A: 1}) == ["stale"]
    assert found([SUBMITTED, *ran(1, 1, 7, "ValueError"), *ran(4, 2, 7)], ended_by={A: 3}) == ["stale"]


def test_an_attempt_that_nothing_explains_is_found_out() -> None:
    repeated = [SUBMITTED, *ran(1, 1, 7), *ran(4, 2, 8)]
    assert found(repeated) == ["again"]
    assert found([*repeated, Event(kind="died", at=9, pid=7)]) == []
    assert found([SUBMITTED, *ran(1, 1, 7, "RuntimeError"), *ran(4, 2, 8)]) == []


def test_more_attempts_at_once_than_slots_are_found_out() -> None:
    events = [SUBMITTED, event("submitted", 0, B), *ran(1, 1, 7)]
    events += [event("start", 1.5, B, worker=7, pid=7), event("end", 3, B, worker=7, pid=7, how="returned")]
    both = {A: "succeeded", B: "succeeded"}
    assert found(events, both, slots={"h": 2}) == []
    assert found(events, both, slots={"h": 1}) == ["slots"]


def test_what_is_early_goes_by_the_stores_clock() -> None:
    waiting = [SUBMITTED, event("start", 1, due=101.5), END]
    assert found([*waiting, event("stepped", 0.5, offset=3_600)]) == []
    assert found([*waiting, event("stepped", -9, offset=3_600), event("stepped", -4.5)]) == ["early"]
    assert found([*waiting, event("stepped", -9, offset=3_600), event("stepped", 0.9, offset=-3_600)]) == [], "claimed before that"


def test_a_fail_over_excuses_only_what_it_can_take_back() -> None:
    severed, promoted = event("severed", 3), event("promoted", 5)
    assert found([event("submitted", 4), severed, promoted], {}) == []
    assert found([event("submitted", 2), severed, promoted], {}) == ["lost"]
    assert found([event("submitted", 6), severed, promoted], {}) == ["lost"]
    again = ATTEMPTS + 1  # the fence of attempt 1 in the next epoch
    rewound = [SUBMITTED, *ran(3.5, 1, 7), severed, promoted, *ran(8, again, 8)]
    assert found(rewound, ended_by={A: 1}) == []
    begun_late = [SUBMITTED, severed, promoted, *ran(5.1, 1, 7), *ran(8, again, 8)]  # by a claim that the replica never heard of
    assert found(begun_late, ended_by={A: 1}) == []
    assert found([SUBMITTED, *ran(3.5, 1, 7), severed, promoted, *ran(8, 1, 8)], ended_by={A: 1}) == ["fence"], "it must not repeat"
    assert found([SUBMITTED, severed, promoted, *ran(10.1, 1, 7), *ran(13, 1, 8)], ended_by={A: 1}) == ["fence", "again"]
    assert found([*ran(-9, 1, 7), event("submitted", -10), severed, promoted, *ran(8, 1, 8)]) == ["fence", "again"]
    overlapping = [SUBMITTED, *ran(4.5, 1, 7), severed, promoted, *ran(5.2, again, 8)]
    assert found(overlapping) == ["overlap"]
    cancelled = [SUBMITTED, event("cancelled", 4), severed, promoted, *ran(8, 1, 8)]
    assert found(cancelled) == []


def test_figures_are_taken_of_kills_that_hit_something() -> None:
    events = [SUBMITTED, event("start", 1, worker=7), Event(kind="killed", at=1.5, pid=7), *ran(4, 2, 8), Event(kind="killed", at=9, pid=8)]
    history = History(events)
    assert history.busy_kills() == 1
    assert history.recoveries() == [2.5]
    assert history.recoveries(but=["h"]) == []
    assert history.again() == 1


def test_a_gate_on_one_collection_leaves_the_others_alone() -> None:
    assert found([SUBMITTED, event("gate", 0.5, collection="eu"), event("start", 1, collection="us"), END]) == []


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write("submitted", task=A)
    journal.close()
    with (tmp_path / "journal").open("a") as file:
        file.write('{"kind": "start", "at"')
    assert [each.kind for each in read(tmp_path / "journal")[0]] == ["submitted"]


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.chaos.history import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(500): journal.write('submitted', task=f'{sys.argv[2]}-{number}', how='x' * 200)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "journal"), str(each)], cwd=ROOT) for each in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len({each.task for each in read(tmp_path / "journal")[0]}) == 1_500


def test_the_lock_of_an_attempt_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    code = (
        "import os, sys, time; from tests.chaos.journal import locked\n"
        "print(locked(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 'a task'), flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        file = os.open(path, os.O_RDWR)
        assert not locked(file, "a task")
        assert locked(file, "another task")
        same_process = os.open(path, os.O_RDWR)
        assert not locked(same_process, "another task"), "a lock holds within a process too"
        os.kill(holder.pid, signal.SIGKILL)
    assert locked(file, "a task")
    os.close(file)
    os.close(same_process)
