"""On a real terminal: questions, tables that fit, colours, and progress on stderr only."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios

import pytest

from duetime import RetryPolicy
from tests.cli.conftest import CommandLine, Program, Shop
from tests.servers.waiting import PATIENCE

COLOUR = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
WIDTH = 80
INTERRUPT = "^C"


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def on_terminal(program: Program, *args: str, answer: str = "", width: int = WIDTH, until: str = "", times: int = 1) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and all that the terminal was sent.

    With `until` it is interrupted when it has written that text so many times.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    program.environment |= {"TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        program.environment.pop(name, None)
    seen, interrupted = b"", False
    with program.start(*args, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        while True:
            # readline does not see a signal that arrives while it begins; a person presses again, but not while the command is ending:
            # that takes more than a second on busy cores, and a signal in the middle of it ends the interpreter
            if interrupted and not select.select([ours], [], [], 10.0)[0]:
                process.send_signal(signal.SIGINT)
                continue
            try:
                part = os.read(ours, 65_536)
            except OSError:  # all who had it open have ended
                break
            if not part:
                break
            seen += part
            if until and seen.count(until.encode()) >= times:
                process.send_signal(signal.SIGINT)
                until, interrupted = "", True
            if b"[y/N]" in seen and answer == INTERRUPT:
                process.send_signal(signal.SIGINT)
                answer, interrupted = "", True
            elif b"[y/N]" in seen and answer:
                os.write(ours, answer.encode())
                answer = ""
        code = process.wait(PATIENCE)
    os.close(ours)
    return code, seen.decode()


def test_a_table_fits_the_terminal_and_ids_stay_whole(program: Program, duetime: CommandLine) -> None:
    task_id = duetime.submit("greet", "name=x", "--in", "1h", "--key", "k" * 100, "--collection", "eu")
    code, seen = on_terminal(program, "tasks")
    assert code == 0
    assert COLOUR.search(seen)
    plain = COLOUR.sub("", seen).splitlines()
    assert all(len(line.rstrip()) <= WIDTH for line in plain)
    assert plain[1].startswith(f"{task_id}  pending  greet")


def test_at_100_columns_a_table_of_tasks_keeps_keys_and_what_failed(program: Program, duetime: CommandLine, shop: Shop) -> None:
    fail = shop.app.handler("fail").options(retry=RetryPolicy.none(), key="order-7", collection="europe")
    task = shop.do(fail.now(text="no luck with this one"))
    shop.work_on(task.id)
    _, seen = on_terminal(program, "tasks", "--state", "failed", width=100)
    head, row = COLOUR.sub("", seen).splitlines()[:2]
    assert head.split()[:3] == ["id", "state", "handler"]
    assert {"key", "error"} <= set(head.split())
    assert "order-7" in row
    assert "ValueError: no" in row
    assert re.search(r"\d (ms|s) ago", row)
    _, seen = on_terminal(program, "tasks", "--state", "failed", width=200)
    assert " in fail" in seen


def test_at_100_columns_a_table_of_schedules_keeps_when_it_runs_and_ran(program: Program, duetime: CommandLine, shop: Shop) -> None:
    rule = ("--cron", "*/5 8-18 * * MON-FRI", "--tz", "America/Argentina/Buenos_Aires")
    duetime("schedules", "put", "sweep-the-floor", "--handler", "greet", "--payload", '{"name": "x"}', *rule)
    duetime("schedules", "trigger", "sweep-the-floor")
    shop.work()
    _, seen = on_terminal(program, "schedules", width=100)
    head, row = COLOUR.sub("", seen).splitlines()[:2]
    assert {"next", "last"} <= set(head.split())
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d \S+ \(in [^)…]+\)", row)
    assert re.search(r"succeeded .+ ago", row)


def test_what_is_piped_has_no_colours_and_is_not_cut(duetime: CommandLine) -> None:
    duetime.submit("greet", "name=x", "--in", "1h", "--key", "k" * 100, "--collection", "eu")
    answer = duetime("tasks").stdout
    assert "\x1b" not in answer
    assert "k" * 100 in answer


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("\n", 1, 2), (INTERRUPT, 130, 2), ("\x04", 130, 2)])
def test_people_are_asked_before_many_tasks_are_changed(program: Program, duetime: CommandLine, answer: str, code: int, left: int) -> None:
    for number in range(2):
        duetime.submit("greet", f"name=n{number}", "--in", "1h")
    ended, seen = on_terminal(program, "cancel", "--handler", "greet", answer=answer)
    assert "cancel 2 tasks? [y/N]" in COLOUR.sub("", seen)
    assert ended == code
    assert len(duetime.ids("--state", "pending")) == left


def test_top_keeps_drawing_until_it_is_interrupted(program: Program) -> None:
    code, seen = on_terminal(program, "top", "--every", "0.2", until="attempts/s", times=3)
    assert code == 130
    assert "handler" in seen
    assert "greet" in seen
    assert "\x1b[?1049h" in seen  # the alternate screen, which is left again
    assert "\x1b[?1049l" in seen
