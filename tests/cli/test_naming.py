"""Naming a task at the command line: by its id, by the beginning of one, or by handler and key."""

from __future__ import annotations

import pytest

from duetime.ids import new_id
from tests.cli.conftest import LATER, NEIGHBOUR, PLANNED, CommandLine

NOT_IDS = ["01a1e113", "01a", "7", "01a1e1120", "order-a", f"{LATER}8", "", "%", "01a1_"]


@pytest.mark.parametrize("beginning", ["01a1f", "01a1f000", "01a1f000-0000-74", "01A1F000", LATER])
@pytest.mark.usefixtures("known_tasks")
def test_a_unique_beginning_of_an_id_names_a_task(duetime: CommandLine, beginning: str) -> None:
    assert duetime.json("task", beginning)["id"] == LATER
    assert duetime("why", beginning).stdout == duetime("why", LATER).stdout
    assert LATER in duetime("logs", beginning).stderr
    assert duetime.lines("edit", beginning, "--priority", "9")[0].startswith(f"{LATER} pending")
    assert duetime.lines("reschedule", beginning, "--in", "2h")[0].startswith(f"{LATER} pending")
    assert duetime.lines("cancel", beginning) == [f"{LATER} cancelled"]
    assert duetime.lines("retry", beginning) == [f"{LATER} pending"]
    assert duetime.ids("--id-prefix", beginning.lower()) == [LATER]


@pytest.mark.parametrize(
    "command", ["task", "why", "logs", "cancel", "retry", "edit --priority 1", "reschedule --in 1h"], ids=lambda words: words.split()[0]
)
@pytest.mark.usefixtures("known_tasks")
def test_the_beginning_of_several_ids_is_refused_and_they_are_listed(duetime: CommandLine, command: str) -> None:
    answer = duetime(*command.split(), "01a1e112", code=4)
    lines = answer.stderr.splitlines()
    assert f"{PLANNED} greet pending" in lines
    assert f"{NEIGHBOUR} fail pending" in lines
    assert lines[-1] == "duetime: 2 task ids begin with 01a1e112; write more of the one that is meant"
    assert LATER not in answer.stderr
    assert answer.stdout == ""


@pytest.mark.usefixtures("known_tasks")
def test_of_very_many_ids_that_begin_alike_some_are_listed(duetime: CommandLine) -> None:
    ids = [duetime.submit("greet", "name=x", "--in", "1h") for _ in range(12)]
    common = ids[0][:4]
    assert all(task_id.startswith(common) for task_id in ids)
    answer = duetime("task", common, code=4)
    assert sum("pending" in line for line in answer.stderr.splitlines()) == 10
    assert "more than 10 task ids begin with" in answer.stderr


@pytest.mark.parametrize("text", NOT_IDS)
@pytest.mark.usefixtures("known_tasks")
def test_what_no_id_begins_with_is_not_found(duetime: CommandLine, text: str) -> None:
    answer = duetime("task", text, code=3)
    assert answer.stderr.count("\n") == 1


@pytest.mark.usefixtures("known_tasks")
def test_one_beginning_that_fails_does_not_stop_the_rest(duetime: CommandLine) -> None:
    answer = duetime("cancel", "01a1e112", "01a1f", LATER, new_id(), code=4)
    assert answer.stdout.splitlines() == [f"{LATER} cancelled"]
    items = duetime.json("cancel", "01a1e112-c0d3-7403-88d7-6b1eec5cb647", "01a1e113", code=3)["items"]
    assert [(item["id"], item["exit_code"]) for item in items] == [(PLANNED, 0), ("01a1e113", 3)]


@pytest.mark.usefixtures("known_tasks")
def test_handler_and_key_name_a_task_wherever_an_id_does(duetime: CommandLine) -> None:
    key = ("--handler", "greet", "--key", "order-c")
    assert duetime.json("task", *key)["id"] == LATER
    assert duetime("why", *key).stdout == duetime("why", LATER).stdout
    assert LATER in duetime("logs", *key).stderr
    assert duetime.lines("edit", *key, "--priority", "9")[0].startswith(f"{LATER} pending")
    assert duetime.lines("reschedule", *key, "--in", "2h")[0].startswith(f"{LATER} pending")
    assert duetime.lines("cancel", *key) == [f"{LATER} cancelled"]
    assert duetime.lines("retry", *key) == [f"{LATER} pending"]
    unknown = ("--handler", "greet", "--key", "order-d")
    for command in (["task"], ["why"], ["logs"], ["edit", "--priority", "9"], ["reschedule", "--in", "1h"], ["cancel"], ["retry"]):
        assert "has no task with the key 'order-d'" in duetime(*command, *unknown, code=3).stderr


@pytest.mark.parametrize(
    "words",
    [
        "task",
        "why",
        "logs",
        f"task {LATER} --handler greet --key order-c",
        f"why {LATER} --key order-c",
        f"logs {LATER} --handler greet --key order-c",
        "logs --key order-c",
        "logs --search x --key order-c",
        "task --handler greet",
        "why --key order-c",
        "edit --priority 1",
        "edit --priority 1 --key order-c",
        f"edit {LATER} --priority 1 --handler greet --key order-c",
        "reschedule --in 1h --handler greet",
    ],
)
@pytest.mark.usefixtures("known_tasks")
def test_a_task_is_named_in_one_way(duetime: CommandLine, words: str) -> None:
    assert "--handler and --key" in duetime(*words.split(), code=2).stderr
