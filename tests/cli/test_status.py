"""`duetime status`: a line for people and an exit code for monitors."""

from __future__ import annotations

from tests.cli.conftest import CommandLine, Shop


def test_it_says_whether_all_is_well_and_ends_accordingly(duetime: CommandLine, shop: Shop) -> None:
    assert duetime.lines("status") == ["All is well."]
    assert duetime.json("status") == {"well": True, "text": "All is well.", "findings": []}
    duetime("gates", "pause", "greet", "--for", "5m")
    first, note = duetime.lines("status")
    assert first == "All is well."
    assert note.startswith("note: In 4 min 5")
    duetime("gates", "drop", "fail", "--collection", "eu", "--note", "stock")
    assert duetime("status", code=1).stdout.splitlines()[0] == "warning: A gate drops the tasks of fail, collection eu: stock"
    duetime("submit", "fail", "text=x")
    lines = duetime("status", code=1).stdout.splitlines()
    assert lines[0].startswith("problem: fail has 1 due task and no live worker;")
    assert len(lines) == 3


def test_a_store_that_is_not_there_ends_with_5(duetime: CommandLine) -> None:
    assert duetime("status", "--url", "sqlite:///nowhere.db", code=5).stdout == ""
