"""The dead-man timer, with real processes that really die.

No test measures how soon: bounds of waiting are generous, and a process that should live outlives a timer that was replaced
or disarmed right after it was set.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from duetime.worker import deadman
from duetime.worker.deadman import DeadMan

pytestmark = pytest.mark.slow

PATIENCE = 20.0
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of this platform has no such call")

Start = Callable[..., "subprocess.Popen[str]"]

PREAMBLE = """
import gc, os, re, signal, subprocess, sys, threading, time
from duetime.worker import deadman
from duetime.worker.deadman import DeadMan

def hold_the_gil():
    re.match("(a+)+$", "a" * 100 + "b")
    print("outlived it")
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs; what a test leaves running is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        command = [*prefix, sys.executable, "-c", PREAMBLE + dedent(program), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:  # Not reaped, so the number is still its own; its group may hold children.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)


def end_of(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def wait_for(what: str, condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.005)


def is_stopped(process: "subprocess.Popen[str]") -> bool:
    return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def is_dead(process: "subprocess.Popen[str]") -> bool:
    """Look without reaping, so that the process can still be sent a signal."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_here_the_timer_is_available() -> None:
    assert DeadMan().available


def test_a_process_that_holds_the_gil_is_killed(start: Start) -> None:
    status, output = end_of(start("DeadMan().arm(0.5); hold_the_gil()"))
    assert output == ""
    assert -status in (signal.SIGKILL, signal.SIGALRM)


@NEEDS_LINUX
def test_a_process_stopped_past_its_timer_never_runs_again(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    program = """
        DeadMan().arm(1.5)
        with open(sys.argv[1], "ab", 0) as journal:
            while True:
                journal.write(b".")
    """
    process = start(program, str(journal))
    wait_for("the process to write", lambda: journal.stat().st_size)
    process.send_signal(signal.SIGSTOP)
    wait_for("the process to stop", lambda: is_stopped(process) or is_dead(process))
    written = journal.stat().st_size
    wait_for("the process to die while it is stopped", lambda: is_dead(process))
    os.kill(process.pid, signal.SIGCONT)
    assert end_of(process) == (-signal.SIGKILL, "")
    assert journal.stat().st_size == written


def test_arming_anew_replaces_the_timer(start: Start) -> None:
    assert end_of(start("d = DeadMan(); d.arm(1); d.arm(60); time.sleep(1.5); print('alive')")) == (0, "alive\n")


def test_arming_anew_can_bring_the_end_nearer(start: Start) -> None:
    status, output = end_of(start("d = DeadMan(); d.arm(600); d.arm(0.1); hold_the_gil()"))
    assert output == ""
    assert status < 0


def test_a_process_that_is_armed_again_and_again_lives(start: Start) -> None:
    program = """
        d = DeadMan()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            d.arm(3)
            time.sleep(0.01)
        print("alive")
    """
    assert end_of(start(program)) == (0, "alive\n")


def test_a_disarmed_process_lives_and_can_be_armed_again(start: Start) -> None:
    program = """
        d = DeadMan()
        d.arm(1)
        d.disarm()
        d.disarm()
        time.sleep(1.5)
        print("alive", flush=True)
        d.arm(0.1)
        hold_the_gil()
    """
    status, output = end_of(start(program))
    assert output == "alive\n"
    assert status < 0


@pytest.mark.parametrize("arming", ["d.arm(0)", "d.arm(-5)", "d.arm(10, since=d.now() - 11)"])
def test_an_instant_that_has_passed_ends_the_process_at_once(start: Start, arming: str) -> None:
    status, output = end_of(start(f"d = DeadMan(); {arming}; hold_the_gil()"))
    assert output == ""
    assert status < 0


def test_time_counts_from_the_reading_that_was_passed(start: Start) -> None:
    assert end_of(start("d = DeadMan(); d.arm(0.5, since=d.now() + 60); time.sleep(1); print('alive')")) == (0, "alive\n")


def test_dropping_the_object_does_not_disarm(start: Start) -> None:
    status, output = end_of(start("DeadMan().arm(0.5); gc.collect(); hold_the_gil()"))
    assert output == ""
    assert status < 0


@NEEDS_LINUX
def test_two_timers_do_not_disturb_each_other(start: Start) -> None:
    assert end_of(start("a, b = DeadMan(), DeadMan(); a.arm(0.5); b.arm(600); b.disarm(); hold_the_gil()")) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("call", ["d.arm(1)", "d.disarm()"])
def test_a_forked_child_is_refused_the_timer_of_its_parent(start: Start, call: str) -> None:
    program = f"""
        d = DeadMan()
        d.arm(600)
        if os.fork() == 0:
            try:
                {call}
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
    """
    status, output = end_of(start(program))
    assert status == 0
    assert "timers do not survive a fork" in output


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_refused(seconds: float) -> None:
    dead_man = DeadMan()
    with pytest.raises(ValueError, match="must be finite"):
        dead_man.arm(seconds)


def test_the_interval_timer_kills_a_process_that_holds_the_gil(start: Start) -> None:
    program = "deadman._WAYS = (deadman._IntervalTimer,); d = DeadMan(); d.arm(600); d.disarm(); d.arm(0.5); hold_the_gil()"
    assert end_of(start(program)) == (-signal.SIGALRM, "")


def test_the_interval_timer_leaves_a_handler_of_its_signal_alone(start: Start) -> None:
    program = "signal.signal(signal.SIGALRM, lambda *_: None); deadman._WAYS = (deadman._IntervalTimer,); print(DeadMan().available)"
    assert end_of(start(program)) == (0, "False\n")


@NEEDS_LINUX
def test_a_kernel_without_boot_time_timers_is_asked_for_monotonic_ones(start: Start) -> None:
    status, output = end_of(start("time.CLOCK_BOOTTIME = 99; d = DeadMan(); print(d, flush=True); d.arm(0.5); hold_the_gil()"))
    assert (status, output) == (-signal.SIGKILL, "<DeadMan timer_create(CLOCK_MONOTONIC, SIGKILL)>\n")


@NEEDS_LINUX
def test_process_1_which_sigkill_does_not_reach_exits_all_the_same(start: Start) -> None:
    status, output = end_of(start("os.getpid = lambda: 1; d = DeadMan(); print(d, flush=True); d.arm(0.5); hold_the_gil()"))
    assert (status, output) == (signal.SIGRTMAX, "<DeadMan timer_create(CLOCK_BOOTTIME, SIGRTMAX)>\n")


@NEEDS_LINUX
def test_the_real_process_1_of_a_namespace_exits_all_the_same(start: Start) -> None:
    new_namespace = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    try:
        trial = subprocess.run([*new_namespace, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare command")
    if trial.returncode:
        pytest.skip(f"no new PID namespace: {trial.stderr.strip()}")
    process = start("d = DeadMan(); print(os.getpid(), flush=True); d.arm(0.5); hold_the_gil()", prefix=new_namespace)
    assert end_of(process) == (signal.SIGRTMAX, "1\n")


def test_where_no_way_is_possible_it_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(deadman, "_WAYS", ())
    dead_man = DeadMan()
    assert not dead_man.available
    with caplog.at_level(logging.WARNING, "duetime"):
        dead_man.arm(0)
        dead_man.arm(0, since=dead_man.now())
        dead_man.disarm()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"no dead-man timer on {sys.platform}"]
