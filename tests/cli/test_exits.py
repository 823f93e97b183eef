"""How commands end: exit codes, one line of explanation, and output that nobody reads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from duetime import errors
from duetime.cli.failures import exit_code
from tests.cli.conftest import CommandLine, Program, Shop
from tests.servers.waiting import PATIENCE

UNKNOWN_ID = "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidValue("x"), 2),
        (errors.InvalidHandler("x"), 1),
        (errors.InvalidPayload("x"), 1),
        (errors.PayloadTooLarge("x"), 1),
        (errors.UnknownHandler("x"), 3),
        (errors.TaskNotFound("x"), 3),
        (errors.DuplicateKey("x", task_id="1"), 4),
        (errors.DuplicateKeys("x", tasks=[], duplicates={0: "1"}), 4),
        (errors.Conflict("x"), 4),
        (errors.TaskFailed("x", task_id="1", state="failed"), 1),
        (errors.TaskCancelled("x", task_id="1"), 1),
        (errors.StoreUnavailable("x"), 5),
        (TimeoutError("x"), 1),
        (click.UsageError("x"), 2),
        (click.ClickException("x"), 1),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("frobnicate",), 2, "no such command"),
        (("tasks", "--state", "lost"), 2, "'lost' is not one of"),
        (("tasks", "--since", "yesterday"), 2, "expected an instant"),
        (("tasks", "--cursor", "nonsense"), 2, "begin again without it"),
        (("submit", "greet", "name=x", "--priority", "12"), 2, "priority must be"),
        (("submit", "greet", "name=x", "--in", "-5"), 2, "negative"),
        (("submit", "greet", "name=x", "--in", "soon"), 2, "30s"),
        (("submit", "greet", "name=x", "--at", "2030-03-31T02:30", "--tz", "Europe/Berlin"), 2, "skip 2030-03-31T02:30"),
        (("submit", "greet", "name=x", "--at", "2030-10-27T02:30", "--tz", "Europe/Berlin"), 2, "+02:00 or +01:00"),
        (("submit", "greet", "name=x", "--at", "2030-10-27T02:30", "--tz", "Mars/Crater"), 2, "Mars/Crater"),
        (("submit", "greet", "name=x", "--at", "2030-01-01T00:00Z", "--in", "5"), 2, "not both"),
        (("submit", "greet", "name"), 2, "NAME=VALUE"),
        (("submit", "greet", "name=x", "name=y"), 2, "given twice"),
        (("submit", "greet", "name=x", "--payload", '{"name": 1}'), 2, "both as NAME=VALUE and in --payload"),
        (("submit", "greet", "--payload", "{"), 2, "not JSON"),
        (("submit", "greet", "--payload", "[1]"), 2, "JSON object"),
        (("submit", "greet", "--payload", "@nowhere.json"), 2, "nowhere.json cannot be read"),
        (("submit", "greet"), 1, "name is missing"),
        (("submit", "greet", "name=x", "colour=red"), 1, "colour"),
        (("submit", "greet", f"name={'x' * 1_000_001}"), 1, "1,000,000"),
        (("submit", "great", "name=x"), 3, "did you mean greet?"),
        (("submit", "unheard_of"), 3, "--allow-unknown"),
        (("task", UNKNOWN_ID), 3, "no task"),
        (("task", "7"), 3, "not a task id"),
        (("why", UNKNOWN_ID), 3, "no task"),
        (("logs", UNKNOWN_ID), 3, "no task"),
        (("cancel",), 2, "give task ids, or filters"),
        (("cancel", UNKNOWN_ID), 3, "no task"),
        (("cancel", UNKNOWN_ID, "--dry-run"), 2, "--dry-run"),
        (("cancel", UNKNOWN_ID, "--state", "pending"), 2, "not both"),
        (("cancel", "--state", "failed", "--yes"), 2, "failed"),
        (("retry", UNKNOWN_ID), 3, "no task"),
        (("edit", UNKNOWN_ID), 2, "nothing to change"),
        (("edit", UNKNOWN_ID, "--priority", "1"), 3, "no task"),
        (("reschedule", UNKNOWN_ID), 2, "--at or --in"),
        (("gates", "pause", "great"), 3, "did you mean greet?"),
        (("gates", "pause", "greet", "--for", "0"), 2, "positive"),
        (("gates", "open", "greet"), 3, "no gate"),
        (("worker",), 2, "DUETIME_APP"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)
def test_bad_input_is_answered_with_one_line(duetime: CommandLine, shop: Shop, args: tuple[str, ...], code: int, words: str) -> None:
    answer = duetime(*args, code=code)
    assert words in answer.stderr
    assert answer.stderr.startswith("duetime: ")
    assert answer.stderr.count("\n") == 1
    assert answer.stdout == ""


READING = [("tasks",), ("task", UNKNOWN_ID), ("why", UNKNOWN_ID), ("logs", UNKNOWN_ID), ("cancel", UNKNOWN_ID), ("gates",), ("handlers",)]
READING += [("workers",), ("stats",), ("doctor",), ("submit", "greet", "name=x"), ("gates", "pause", "greet")]


@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_a_missing_store_is_told_and_not_created(duetime: CommandLine, tmp_path: Path, args: tuple[str, ...]) -> None:
    answer = duetime(*args, code=5)
    assert f"there is no store at {duetime.url}" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("wrong", "code"), [("mysql://x", 2), ("sqlite://host/x.db", 2), ("sqlite:///x.db?colour=red", 2), ("", 2)])
def test_a_malformed_url_is_refused(duetime: CommandLine, wrong: str, code: int) -> None:
    assert duetime("tasks", "--url", wrong, code=code).stderr.startswith("duetime: ")


def test_a_file_that_is_no_database_is_unreachable(duetime: CommandLine, tmp_path: Path) -> None:
    tmp_path.joinpath("letter.txt").write_text("Dear all, this is not a database.\n" * 100)
    answer = duetime("tasks", "--url", f"sqlite:///{tmp_path}/letter.txt", code=5)
    assert "not a database" in answer.stderr


def test_a_store_without_tables_is_sent_to_migrate(duetime: CommandLine, tmp_path: Path) -> None:
    tmp_path.joinpath("empty.db").touch()
    answer = duetime("tasks", "--url", f"sqlite:///{tmp_path}/empty.db", code=5)
    assert "duetime migrate" in answer.stderr


def test_the_option_comes_before_the_environment(duetime: CommandLine, shop: Shop, tmp_path: Path) -> None:
    duetime("tasks", "--url", duetime.url, url="sqlite:///elsewhere.db")
    duetime("gates", "--url", duetime.url, "list", url="sqlite:///elsewhere.db")
    assert not tmp_path.joinpath("elsewhere.db").exists()


def test_an_unexpected_error_is_one_line_too(duetime: CommandLine, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError("ouch")

    monkeypatch.setattr("duetime.client.insight.LocalInsight.stats", broken)
    answer = duetime("stats", code=1)
    assert answer.stderr.startswith("duetime: unexpected ZeroDivisionError: ouch (")
    assert answer.stderr.count("\n") == 1


def test_the_traceback_is_shown_on_demand(duetime: CommandLine, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_DEBUG", "1")
    answer = duetime("task", UNKNOWN_ID, code=3)
    assert "Traceback (most recent call last)" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("duetime: there is no task")


def test_output_that_nobody_reads_ends_quietly(program: Program, shop: Shop) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program.run("tasks", "--json", stdout=writer)
    finally:
        os.close(writer)
    assert done.stderr == ""


def test_a_character_that_the_terminal_lacks_does_no_harm(program: Program, duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("greet", "name=x", "--key", "Grüße-☃", "--in", "1h")
    environment = {**os.environ, "DUETIME_URL": duetime.url, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    program.environment = environment
    assert "pending" in program.run("tasks").stdout


def test_an_interrupt_ends_with_130(program: Program, shop: Shop) -> None:
    with program.start("submit", "greet", "name=x", "--in", "1h", "--wait", stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the id: from here on it waits
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr.read().strip() == "duetime: interrupted"


def test_two_interrupts_at_once_end_it_too(program: Program, shop: Shop) -> None:
    for _ in range(5):
        with program.start("submit", "greet", "name=x", "--in", "1h", "--wait", stdout=subprocess.PIPE) as process:
            assert process.stderr is not None
            process.stderr.readline()  # the id: from here on it waits
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
            assert process.stderr.read().strip() == "duetime: interrupted"


@pytest.mark.parametrize(
    ("module", "args", "extra"),
    [
        ("uvicorn", ("server",), "server"),
        ("uvicorn", ("dev",), "server"),
        ("asyncpg", ("tasks", "--url", "postgresql://localhost/none"), "postgres"),
        ("aiohttp", ("tasks", "--url", "https://localhost:1"), "http"),
    ],
)
def test_a_part_that_is_not_installed_ends_with_one_and_the_same_code(module: str, args: tuple[str, ...], extra: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from duetime.cli.main import cli; cli.main({args!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert f"pip install 'duetime[{extra}]'" in ended.stderr
