"""What the processes of Duetime write: failures with their traceback, as text or as JSON, and what handlers print."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine, Program, RunningWorker, until

pytestmark = pytest.mark.slow


@contextmanager
def worker(program: Program, output: Path, *options: str, ready: str = r"worker \w+ \(") -> Iterator[RunningWorker]:
    """A worker of tests.cli.shop whose stdout goes to a file."""
    with output.open("w") as file:
        process = program._start("worker", "tests.cli.shop:app", *options, stdout=file)
    running = RunningWorker(process)
    try:
        running.until_said(ready)
        yield running
        running.signal(signal.SIGTERM)
        running.ended()
    finally:
        if process.poll() is None:
            process.kill()
            running.ended()


def submit(duetime: CommandLine, handler: str, *arguments: str) -> str:
    return duetime.submit(handler, *arguments, "--allow-unknown")


def lines(running: RunningWorker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.said.splitlines()]


def test_a_failure_is_on_stderr_with_its_traceback(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with worker(program, tmp_path / "out") as running:
        task = submit(duetime, "fail", "text=no luck")
        running.until_said("^ValueError: no luck$")
    said = running.said
    assert f"ERROR duetime.failures: fail failed in attempt 1 of task {task}: ValueError: no luck (tests/cli/shop.py:" in said
    assert "    raise ValueError(text)\n" in said
    assert "duetime/worker" not in said


@pytest.mark.parametrize("handler", ["fail", "fail_in_child"])
def test_the_log_as_json_has_an_object_per_line(handler: str, program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    text = "no luck\n\x1b[31m ☃ " + "x" * 100_000
    with worker(program, tmp_path / "out", "--log-format", "json") as running:
        task = submit(duetime, handler, "--payload", json.dumps({"text": text}))
        running.until_said('"level":"ERROR"')
    found = lines(running)
    [failure] = [line for line in found if line["level"] == "ERROR"]
    assert failure["message"].startswith(f"{handler} failed in attempt 1 of task {task}: ValueError: no luck\\n")
    assert (failure["logger"], failure["task"], failure["handler"], failure["attempt"]) == ("duetime.failures", task, handler, 1)
    assert (failure["error"], failure["outcome"], failure["final"]) == ("ValueError", "failed", True)
    assert failure["location"].startswith("tests/cli/shop.py:")
    assert "    raise ValueError(text)\n" in failure["exception"]
    assert len(failure["exception"]) < 20_000
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)
    assert "runs tests.cli.shop:app" in found[0]["message"]
    assert "stopped after" in found[-1]["message"]


def test_what_a_handler_logs_names_its_task_in_json(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with worker(program, tmp_path / "out", "--log-format", "json") as running:
        task = submit(duetime, "log_something", "text=tea")
        running.until_said("and it is gone")
    low, gone = [line for line in lines(running) if line["logger"] == "shop.stock"]
    assert (low["level"], low["message"], low["task"], low["handler"], low["attempt"]) == (
        "WARNING",
        "low on tea",
        task,
        "log_something",
        1,
    )
    assert gone["exception"].endswith("KeyError: 'tea'")


def test_processes_log_as_json_with_their_number(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with worker(program, output, "--processes", "2", "--log-format", "json", ready=r"worker 2 starts") as running:
        running.until_said(r"runs tests.cli.shop:app", times=2)
        task = submit(duetime, "fail", "text=no luck")
        running.until_said('"level":"ERROR"')
    found = lines(running)
    [failure] = [line for line in found if line["level"] == "ERROR"]
    assert failure["worker"] in (1, 2)
    assert "duetime.supervisor" in {line["logger"] for line in found}
    assert sum("A returned write survives" in line["message"] for line in found) == 1  # said once for all of them
    [printed] = [json.loads(line) for line in output.read_text().splitlines()]
    assert (printed["message"], printed["task"], printed["worker"]) == ("before it fails", task, failure["worker"])


def test_what_handlers_print_is_passed_on_to_a_stdout_that_is_no_terminal(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with worker(program, output) as running:
        greeted = submit(duetime, "greet", "name=Ada", "times=2")
        until(lambda: f"greet {greeted}.1 | hello Ada 1\n" in output.read_text(), output.read_text)
        failed = submit(duetime, "fail_in_child", "text=no luck")
        running.until_said("fail_in_child failed")
    assert output.read_text().splitlines() == [
        f"greet {greeted}.1 | hello Ada 0",
        f"greet {greeted}.1 | hello Ada 1",
        f"fail_in_child {failed}.1 | before it fails in a child",
    ]
    assert duetime("logs", greeted).stdout.startswith("hello Ada 0\nhello Ada 1\n")  # and it is kept


def test_what_handlers_print_can_be_kept_from_stdout(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with worker(program, tmp_path / "out", "--no-echo") as running:
        submit(duetime, "fail", "text=no luck")
        running.until_said("fail failed")
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize(("options", "shown"), [((), False), (("--echo",), True)])
def test_a_terminal_shows_what_handlers_print_only_on_demand(
    options: tuple[str, ...], shown: bool, program: Program, duetime: CommandLine
) -> None:
    mine, theirs = pty.openpty()
    running = RunningWorker(program._start("worker", "tests.cli.shop:app", *options, stdout=theirs))
    os.close(theirs)
    try:
        running.until_said(r"worker \w+ \(")
        task = submit(duetime, "fail", "text=no luck")
        running.until_said("fail failed")
        running.signal(signal.SIGTERM)
        running.ended()
        try:
            found = os.read(mine, 10_000).decode()
        except OSError:  # nothing was written, and the other end is closed
            found = ""
    finally:
        os.close(mine)
        if running.process.poll() is None:
            running.process.kill()
    assert (f"fail {task}.1 | before it fails" in found) == shown


def test_a_reader_of_stdout_that_has_gone_harms_nobody(program: Program, duetime: CommandLine) -> None:
    process = program._start("worker", "tests.cli.shop:app", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    running = RunningWorker(process)
    try:
        running.until_said(r"worker \w+ \(")
        task = submit(duetime, "greet", "name=Ada", "times=3")
        until(lambda: duetime.json("task", task)["state"] == "succeeded", lambda: running.said)
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    finally:
        if process.poll() is None:
            process.kill()


def test_a_server_logs_as_json(program: Program) -> None:
    process = program._start("server", "--port", "0", "--log-format", "json", stdout=subprocess.DEVNULL)
    running = RunningWorker(process)
    try:
        running.until_said("openapi.json")
        running.signal(signal.SIGTERM)
        running.ended()
    finally:
        if process.poll() is None:
            process.kill()
    messages = [line["message"] for line in lines(running)]
    assert messages[0].startswith("server (")
    assert messages[-1] == "the server has stopped"


def test_dev_shows_the_traceback_of_a_failure_and_logs_as_json_on_demand(program: Program, duetime: CommandLine) -> None:
    for options, failed in (((), r"│     raise ValueError\(text\)$"), (("--log-format", "json"), '"exception":"Traceback')):
        process = program._start("dev", "tests.cli.shop:app", "--port", "0", *options, stdout=subprocess.DEVNULL)
        running = RunningWorker(process)
        try:
            running.until_said(r"\^C ends it")
            task = submit(duetime, "fail", "text=no luck")
            running.until_said(failed)
            running.until_said(rf"fail {task} failed: ValueError: no luck \(tests/cli/shop\.py:\d+ in fail\)")
            running.signal(signal.SIGTERM)
            running.ended()
        finally:
            if process.poll() is None:
                process.kill()
        if options:
            assert [line["task"] for line in lines(running) if line["level"] == "ERROR"] == [task]
        else:
            assert "duetime.failures" not in running.said  # it is shown once
