"""Several worker processes under a supervisor: real processes, real signals."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duetime.cli.hosting.processes import MEANINGS
from duetime.cli.hosting.supervisor import LONGEST_BACK_OFF, back_off, is_hopeless
from duetime.worker.worker import EXIT_STUCK
from tests.cli.conftest import ROOT, CommandLine, Program, RunningWorker, until
from tests.cli.test_worker import alive, running
from tests.servers.waiting import PATIENCE

READY = r"^duetime worker {}: worker \w{{16}} \(.*process \d+\) runs "


class Supervised(RunningWorker):
    """A supervisor and its worker processes, which are known from what they say."""

    def pids(self, number: int) -> list[int]:
        """Return all processes that one worker has had and that were ready, below their guards, the newest last."""
        return [int(pid) for pid in re.findall(rf"^duetime worker {number}: worker \w+ \(.*process (\d+)\) runs ", self.said, re.MULTILINE)]

    def pid(self, number: int) -> int:
        return self.pids(number)[-1]

    def all_pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"starts as process (\d+)$", self.said, re.MULTILINE)]

    def until_ready(self, number: int, times: int = 1) -> None:
        self.until_said(READY.format(number), times)

    def line_number(self, *words: str) -> int:
        """Return the index of the first line that contains all these words."""
        lines = self.said.splitlines()
        return next(number for number, line in enumerate(lines) if all(word in line for word in words))


@contextlib.contextmanager
def supervised(program: Program, *options: str, app: str = "tests.cli.shop:app", ready: bool = True, **popen: Any) -> Iterator[Supervised]:
    """A supervisor of two worker processes; nothing outlives the block."""
    process = program._start("worker", app, "--processes", "2", *options, **{"stdout": subprocess.DEVNULL, **popen})
    supervisor = Supervised(process)
    try:
        if ready:
            supervisor.until_ready(1)
            supervisor.until_ready(2)
        yield supervisor
    finally:
        for pid in (*([process.pid] if process.poll() is None else []), *supervisor.all_pids()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        supervisor.ended()


# ---- rules ----


def test_the_wait_before_the_next_start_grows_to_a_bound() -> None:
    assert [back_off(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert back_off(1_000_000) == LONGEST_BACK_OFF


@pytest.mark.parametrize(
    ("code", "was_ready", "ever_ready", "others_up", "hopeless"),
    [
        (2, False, False, False, True),
        (5, False, False, False, True),
        (-9, False, False, False, True),
        (5, False, True, False, False),
        (-9, False, True, False, False),
        (2, False, True, False, True),
        (3, False, True, False, True),
        (2, False, True, True, False),
        (2, True, True, False, False),
    ],
)
def test_a_start_is_repeated_unless_it_must_fail_again(
    code: int, was_ready: bool, ever_ready: bool, others_up: bool, hopeless: bool
) -> None:
    assert is_hopeless(code, was_ready=was_ready, ever_ready=ever_ready, others_up=others_up) is hopeless


def test_the_exit_code_of_a_worker_whose_code_does_not_end_is_explained() -> None:
    assert EXIT_STUCK in MEANINGS


# ---- a life ----


def test_it_starts_them_shows_them_and_stops_them(program: Program, duetime: CommandLine) -> None:
    with supervised(program, "--concurrency", "7", "--handler", "greet", "--grace", "20") as supervisor:
        assert program.run("submit", "greet", "name=Ada", "--wait").stdout == '"hello Ada"\n'
        workers = duetime.json("workers")["items"]
        assert {worker["pid"] for worker in workers} == {supervisor.pid(1), supervisor.pid(2)}
        assert f"process {supervisor.process.pid} supervises 2 worker processes of tests.cli.shop:app" in supervisor.said
        assert supervisor.said.count("1 handler (greet) in 7 slots") == 2, "options are passed on"
        assert "Threads:\t1\n" in Path(f"/proc/{supervisor.process.pid}/status").read_text()
        supervisor.signal(signal.SIGUSR1)
        supervisor.until_said(r"^duetime: 2 of 2 workers are up; process \d+ has supervised them for ")
        supervisor.until_said(rf"^  1 +{supervisor.pid(1)} +up +\d.*  1 +–$")
        supervisor.until_said(rf"^  2 +{supervisor.pid(2)} +up +\d.*  1 +–$")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0
    assert "SIGTERM: stopping 2 worker processes; a second signal kills" in supervisor.said
    assert len(re.findall(r"^duetime worker \d: SIGTERM: stopping, nothing is running$", supervisor.said, re.MULTILINE)) == 2
    assert supervisor.said.splitlines()[-1].partition("duetime.supervisor: ")[2].startswith("all worker processes have ended after ")
    assert duetime.json("workers")["items"] == []


TALKATIVE = """
import logging
import os
from contextlib import asynccontextmanager
from duetime import App

