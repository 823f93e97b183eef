"""`duetime logs --search` and the filter `--logs`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duetime import App
from duetime.store.output import OutputChunk
from tests.cli.conftest import CommandLine
from tests.servers.waiting import PATIENCE

UNKNOWN_ID = "01a1e114-c422-747f-88ba-d8ab7298e491"


@pytest.fixture
def ids(duetime: CommandLine, url: str) -> list[str]:
    """Tasks with output: two greetings and a charge."""
    app = App(url, user="test")

    async def greet() -> None: ...

    async def charge() -> None: ...

    handlers = [app.task(greet), app.task(greet, name="greet_again"), app.task(charge)]

    async def fill() -> list[str]:
        async with app:
            tasks = [await handler.after(3_600) for handler in handlers]
            for task, text in zip(tasks, ("hello Ada\n", "hello Grace\n", "card refused: insufficient funds\n"), strict=True):
                await app.store.keep_output([OutputChunk(task.id, 1, 0, text, last=True)])
            return [task.id for task in tasks]

    return app.sync(fill())


def test_output_is_found_by_its_words(duetime: CommandLine, ids: list[str]) -> None:
    found = duetime.lines("logs", "--search", "hello")
    assert [line.split()[0] for line in found] == ["task", ids[1], ids[0]]
    assert found[1].endswith("hello Grace")
    [hit] = duetime.json("logs", "--search", '"insufficient funds" ref*', "--handler", "charge")["items"]
    assert (hit["task"], hit["attempt"], hit["passage"]) == (ids[2], 1, "card refused: insufficient funds")
    assert duetime.json("logs", "--search", "hello", "--until", "1h")["items"] == []
    assert len(duetime.json("logs", "-s", "hello", "--since", "1h")["items"]) == 2
    limited = duetime("logs", "--search", "hello", "--limit", "1")
    assert ids[1] in limited.stdout
    assert "--limit shows more" in limited.stderr
    assert "no logs have these words" in duetime("logs", "--search", "nobody").stderr


def test_tasks_are_filtered_by_words_of_their_output(duetime: CommandLine, ids: list[str]) -> None:
    assert duetime.ids("--logs", "hello") == [ids[1], ids[0]]
    assert duetime.ids("--logs", "hello ada") == [ids[0]]
    assert "1 task" in duetime("cancel", "--logs", "card", "--dry-run").stdout


def test_the_output_of_a_task_is_given_as_json(duetime: CommandLine, ids: list[str]) -> None:
    assert duetime.json("logs", ids[0])["items"] == [{"attempt": 1, "text": "hello Ada\n", "whole": True, "error": None}]


def test_following_a_task_that_does_not_run_says_once_that_it_waits(duetime: CommandLine, ids: list[str], url: str) -> None:
    following = subprocess.Popen(
        [sys.executable, "-m", "duetime.cli", "logs", ids[0], "--follow"],
        env={**os.environ, "DUETIME_URL": url, "PYTHONUNBUFFERED": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert following.stderr is not None
        said = following.stderr.readline()
        duetime("cancel", ids[0])
        _, stderr = following.communicate(timeout=PATIENCE)
    finally:
        following.kill()
        following.wait()
    assert said == f"task {ids[0]} is pending: waiting for it to run; `duetime why {ids[0]}` explains why it waits\n"
    assert stderr == ""
    assert following.returncode == 0


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "--search WORDS"),
        ((UNKNOWN_ID, "--search", "x"), 2, "--search WORDS"),
        (("--search", "x", "--follow"), 2, "need the ID"),
        ((UNKNOWN_ID, "--handler", "x"), 2, "go with --search"),
        ((UNKNOWN_ID, "--follow", "--json"), 2, "leave --json out"),
        (("--search", "***"), 2, "there is no word to search for"),
        ((UNKNOWN_ID,), 3, "no task"),
    ],
)
def test_what_makes_no_sense_is_refused(duetime: CommandLine, ids: list[str], args: tuple[str, ...], code: int, words: str) -> None:
    assert words in duetime("logs", *args, code=code).stderr
