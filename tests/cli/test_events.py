"""Events on the command line: those that are kept, and those that come."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli.conftest import CommandLine, Program, Shop


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def test_events_are_listed(duetime: CommandLine) -> None:
    assert "there are no such events" in duetime("events").stderr
    task = duetime.submit("greet", "name=Ada", "--in", "1h")
    duetime("cancel", task)
    listed = duetime.json("events")
    assert [(each["name"], each["task"]) for each in listed["items"]] == [("task.submitted", task), ("task.cancelled", task)]
    assert task in duetime("events", "task.cancelled", "--handler", "gr*").stdout
    assert duetime.json("events", "--after", listed["next"])["items"] == []
    assert duetime.json("events", "gate.*", "--task", task)["items"] == []
    assert "there is no event 'task.fail'" in duetime("events", "task.fail", code=2).stderr


@pytest.mark.slow
def test_events_are_followed_as_lines_of_json(duetime: CommandLine, program: Program) -> None:
    cursor = duetime.json("events")["next"]
    task = duetime.submit("greet", "name=Ada", "--in", "1h")
    with program.start("events", "--follow", "--json", "--after", cursor) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
    event = msgspec.json.decode(line)
    assert (event["name"], event["task"]) == ("task.submitted", task)
