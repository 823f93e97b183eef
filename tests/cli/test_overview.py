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


def test_handlers_are_listed_with_what_they_keep_for_a_time_of_their_own(duetime: CommandLine, shop: Shop) -> None:
    shop.app.task(lambda: None, name="audit", keep_failed=365 * 86_400, keep_succeeded=5_400)
    shop.work()
    header, audit, *_ = duetime.lines("handlers")
    assert "keeps" in header
    assert "succeeded 1 h 30 min, failed 365 days" in audit
    found = {each["name"]: each["keep"] for each in duetime.json("handlers")["items"]}
    assert (found["audit"], found["greet"]) == ({"failed": 31_536_000, "succeeded": 5_400}, {})


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
        assert (found["pid"], found["alive"], set(found["slots"])) == (worker.own_pid, True, {"fail", "greet"})


def test_workers_and_handlers_show_no_more_slots_than_the_process_has(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet", "--handler", "fail", "--concurrency", "3"):
        header, line = (re.split(r"\s{2,}", each.strip()) for each in duetime.lines("workers"))
        assert dict(zip(header, line, strict=True))["slots"] == "3"
        [found] = duetime.json("workers")["items"]
        assert (found["slots"], found["concurrency"]) == ({"fail": 3, "greet": 3}, 3)
        slots = {each["name"]: each["slots"] for each in duetime.json("handlers")["items"]}
        assert (slots["greet"], slots["fail"]) == (3, 3)


def test_top_shows_rates_lateness_and_what_waits_by_handler(duetime: CommandLine, shop: Shop) -> None:
    for number in range(3):
        duetime.submit("greet", f"name=customer {number}")
    shop.work()
    answer = duetime("top", "--once")
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in answer.stdout.splitlines())
    assert header[:6] == ["handler", "per s", "failed/min", "due", "oldest due", "running"]
    assert {row[0] for row in rows} == {"fail", "greet"}
    assert "attempts/s" in answer.stderr
    assert "0 live workers" in answer.stderr
    found = {each["handler"]: each for each in duetime.json("top")["items"]}
    assert sum(value or 0 for value in found["greet"]["values"]["attempts"]) == 3
    assert found["greet"]["step"] == 10
