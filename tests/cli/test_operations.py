"""Operations on the command line: what filters start, how far it is, and how it is ended."""

from __future__ import annotations

import pytest

from tests.cli.conftest import CommandLine, Shop


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def cancelled(duetime: CommandLine, number: int = 3) -> str:
    """Cancel some tasks by a filter and return the id of the operation."""
    for each in range(number):
        duetime.submit("greet", f"name=n{each}", "--in", "1h")
    done = duetime.json("cancel", "--handler", "greet", "--yes")
    assert (done["matched"], done["answers"], done["state"]) == (number, {"cancelled": number}, "done")
    return str(done["operation"])


def test_what_a_filter_changed_is_listed_and_shown(duetime: CommandLine) -> None:
    assert duetime("operations").stderr.strip() == "there are no operations"
    name = cancelled(duetime)
    [listed] = duetime.json("operations")["items"]
    assert listed == duetime.json("operations", "show", name)
    assert (listed["id"], listed["verb"], listed["state"], listed["filter"]) == (name, "cancel", "done", {"handler": "greet"})
    shown = duetime("operations", "show", name).stdout
    assert "3 cancelled" in shown
    assert name in duetime("operations", "list", "--limit", "1").stdout


def test_what_has_ended_or_never_was_cannot_be_stopped(duetime: CommandLine) -> None:
    name = cancelled(duetime)
    for verb in ("stop", "pause", "resume"):
        assert "has ended already" in duetime("operations", verb, name, code=4).stderr
        assert "there is no operation 'nobody'" in duetime("operations", verb, "nobody", code=3).stderr


def test_a_rate_is_for_filters(duetime: CommandLine) -> None:
    task = duetime.submit("greet", "name=x", "--in", "1h")
    assert "--rate is about what filters match" in duetime("cancel", task, "--rate", "5", code=2).stderr
    assert "rate must be more than 0" in duetime("cancel", "--handler", "greet", "--yes", "--rate", "0", code=2).stderr
    assert duetime.lines("cancel", "--handler", "greet", "--yes", "--rate", "50") == ["1 task: 1 cancelled"]


def test_the_audit_names_the_operation(duetime: CommandLine) -> None:
    name = cancelled(duetime)
    [entry] = duetime.json("audit", "--action", "tasks.cancel")["items"]
    assert (entry["subject"], entry["detail"]) == ("handler greet", f"operation {name} done; 3 cancelled")
