"""The parts of commands: what is printed, what ends mean, limits, control groups, and removing folders."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duetime.errors import InvalidValue
from duetime.model.outcome import Outcome
from duetime.runtime.folders import remove_folder
from duetime.runtime.processes import start_of, with_environment
from duetime.targets.command.cgroup import Cgroup, containment, parent_of_groups, remove_left_groups
from duetime.targets.command.command import DEFAULT_EXITS, Sandbox
from duetime.targets.command.endings import end_of
from duetime.targets.command.streams import Printed, Result
from duetime.targets.command.supervising import Order, Report, SupervisorDied
from duetime.targets.command.supervisors import Supervisors
from duetime.targets.output import OutputFiles, Sink
from duetime.targets.target import Stop

TASK = "01a1ede9-bff9-7ce7-a9da-711347a99e33"


def printing(tmp_path: Path) -> tuple[Printed, Sink, list[tuple[float, str]]]:
    marks: list[tuple[float, str]] = []
    sink = Sink(OutputFiles(tmp_path), TASK, 1)
    return Printed(sink, lambda fraction, text: marks.append((fraction, text))), sink, marks


TEXT = b"begin\n::progress 0.25 a quarter\nmiddle ::progress 0.3 no\n::progress 1\n::progress 1.5 too much\n::progress\n::progre"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 11, 64, 1_000])
def test_progress_is_found_in_whatever_pieces_it_comes(tmp_path: Path, piece: int) -> None:
    printed, sink, marks = printing(tmp_path)
    for start in range(0, len(TEXT), piece):
        printed.take(TEXT[start : start + piece])
    printed.end()
    assert marks == [(0.25, "a quarter"), (1.0, "")]
    assert sink.read() == "begin\nmiddle ::progress 0.3 no\n::progress 1.5 too much\n::progress\n::progre"
    assert printed.tail == sink.read()


def test_a_mark_at_the_very_end_needs_no_newline(tmp_path: Path) -> None:
    printed, sink, marks = printing(tmp_path)
    printed.take(b"::progress 0.5 half")
    printed.end()
    assert (marks, sink.read()) == ([(0.5, "half")], "")


def test_a_line_without_end_is_passed_on_and_not_gathered(tmp_path: Path) -> None:
    printed, sink, _ = printing(tmp_path)
    printed.take(b"::progress 0.5 " + b"x" * 5_000)
    assert len(sink.read()) == 5_015


def test_a_result_that_is_too_long_is_dropped_as_it_comes() -> None:
    result = Result()
    for _ in range(40):
        result.take(b"x" * 65_536)
    assert len(result.data) == 1_000_001


def ended(report: Report, **options: Any) -> tuple[Outcome, str | None]:
    given: dict[str, Any] = {"result": b"", "result_type": None, "printed": "", "retry_delay": 60.0, **options}
    end = end_of(report, {**DEFAULT_EXITS, 3: "fatal", 4: "succeeded"}, **given)
    return end.outcome, None if end.error is None else end.error.type


@pytest.mark.parametrize(
    ("report", "options", "expected"),
    [
        (Report(0), {}, (Outcome.SUCCEEDED, None)),
        (Report(4 << 8), {}, (Outcome.SUCCEEDED, None)),
        (Report(1 << 8), {}, (Outcome.FAILED, "CommandFailed")),
        (Report(3 << 8), {}, (Outcome.FATAL, "CommandFailed")),
        (Report(75 << 8), {}, (Outcome.RETRY_LATER, "CommandFailed")),
        (Report(9), {}, (Outcome.FAILED, "CommandFailed")),
        (Report(9, out_of_memory=True), {}, (Outcome.FAILED, "OutOfMemory")),
        (Report(9, stopped=True), {"stopped": Stop.TIMEOUT}, (Outcome.TIMED_OUT, "TimedOut")),
        (Report(15, stopped=True), {"stopped": Stop.CANCEL}, (Outcome.CANCELLED, None)),
        (Report(15, stopped=True), {"stopped": Stop.RELEASE}, (Outcome.RELEASED, None)),
        (Report(0, stopped=True), {"stopped": Stop.CANCEL}, (Outcome.SUCCEEDED, None)),
        (Report(9, stopped=True), {}, (Outcome.LOST, "CommandKilled")),
        (Report(problem="no such program"), {}, (Outcome.FAILED, "CommandNotStarted")),
        (Report(0), {"result": b" 7\n", "result_type": int}, (Outcome.SUCCEEDED, None)),
        (Report(0), {"result": b"seven"}, (Outcome.FATAL, "InvalidResult")),
        (Report(0), {"result": b"", "result_type": int}, (Outcome.FATAL, "InvalidResult")),
        (Report(0), {"result": b"1" * 1_000_001}, (Outcome.FATAL, "PayloadTooLarge")),
    ],
)
def test_what_the_end_of_a_command_means(report: Report, options: dict[str, Any], expected: tuple[Outcome, str | None]) -> None:
    assert ended(report, **options) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 1), ("512", 512), ("1KB", 1_000), ("1.5 MB", 1_500_000), ("1GiB", 1_073_741_824), ("2tb", 2 * 10**12)]
)
def test_sizes_are_bytes_or_texts(size: int | str, expected: int) -> None:
    assert Sandbox(memory=size).limits() == {"memory": expected}


@pytest.mark.parametrize("size", ["", "1XB", "GB", "-1", 0, True, "1 2"])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(InvalidValue, match="512MB"):
        Sandbox(file_size=size)


def test_a_group_bounds_memory_and_processes_of_all_and_leaves_the_supervisor_its_share(tmp_path: Path) -> None:
    """On a folder that looks like a group: the machine of a test may have no controllers for memory."""
    for name in ("memory.max", "memory.swap.max", "pids.max"):
        (tmp_path / name).write_text("max")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    group = Cgroup(tmp_path)
    group.limit(100_000_000, 64)
    assert (tmp_path / "memory.max").read_text() == str(100_000_000 + 32 * 1_048_576)
    assert (tmp_path / "memory.swap.max").read_text().startswith("0")
    assert (tmp_path / "pids.max").read_text().startswith("65")
    assert (group.bounds_memory, group.bounds_processes, group.out_of_memory()) == (True, True, 2)


def test_a_group_without_controllers_gets_no_files(tmp_path: Path) -> None:
    group = Cgroup(tmp_path)
    group.limit(100, 64)
    group.kill()
    assert list(tmp_path.iterdir()) == []
    assert (group.bounds_memory, group.bounds_processes, group.out_of_memory()) == (False, False, 0)
    assert parent_of_groups(tmp_path / "none") is None
    assert "no writable control group" in containment(None)


@pytest.mark.slow
def test_what_was_started_in_a_group_is_killed_with_it() -> None:
    """Where this process may make groups; elsewhere there is nothing to kill, and `doctor` says so."""
    parent = parent_of_groups()
    assert ("no writable control group" in containment(parent)) == (parent is None)
    if parent is None:
        return
    group = Cgroup(parent / f"duetime-{os.getpid()}-test")
    group.folder.mkdir()
    child = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys, time; open(sys.argv[1], 'w').write('0'); time.sleep(1000)",
            group.folder / "cgroup.procs",
        ]
    )
    try:
        while str(child.pid) not in (group.folder / "cgroup.procs").read_text().split():
            assert child.poll() is None
        assert not group.remove()
        group.kill()
        child.wait()
        assert start_of(child.pid) is None
    finally:
        child.kill()
        child.wait()
    assert group.remove()
    assert not group.folder.exists()


def test_empty_groups_of_dead_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f"duetime-{dead.pid}-a1", f"duetime-{os.getpid()}-b2", f"duetime-{dead.pid}-full", "duetime-x-y", "others"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / names[2] / "process").touch()  # as one in which something runs: it cannot be removed
    remove_left_groups(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == set(names[1:])


@pytest.mark.slow
async def test_a_number_that_is_another_process_by_now_is_not_killed_after_the_death_of_a_supervisor(tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220
    supervisors = Supervisors()
    try:
        supervisor = supervisors.take()
        env = {"PATH": os.environ["PATH"], "DUETIME_TASK": str(tmp_path), "DUETIME_ATTEMPT": "1"}
        order = Order("waits", ["sh", "-c", "echo ready; exec sleep 1000"], env, str(tmp_path / "own"), {}, None)
        ready = asyncio.Event()
        running = asyncio.ensure_future(supervisor.run(order, lambda data: ready.set(), lambda data: None))
        await ready.wait()
        os.pwrite(supervisor._notes, f"{victim.pid} 1".encode().ljust(64), 0)
        supervisor._process.kill()
        with pytest.raises(SupervisorDied, match="SIGKILL"):
            await running
        assert start_of(victim.pid) is not None
        assert with_environment([f"DUETIME_TASK={tmp_path}".encode()]) == set()
    finally:
        await supervisors.close()
        victim.kill()
        victim.wait()


def test_a_folder_is_removed_whatever_is_in_it_and_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    top = tmp_path / "top"
    deep = top / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_text("goes")
    (deep / "link").symlink_to(outside)
    (top / "..." / " \n").mkdir(parents=True)
    os.mkfifo(top / "pipe")
    deep.chmod(0)
    (top / "a").chmod(0)
    assert remove_folder(top)
    assert not top.exists()
    assert (outside / "file").read_text() == "stays"
    assert remove_folder(top)
