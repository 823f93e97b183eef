"""The worker as the process that people start, and its life under signals."""

import contextlib
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Program, until
from tests.servers.waiting import PATIENCE


def running(duetime: CommandLine, task_id: str) -> None:
    """Wait until the task is claimed; its handler begins a moment later."""
    until(lambda: duetime.json("task", task_id)["state"] == "running", lambda: f"task {task_id} to run")


def begun(awaited: Path) -> None:
    """Wait until the handler `wait_for` runs, and waits for this file."""
    until(Path(f"{awaited}.awaited").exists, lambda: f"a handler to wait for {awaited}")


def test_it_says_what_it_runs_and_how_it_ended(program: Program, duetime: CommandLine) -> None:
    with program.worker("--concurrency", "7", "--handler", "greet") as worker:
        assert program.run("submit", "greet", "name=Ada", "--wait").stdout == '"hello Ada"\n'
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    start, *_, stop, summary = worker.said.splitlines()
    assert re.match(r"duetime: worker \w{16} \(\d+\.\d+\.\d+, process \d+\) runs tests\.cli\.shop:app on sqlite:////", start)
    assert "1 handler (greet) in 7 slots. A returned write survives" in start
    assert stop == "duetime: SIGTERM: stopping, nothing is running"
    assert re.fullmatch(r"duetime: stopped after \d+\.\d s: 1 attempt ended here", summary)
    assert duetime.json("workers")["items"] == []


def test_the_result_of_an_awaited_task_decides_the_exit_code(program: Program, duetime: CommandLine) -> None:
    with program.worker():
        done = duetime("submit", "greet", "name=Grüße ☃", "--wait")
        assert done.stdout == '"hello Grüße ☃"\n'
        assert done.stderr.strip() == duetime.ids("--state", "succeeded")[0]
        failed = duetime("submit", "fail", "text=no luck", "--wait", code=1)
        assert failed.stdout == ""
        assert failed.stderr.splitlines()[1].partition(" (tests/cli/shop.py:")[0].endswith("ended failed: ValueError: no luck")
        document = duetime.json("submit", "refuse", "text=never", "--wait", code=1)
        assert (document["state"], document["error"]["message"]) == ("failed", "never")


