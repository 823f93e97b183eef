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

from tests.cli.conftest import CommandLine, Program, Shop
from tests.servers.waiting import PATIENCE

COLOUR = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
WIDTH = 80
INTERRUPT = "^C"


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def on_terminal(program: Program, *args: str, answer: str = "") -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and all that the terminal was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
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
