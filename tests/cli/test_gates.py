"""Gates from the command line."""

import pytest

from duetime import DisableAfter
from duetime.model.disabling import Observed
from tests.cli.conftest import CommandLine, Program, Shop, until


def test_closed_gates_are_listed_until_they_are_opened(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("gates").stderr == "all gates are open\n"
    assert duetime.lines("gates", "pause", "greet", "--collection", "eu", "--note", "stock service down") == [
        "pause greet, collection eu, until it is opened: in force"
    ]
    assert duetime.lines("gates", "drop", "fail", "--for", "10m")[0].endswith("UTC: in force")
    listed = duetime.lines("gates")
    assert listed == duetime.lines("gates", "list")
    assert "stock service down" in listed[2]
    dropping, pausing = duetime.json("gates")["items"]
    assert (dropping["handler"], dropping["action"], dropping["until_at"] is None) == ("fail", "drop", False)
    assert (pausing["handler"], pausing["collection"], pausing["action"]) == ("greet", "eu", "pause")
    assert duetime.lines("gates", "open", "fail") == ["open fail"]
    assert "no gate on greet;" in duetime("gates", "open", "greet", code=3).stderr
    duetime("gates", "open", "greet", "--collection", "eu")
    assert duetime.json("gates")["items"] == []


def test_gates_of_all_that_fit_are_closed_and_opened_together(duetime: CommandLine, shop: Shop) -> None:
    assert duetime.lines("gates", "pause", "g*", "--note", "why not") == ["pause greet: in force"]
    assert {each["handler"] for each in duetime.json("gates", "drop", "*")["items"]} == {"fail", "greet"}
    assert {(each["handler"], each["action"]) for each in duetime.json("gates")["items"]} == {("fail", "drop"), ("greet", "drop")}
    assert "no handler that is declared fits 'x*'" in duetime("gates", "pause", "x*", code=3).stderr
    assert "belongs to one handler" in duetime("gates", "pause", "*", "--collection", "eu", code=2).stderr
    assert duetime.lines("gates", "open", "*") == ["open fail, greet"]
    assert "no gate is closed" in duetime("gates", "open", "*", code=3).stderr


def test_the_list_says_when_a_broken_target_is_probed(duetime: CommandLine, shop: Shop) -> None:
    async def disable() -> None:
        async with shop.app as app:
            rule, version = DisableAfter(1, lasting=0), (await app.store.gates()).version
            await app.store.observe("w", [Observed(handler="greet", failures=1, last="503", rule=rule, seen_gates=version)])

    shop.do(disable())
    head, row = duetime.lines("gates")
    assert "probe" in head.lower()
    assert "duetime" in row
    [gate] = duetime.json("gates")["items"]
    assert (gate["automatic"], gate["probe_at"] is None) == (True, False)
    assert duetime.lines("gates", "open", "greet") == ["open greet"]


def test_an_unknown_handler_may_be_gated_in_advance(duetime: CommandLine, shop: Shop) -> None:
    duetime("gates", "pause", "planned", code=3)
    answer = duetime.json("gates", "pause", "planned", "--allow-unknown")
    assert (answer["in_force"], answer["gate"]["handler"]) == (True, "planned")


@pytest.mark.covers("ATF.4", "REQ.14")
def test_a_gate_holds_or_drops_what_a_running_worker_would_start(program: Program, duetime: CommandLine) -> None:
    with program.worker():
        assert duetime.lines("gates", "pause", "greet", "--collection", "eu") == [
            "pause greet, collection eu, until it is opened: in force"
        ]
        held = duetime.submit("greet", "name=held", "--collection", "eu")
        # the other collection passes, after the worker has had every chance to start the first
        assert duetime("submit", "greet", "name=free", "--collection", "us", "--wait").stdout == '"hello free"\n'
        assert duetime.json("task", held)["attempt"] == 0
        duetime("gates", "drop", "greet", "--collection", "us")
        dropped = duetime("submit", "greet", "name=x", "--collection", "us", "--wait", code=1)
        assert "ended dropped" in dropped.stderr
        duetime("gates", "open", "greet", "--collection", "eu")
        until(lambda: duetime.json("task", held)["state"] == "succeeded", lambda: "the held task to run")
