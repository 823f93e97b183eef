"""The whole store at a glance."""

import re

from tests.cli.conftest import CommandLine, Program, Shop


def test_handlers_are_listed_with_their_policies_and_tasks(duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("greet", "name=x", "--in", "1h")
    header, _, greet = duetime.lines("handlers")
    assert header.split()[:3] == ["handler", "workers", "slots"]
    assert greet.startswith("greet ")
    assert greet.endswith("Say hello.")
    found = {each["name"]: each for each in duetime.json("handlers")["items"]}
    assert found["greet"]["states"]["pending"] == 1
    assert found["greet"]["schema"]["required"] == ["name"]


def test_tasks_are_counted_by_handler_and_state(duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("greet", "name=x")
    shop.work()
    duetime.submit("greet", "name=y", "--in", "1h")
    duetime.submit("greet", "name=z")
    answer = duetime("stats")
    columns, numbers = (re.split(r"\s{2,}", line.strip()) for line in answer.stdout.splitlines())
    counted = dict(zip(columns, numbers, strict=True))
    assert (counted["due"], counted["later"], counted["succeeded"]) == ("1", "1", "1")
    assert counted["late p99"].endswith("s")
    assert counted["took p99"].endswith("ms")
    assert "0 live workers. A returned write survives" in answer.stderr
    assert duetime.json("stats")["states"]["pending"] == 2


def test_there_may_be_no_tasks_and_no_workers(duetime: CommandLine, shop: Shop) -> None:
    assert "the store holds no tasks" in duetime("stats").stderr
    assert duetime("workers").stderr == "no worker is registered; start one: duetime worker APP\n"


def test_workers_are_listed_with_their_process(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet", "--handler", "fail") as worker:
        _, line = duetime.lines("workers")
        assert line.split()[1] == "yes"
        assert line.endswith("fail, greet")
        [found] = duetime.json("workers")["items"]
        assert (found["pid"], found["alive"], set(found["slots"])) == (worker.process.pid, True, {"fail", "greet"})