@asynccontextmanager
async def lifespan():
    logging.getLogger("mine").info("number %s", os.environ["DUETIME_WORKER_NUMBER"])
    yield

app = App(lifespan=lifespan)
"""


def test_what_is_logged_names_the_worker(program: Program, tmp_path: Path) -> None:
    program.environment["PYTHONPATH"] = str(tmp_path)
    tmp_path.joinpath("talkative.py").write_text(TALKATIVE)
    with supervised(program, app="talkative:app") as supervisor:
        for number in (1, 2):
            assert re.search(rf"^\S+Z INFO worker {number} mine: number {number}$", supervisor.said, re.MULTILINE)
            os.kill(supervisor.pid(number), signal.SIGUSR1)
            supervisor.until_said(rf"^duetime worker {number}: worker \w+ \(process {supervisor.pid(number)}\) is well$")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_lets_attempts_finish(program: Program, duetime: CommandLine, tmp_path: Path, number: signal.Signals) -> None:
    with supervised(program) as supervisor:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        running(duetime, task_id)
        supervisor.signal(number)
        for pid in supervisor.all_pids():  # as a service manager that tells all processes of a group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        supervisor.until_said(r"^duetime worker \d: SIG\w+: stopping; 1 attempt may go on for up to 30\.0 s$")
        supervisor.until_said(r"worker \d \(process \d+\) has stopped$")
        supervisor.signal(signal.SIGUSR1)
        supervisor.until_said(r"^  [12] +\d+ +finishing ")
        tmp_path.joinpath("go").touch()
        assert supervisor.ended() == 0
    assert duetime.json("task", task_id)["state"] == "succeeded"


def test_a_second_signal_kills_them_and_their_children_and_their_tasks_go_back_at_once(
    program: Program, duetime: CommandLine, tmp_path: Path
) -> None:
    with supervised(program, app="tests.cli.unsure:app") as supervisor:
        mark = tmp_path / "mark"
        task_id = duetime.submit("in_child", f"path={mark}")
        until(mark.exists, lambda: "the child to run")
        supervisor.signal(signal.SIGTERM)
        supervisor.until_said(r"SIGTERM: stopping 2 ")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 130
    assert not alive(int(mark.read_text()))
    assert "SIGTERM again: killing" in supervisor.said
    assert duetime.json("task", task_id)["state"] == "pending"


# ---- deaths ----


@pytest.mark.parametrize("handler", ["in_thread", "in_child"])
def test_the_tasks_of_a_killed_process_go_back_at_once_and_another_process_replaces_it(
    program: Program, duetime: CommandLine, tmp_path: Path, handler: str
) -> None:
    """The store cannot tell that the worker is dead, and its lease is ten minutes: only the supervisor knows."""
    with supervised(program, app="tests.cli.unsure:app") as supervisor:
        mark = tmp_path / "mark"
        task_id = duetime.submit(handler, f"path={mark}")
        until(mark.exists, lambda: "the attempt to run")
        owner = duetime.json("task", task_id)["worker"]
        [(number, pid)] = re.findall(rf"^duetime worker (\d): worker {owner} \(.*process (\d+)\) runs", supervisor.said, re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        until(lambda: duetime.json("task", task_id)["state"] == "succeeded", lambda: f"another attempt:\n{supervisor.said}")
        assert not alive(int(mark.read_text()))
        supervisor.until_ready(int(number), times=2)
        attempts = duetime.json("task", task_id)["attempts"]
        assert [attempt["outcome"] for attempt in attempts] == ["lost", "succeeded"]
        assert f"worker {owner} (process {pid}) has ended; 1 attempt goes back" in supervisor.said
        assert re.search(
            rf"ERROR duetime\.supervisor: worker {number} \(process {pid}\) was killed by SIGKILL after .*; starts again in 0\.5 s",
            supervisor.said,
        )
        assert "Threads:\t1\n" in Path(f"/proc/{supervisor.process.pid}/status").read_text(), "it has never opened a store itself"
        supervisor.signal(signal.SIGUSR1)
        supervisor.until_said(rf"^  {number} +{supervisor.pid(int(number))} +up +.*  2 +was killed by SIGKILL, .* ago$")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_nothing_is_taken_back_while_anything_of_the_dead_process_still_runs(
    program: Program, duetime: CommandLine, tmp_path: Path
) -> None:
    with supervised(program, app="tests.cli.unsure:app") as supervisor:
        mark = tmp_path / "mark"
        task_id = duetime.submit("escapes", f"path={mark}")
        until(mark.exists, lambda: "the attempt to run")
        left_behind = int(mark.read_text())
        owner = duetime.json("task", task_id)["worker"]
        [pid] = re.findall(rf": worker {owner} \(.*process (\d+)\) runs", supervisor.said)
        inner_guard = parent_of(int(pid))
        family = (int(pid), inner_guard, parent_of(inner_guard))
        for number in (signal.SIGSTOP, signal.SIGKILL):  # the guards are to die with it, before they can kill what is left
            for each in family:
                os.kill(each, number)
        try:
            supervisor.until_said(rf"something that worker \d \(process {pid}\) started still runs; other workers take back its tasks")
            assert duetime.json("task", task_id)["state"] == "running"
            assert alive(left_behind)
        finally:
            os.kill(left_behind, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_process_that_dies_again_and_again_is_started_ever_more_rarely(program: Program) -> None:
    with supervised(program) as supervisor:
        for times, wait in enumerate(("0.5", "1", "2"), 1):
            os.kill(supervisor.pid(1), signal.SIGKILL)
            supervisor.until_said(rf"worker 1 \(process {supervisor.pid(1)}\) was killed .* starts again in {wait} s$")
            if wait == "2":
                supervisor.signal(signal.SIGUSR1)
                supervisor.until_said(r"^  1 +– +starts again in ")
            supervisor.until_ready(1, times=times + 1)
        assert len(supervisor.pids(2)) == 1
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_process_that_is_told_to_stop_by_somebody_else_is_replaced(program: Program) -> None:
    with supervised(program) as supervisor:
        os.kill(supervisor.pid(2), signal.SIGTERM)
        supervisor.until_said(r"worker 2 \(process \d+\) ended with exit code 0 after .*; starts again in 0\.5 s$")
        supervisor.until_ready(2, times=2)


def test_without_its_supervisor_each_process_finishes_and_ends(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with supervised(program) as supervisor:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        running(duetime, task_id)
        supervisor.process.kill()
        supervisor.process.wait()
        until(lambda: supervisor.said.count(": the supervisor is gone: stopping") == 2, lambda: "both to notice")
        assert duetime.json("task", task_id)["state"] == "running", "it may finish"
        tmp_path.joinpath("go").touch()
        until(lambda: not any(map(alive, supervisor.all_pids())), lambda: "both to end")
    assert duetime.json("task", task_id)["state"] == "succeeded"
    assert duetime.json("workers")["items"] == []


@pytest.mark.slow
def test_one_that_starts_itself_anew_stays_supervised(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    program.environment["SHOP_STUCK_AFTER"] = "1"
    with supervised(program, "--grace", "1") as supervisor:
        task_id = duetime.submit("stubborn", f"path={tmp_path}/mark")
        supervisor.until_said(r"worker \d \(process \d+\) has restarted itself, as worker \w{16} instead of \w{16}$")
        until(lambda: duetime.json("task", task_id)["state"] == "succeeded", lambda: "the task to run in the new process")
        number = int(re.findall(r"worker (\d) \(process \d+\) has restarted itself", supervisor.said)[0])
        supervisor.until_ready(number, times=2)
        assert supervisor.said.count(f"worker {number} starts as process ") == 1
        supervisor.process.kill()
        supervisor.process.wait()
        until(lambda: not any(map(alive, supervisor.all_pids())), lambda: "both to end without their supervisor")


@pytest.mark.slow
def test_one_that_does_not_stop_is_killed_when_its_time_is_over(program: Program) -> None:
    with supervised(program, "--grace", "0") as supervisor:
        os.kill(supervisor.pid(1), signal.SIGSTOP)
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 1
    assert re.search(r"worker 1 \(process \d+\) has not stopped within 15\.0 s: it is killed", supervisor.said)
    assert "did not stop in order: it was killed by SIGKILL" in supervisor.said
    assert re.search(r"worker 2 \(process \d+\) has stopped", supervisor.said)


# ---- rolling restart ----


def test_a_rolling_restart_has_the_new_one_up_before_the_old_one_finishes(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with supervised(program) as supervisor:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        running(duetime, task_id)
        supervisor.signal(signal.SIGHUP)
        supervisor.until_said(r"stopping; 1 attempt may go on for up to 30\.0 s$")
        assert "the rolling restart is done" not in supervisor.said, "it waits for what finishes"
        tmp_path.joinpath("go").touch()
        supervisor.until_said(r"the rolling restart is done, after ")
        assert duetime.json("task", task_id)["state"] == "succeeded"
        for number in (1, 2):
            old, new = supervisor.pids(number)
            up = supervisor.line_number(f"duetime worker {number}: worker ", f"process {new})")
            over = supervisor.line_number(f"worker {number}: process {new} takes over; process {old} finishes")
            assert up < over < supervisor.line_number(f"worker {number} (process {old}) has stopped")
        starts = [number for number, line in enumerate(supervisor.said.splitlines()) if "worker 2 starts as process" in line]
        assert supervisor.line_number("worker 1 (process", "has stopped") < starts[-1]
        assert {worker["pid"] for worker in duetime.json("workers")["items"]} == {supervisor.pid(1), supervisor.pid(2)}
        os.kill(supervisor.pid(1), signal.SIGHUP)  # meant for the supervisor, as by pkill
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_rolling_restart_to_an_app_that_does_not_start_leaves_the_old_ones_alone(
    program: Program, duetime: CommandLine, tmp_path: Path
) -> None:
    program.environment["PYTHONPATH"] = str(tmp_path)
    module = tmp_path / "fragile.py"
    good = "from duetime import App\napp = App()\n@app.task\nasync def hello() -> str: return 'hello'\n"
    module.write_text(good)
    with supervised(program, app="fragile:app") as supervisor:
        module.write_text("1 / 0\n")
        supervisor.signal(signal.SIGHUP)
        supervisor.until_said(r"before it was ready: the rolling restart ends here, and the old processes go on$")
        assert "fragile cannot be imported: ZeroDivisionError" in supervisor.said
        assert duetime("submit", "hello", "--wait").stdout == '"hello"\n'
        old = {supervisor.pids(1)[0], supervisor.pids(2)[0]}
        assert {worker["pid"] for worker in duetime.json("workers")["items"]} == old
        module.write_text(good + "# repaired\n")
        supervisor.signal(signal.SIGHUP)
        supervisor.until_said(r"the rolling restart is done, after ")
        assert not any(map(alive, old))
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_signal_to_stop_ends_a_rolling_restart_too(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with supervised(program, "--grace", "0") as supervisor:
        duetime.submit("wait_for", f"path={tmp_path}/never")
        supervisor.signal(signal.SIGHUP)
        supervisor.until_said(r"SIGHUP: restarting")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0
        assert not any(map(alive, supervisor.all_pids()))


def test_a_terminal_that_is_closed_stops_them(program: Program) -> None:
    ours, theirs = pty.openpty()
    process = program._start("worker", "tests.cli.shop:app", "--processes", "2", stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while len(re.findall(rb" runs tests\.cli\.shop", said)) < 2:
            said += os.read(ours, 65_536)
        pids = [int(pid) for pid in re.findall(rb"starts as process (\d+)", said)]
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE) == 0
        assert not any(map(alive, pids))
    finally:
        process.kill()
        process.wait()


# ---- what cannot work ----


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("nowhere:app",), 2, "there is no module 'nowhere'"),
        (("tests.cli.shop:nothing",), 2, "has no 'nothing'"),
        (("tests.cli.shop:app", "--lease", "0.1"), 2, "--lease must lie between"),
        (("tests.cli.shop:app", "--handler", "other"), 3, "declares no handler 'other'"),
        (("tests.cli.shop:app", "--url", "sqlite:////nowhere/at/all.db"), 5, "folder"),
    ],
)
def test_what_cannot_work_is_said_once_and_not_tried_again(program: Program, options: tuple[str, ...], code: int, words: str) -> None:
    answer = program.run("worker", *options, "--processes", "3", "--log-level", "warning", code=code)
    first, second = answer.stderr.splitlines()
    assert words in first
    assert re.fullmatch(
        rf"duetime: worker 1 \(process \d+\) ended with exit code {code} before it was ready; it is not started again", second
    )


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_processes_that_is_none_is_refused(duetime: CommandLine, number: str) -> None:
    assert "at least 1, or auto" in duetime("worker", "tests.cli.shop:app", "--processes", number, code=2).stderr


def test_auto_is_one_per_cpu(program: Program) -> None:
    count = len(os.sched_getaffinity(0))
    process = program._start("worker", "tests.cli.shop:app", "--processes", "auto", stdout=subprocess.DEVNULL)
    worker = Supervised(process)
    try:
        worker.until_said(rf"supervises {count} worker processes" if count > 1 else r"^duetime: worker \w+")
    finally:
        process.terminate()
        assert worker.ended() == 0


def test_one_process_runs_without_a_supervisor(program: Program) -> None:
    with program.worker("--processes", "1") as worker:
        assert "supervises" not in worker.said


def test_the_variables_of_supervised_processes_are_not_for_others(program: Program) -> None:
    program.environment["DUETIME_SUPERVISOR"] = "7"
    assert "DUETIME_SUPERVISOR is for processes that" in program.run("worker", "tests.cli.shop:app", code=2).stderr


# ---- taking back ----


def take_back(program: Program, url: str, *workers: str) -> subprocess.CompletedProcess[str]:
    request = json.dumps({"url": url, "workers": workers, "log": {"level": "info"}})
    command = [sys.executable, "-m", "duetime.cli.hosting.reap"]
    return subprocess.run(
        command, input=request, cwd=ROOT, env=program.environment, text=True, capture_output=True, timeout=PATIENCE, check=False
    )


def test_only_a_worker_that_has_ended_is_taken_from(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker() as worker:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/never")
        running(duetime, task_id)
        owner = duetime.json("task", task_id)["worker"]
        assert take_back(program, duetime.url, owner, "0" * 16).returncode == 0
        assert duetime.json("task", task_id)["state"] == "running"
        worker.process.kill()
        worker.process.wait()
        assert take_back(program, duetime.url, "0" * 16).returncode == 0
        assert duetime.json("task", task_id)["state"] == "running"
        assert "1 attempt goes back" in take_back(program, duetime.url, owner).stderr
        assert duetime.json("task", task_id)["state"] == "pending"


def test_a_store_that_cannot_be_reached_is_only_told_of(program: Program) -> None:
    answer = take_back(program, "sqlite:////nowhere/at/all.db", "0" * 16)
    assert answer.returncode == 5
    assert answer.stderr.startswith("duetime: ")