@pytest.mark.covers("XXL.9")
def test_output_is_followed_while_the_attempt_runs(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker():
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        with program.start("logs", task_id, "--follow") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "waiting\n"
            assert duetime.json("task", task_id)["state"] == "running"
            tmp_path.joinpath("go").touch()
            assert follower.wait(PATIENCE) == 0


def test_output_is_kept_per_attempt(program: Program, duetime: CommandLine) -> None:
    with program.worker():
        duetime("submit", "second_time", "--wait")
        [task_id] = duetime.ids()
        whole = duetime("logs", task_id)
        first, last = whole.stdout.splitlines()[0], whole.stdout.splitlines()[-1]
        assert (first, last) == ("this is attempt 1", "this is attempt 2")
        assert 'raise ValueError("not yet")\nValueError: not yet\n' in whole.stdout  # why the first one failed
        assert whole.stderr == "attempt 1:\nattempt 2:\n"
        assert duetime("logs", task_id, "--follow").stdout == whole.stdout
        assert duetime("logs", task_id, "--attempt", "2").stdout == "this is attempt 2\n"
        assert duetime("logs", task_id, "--attempt", "2", "--follow").stdout == "this is attempt 2\n"
        assert "its last one is 2" in duetime("logs", task_id, "--attempt", "3", code=3).stderr
        duetime("submit", "greet", "name=Ada", "times=2", "--wait")
        printed = duetime("logs", duetime.ids("--handler", "greet")[0]).stdout
        assert printed.startswith("hello Ada 0\nhello Ada 1\n")
        assert printed.endswith("INFO duetime.task: greeted Ada\n")
        duetime("submit", "refuse", "text=x", "--wait", code=1)
        assert duetime("logs", duetime.ids("--handler", "refuse")[0]).stdout.endswith("duetime.errors.Fatal: x\n")


@pytest.mark.covers("FEN.7")
def test_why_tells_what_a_live_worker_lacks(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker("--handler", "wait_for"):
        first = duetime.submit("wait_for", f"path={tmp_path}/never")
        running(duetime, first)
        second = duetime.submit("wait_for", f"path={tmp_path}/never")
        other = duetime.submit("greet", "name=x")
        assert re.match(r"attempt 1 has been running for .* on worker \w{16}\n", duetime("why", first).stdout)
        assert duetime("why", second).stdout.startswith("all slots of wait_for are taken: 1 run in 1 slot")
        assert duetime("why", other).stdout.startswith("no live worker runs greet; there is 1 worker of other handlers")


def test_a_running_task_is_cancelled(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker():
        task_id = duetime.submit("wait_for", f"path={tmp_path}/never")
        running(duetime, task_id)
        assert duetime.lines("cancel", task_id) == [f"{task_id} cancelling"]
        until(lambda: duetime.json("task", task_id)["state"] == "cancelled", lambda: "the task to end")


def test_it_says_how_it_fares(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    program.environment["SHOP_NO_PROGRESS"] = "4"
    with program.worker() as worker:
        duetime.submit("wait_for", f"path={tmp_path}/never")
        begun(tmp_path / "never")
        worker.signal(signal.SIGUSR1)
        worker.until_said(rf"^duetime: worker \w{{16}} \(process {worker.own_pid}\) is well$")
        worker.until_said(r"^  loop +last success +failures +error$")
        worker.until_said(r"^  feeder +\d.* ago +0 +–$")
        worker.until_said(r"^  proof of life \d.* ago; 1 attempt running; 0 outcomes to be written$")
        with locked(Path(duetime.url.removeprefix("sqlite:///"))):
            worker.until_said(r"feeder has made no progress for \d+\.\d s: .*\. 0 outcomes wait to be written$")
            worker.signal(signal.SIGUSR1)
            worker.until_said(r"^duetime: worker \w{16} \(process \d+\) is not well$")
            worker.until_said(r"^  problem: feeder has made no progress for \d+\.\d s: ")
        worker.until_said(r"feeder.* after \d+\.\d s")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock as another program would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


@pytest.mark.covers("CEL.13")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_attempts_finish(program: Program, duetime: CommandLine, tmp_path: Path, number: signal.Signals) -> None:
    with program.worker() as worker:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        begun(tmp_path / "go")
        waiting = duetime.submit("wait_for", f"path={tmp_path}/go")
        worker.signal(number)
        worker.until_said(rf"^duetime: {number.name}: stopping; 1 attempt may go on for up to 30\.0 s, a second signal ends at once$")
        tmp_path.joinpath("go").touch()
        assert worker.ended() == 0
    assert duetime.json("task", task_id)["state"] == "succeeded"
    assert duetime.json("task", waiting)["state"] == "pending"


def test_one_stop_that_arrives_several_times_is_one_and_attempts_finish(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    """`timeout` signals the process that it started, and right after that its process group."""
    with program.worker() as worker:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/go")
        begun(tmp_path / "go")
        for _ in range(5):
            worker.signal(signal.SIGTERM)
            time.sleep(0.01)  # the guard is to take them one by one
        worker.until_said("^duetime: SIGTERM: stopping")
        tmp_path.joinpath("go").touch()
        assert worker.ended() == 0
    assert duetime.json("task", task_id)["state"] == "succeeded"


@pytest.mark.covers("CEL.13")
def test_what_does_not_finish_in_its_time_of_grace_goes_back(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker("--grace", "0") as worker:
        task_id = duetime.submit("wait_for", f"path={tmp_path}/never")
        begun(tmp_path / "never")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    task = duetime.json("task", task_id)
    assert (task["state"], task["tries"]) == ("pending", 0)
    assert [attempt["outcome"] for attempt in task["attempts"]] == ["released"]


@pytest.mark.covers("CEL.13")
def test_a_second_signal_ends_it_and_its_children_at_once(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker() as worker:
        mark = tmp_path / "child"
        task_id = duetime.submit("in_child", f"path={mark}")
        until(lambda: mark.exists() and mark.read_text() != "", lambda: "the child to run")
        worker.signal(signal.SIGINT)
        worker.until_said("SIGINT: stopping")
        worker.signal(signal.SIGINT)
        assert worker.ended() == 130
    assert "second signal: ending at once" in worker.said
    until(lambda: not alive(int(mark.read_text())), lambda: "the child to end")
    assert duetime.json("task", task_id)["state"] == "running"  # until somebody notices that its worker is dead
    duetime("doctor", "--repair")
    assert duetime.json("task", task_id)["state"] == "pending"


def alive(process: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_it_restarts_itself_when_code_never_ends(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    program.environment["SHOP_STUCK_AFTER"] = "1"
    with program.worker("--grace", "1") as worker:
        task_id = duetime.submit("stubborn", f"path={tmp_path}/mark")
        worker.until_said(r"^duetime: worker \w+ \(.* process \d+\)", times=2)
        first, second = re.findall(r"^duetime: worker (\w+) \(.* process (\d+)\)", worker.said, re.MULTILINE)
        assert first[0] != second[0]
        assert worker.process.poll() is None, "the process that was started has stayed, for a service manager"
        until(lambda: duetime.json("task", task_id)["state"] == "succeeded", lambda: "the task to run in the new process")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert f"attempt 1 of task {task_id} (stubborn) does not end: this process lets the others finish" in worker.said
    assert "restarting in process" in worker.said
    assert [attempt["outcome"] for attempt in duetime.json("task", task_id)["attempts"]] == ["lost", "succeeded"]


# ---- finding the App ----


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("here", 2, "expected module:name"),
        (":app", 2, "expected module:name"),
        ("nowhere:app", 2, "there is no module 'nowhere'"),
        ("here:ap", 2, "here has no 'ap'; it has app"),
        ("here:number", 2, "is a int, not an App"),
        ("here:app", 3, "declares no handler 'other'"),
        ("own_store:app", 2, "names its own store"),
        ("needy:app", 1, "it needs the module 'not_installed_anywhere'"),
        ("broken:app", 1, "ZeroDivisionError: division by zero"),
        ("untidy:app", 1, "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_run_is_explained(duetime: CommandLine, path: str, code: int, words: str) -> None:
    Path("here.py").write_text("from duetime import App\napp = App()\nnumber = 7\n")
    Path("own_store.py").write_text("from duetime import App\napp = App('sqlite:///own.db')\n")
    Path("needy.py").write_text("import not_installed_anywhere\n")
    Path("broken.py").write_text("1 / 0\n")
    Path("untidy.py").write_text("def\n")
    answer = duetime("worker", path, "--handler", "other", "--url", duetime.url, code=code)
    assert words in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules that a test writes be found in its own folder, and not by the next test."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("here", "own_store", "needy", "broken", "untidy"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(("option", "value"), [("--lease", "0.1"), ("--lease", "2h"), ("--grace", "-1"), ("--concurrency", "0")])
def test_settings_out_of_range_are_refused(duetime: CommandLine, option: str, value: str) -> None:
    Path("here.py").write_text("from duetime import App\napp = App()\n")
    assert option in duetime("worker", "here:app", option, value, code=2).stderr


def test_the_app_may_come_from_the_environment(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.environment["DUETIME_APP"] = "tests.cli.shop:nothing"
    assert "tests.cli.shop has no 'nothing'; it has app" in program.run("worker", code=2).stderr


def test_it_needs_a_store_that_it_can_open(program: Program, tmp_path: Path) -> None:
    program.environment["DUETIME_URL"] = f"sqlite:///{tmp_path}/no/such/folder/x.db"
    answer = program.run("worker", "tests.cli.shop:app", code=5)
    assert "folder" in answer.stderr
    assert os.listdir(tmp_path) == []
