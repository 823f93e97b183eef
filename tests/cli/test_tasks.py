"""Looking at tasks: lists, one task, and why it is where it is."""

import msgspec
import pytest

from duetime import RetryPolicy
from tests.cli.conftest import CommandLine, Shop
from tests.servers.telling import declare_telling


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def test_an_empty_list_says_so_on_stderr(duetime: CommandLine) -> None:
    answer = duetime("tasks")
    assert (answer.stdout, answer.stderr) == ("", "no tasks match\n")
    assert duetime.json("tasks") == {"items": [], "next": None}


@pytest.mark.covers("ATF.5")
def test_the_state_of_tasks_is_listed_and_shown(duetime: CommandLine, shop: Shop) -> None:
    good = duetime.submit("greet", "name=Ada")
    bad = duetime.submit("fail", "text=no luck")
    later = duetime.submit("greet", "name=Bob", "--in", "1h", "--key", "order-7", "--collection", "eu")
    shop.work()
    rows = {line.split()[0]: line for line in duetime.lines("tasks")}
    assert "succeeded" in rows[good]
    assert "pending" in rows[bad]
    assert "ValueError: no luck" in duetime("task", bad).stdout
    assert "due in 59 min" in rows[later] or "due in 1 h" in rows[later]
    assert "order-7" in rows[later]
    shown = duetime("task", good).stdout
    assert '"hello Ada"' in shown
    assert duetime.json("task", good)["attempts"][0]["outcome"] == "succeeded"
    assert duetime.json("task", bad)["attempts"][0]["error"]["type"] == "ValueError"


def test_filters_choose(duetime: CommandLine, shop: Shop) -> None:
    good = duetime.submit("greet", "name=Ada", "--collection", "eu")
    bad = duetime.submit("fail", "text=x")
    later = duetime.submit("greet", "name=Bob", "--in", "2h", "--key", "k")
    shop.work()
    assert duetime.ids() == [later, bad, good]
    assert duetime.ids("--state", "succeeded") == [good]
    assert duetime.ids("--handler", "fail") == [bad]
    assert duetime.ids("--collection", "eu") == [good]
    assert duetime.ids("--key", "k") == [later]
    assert duetime.ids("--retrying") == [bad]
    assert duetime.ids("--handler", "greet", "--state", "pending") == [later]
    assert duetime.ids("--schedule", "none") == []
    assert duetime.ids("--due-after", "1h") == [later]
    assert duetime.ids("--due-before", "1h", "--state", "succeeded") == [good]
    assert duetime.ids("--since", "1h") == [later, bad, good]
    assert duetime.ids("--until", "1h") == []
    assert duetime.ids("--since", "2030-01-01T00:00:00Z") == []
    assert duetime.ids("--state", "succeeded", "--finished-after", "1h") == [good]
    assert duetime.ids("--state", "succeeded", "--finished-before", "1h") == []


def run_once(shop: Shop, text: str) -> str:
    """Submit a task that fails at its only try, and run it."""
    fail = shop.app.handler("fail")
    task = shop.do(fail.options(retry=RetryPolicy.none()).now(text=text))
    shop.work_on(task.id)
    return task.id


def test_a_failed_task_shows_what_failed_and_where(duetime: CommandLine, shop: Shop) -> None:
    task_id = run_once(shop, "no luck")
    location = duetime.json("task", task_id)["error"]["location"]
    assert "1 try, no retry" in duetime("task", task_id).stdout, "its policy is told in words"
    assert location.endswith(" in fail")
    assert "conftest.py:" in location
    [_, listed] = duetime.lines("tasks", "--state", "failed")
    assert "ValueError: no luck" in listed
    assert listed.endswith(location)
    shown = duetime("task", task_id).stdout
    assert shown.count(location) == 2  # of the task, and of its attempt
    assert "Traceback (most recent call last):\n" in shown
    assert "    raise ValueError(text)\n" in shown
    assert "duetime/worker" not in shown
    assert f"(ValueError: no luck, at {location})" in duetime("why", task_id).stdout
    logs = duetime("logs", task_id).stdout
    assert logs.startswith("Traceback (most recent call last):\n")
    assert logs.endswith("ValueError: no luck\n")
    assert duetime("logs", task_id, "--follow").stdout == logs
    [item] = duetime.json("logs", task_id)["items"]
    assert (item["attempt"], item["text"], item["error"]["location"]) == (1, "", location)


def test_a_traceback_cannot_play_tricks_with_a_terminal(duetime: CommandLine, shop: Shop) -> None:
    task_id = run_once(shop, "\x1b[31mred")
    for command in ("task", "logs", "why"):
        shown = duetime(command, task_id).stdout
        assert "\x1b" not in shown
        assert "[31mred" in shown


def test_the_detail_of_an_attempt_is_shown_on_a_line_of_its_own(duetime: CommandLine, shop: Shop) -> None:
    facts = {"status": 503, "phases": {"dns": 0.002, "reused": True}, "location": "https://a.example/\x1b[31m"}
    task = shop.do(declare_telling(shop.app, "ring", facts).now())
    shop.work_on(task.id)
    shown = duetime.lines("task", task.id)
    assert "attempt 1: status 503, location https://a.example/\\x1b[31m; phases: dns 2 ms, reused true" in shown
    assert duetime.json("task", task.id)["attempts"][0]["detail"] == facts


def test_a_list_goes_on_where_the_last_one_ended(duetime: CommandLine) -> None:
    ids = [duetime.submit("greet", f"name=n{number}", "--in", "1h") for number in range(5)][::-1]
    first = duetime.json("tasks", "--limit", "2")
    assert [task["id"] for task in first["items"]] == ids[:2]
    second = duetime.json("tasks", "--limit", "2", "--cursor", first["next"])
    assert [task["id"] for task in second["items"]] == ids[2:4]
    last = duetime.json("tasks", "--limit", "2", "--cursor", second["next"])
    assert ([task["id"] for task in last["items"]], last["next"]) == (ids[4:], None)
    answer = duetime("tasks", "--limit", "2")
    assert len(answer.stdout.splitlines()) == 3
    assert f"--cursor {first['next']}" in answer.stderr


def test_everything_is_listed_page_by_page(duetime: CommandLine, shop: Shop) -> None:
    greet = shop.app.handler("greet")
    shop.do(shop.app.submit_many([greet.new(name="x").after(3_600) for _ in range(2_345)]))
    assert len(set(duetime.ids())) == 2_345
    assert len(duetime.lines("tasks", "--all")) == 2_346
    limited = duetime.json("tasks", "--limit", "1500")
    assert (len(limited["items"]), limited["next"] is None) == (1_500, False)


def test_a_listed_task_is_one_line_of_json_with_utc_instants(duetime: CommandLine) -> None:
    task_id = duetime.submit("greet", "name=Ada", "--at", "2030-01-31T07:00:00+01:00")
    [_, line, _] = duetime.lines("tasks", "--json")
    task = msgspec.json.decode(line)
    assert (task["id"], task["due_at"]) == (task_id, "2030-01-31T06:00:00Z")


def test_what_could_play_tricks_with_a_terminal_is_shown_harmless(duetime: CommandLine) -> None:
    duetime.submit("greet", "--payload", '{"name": "x"}', "--meta", "a=\x1b[31mred\nnext", "--in", "1h")
    shown = duetime("task", duetime.ids()[0]).stdout
    assert "\x1b" not in shown
    assert "[31mred" in shown


def test_why_says_that_no_worker_runs_the_handler_and_later_how_it_ended(duetime: CommandLine, shop: Shop) -> None:
    task_id = duetime.submit("greet", "name=Ada")
    assert duetime.lines("why", task_id) == [
        "no live worker runs greet; there is no worker at all. Start one: duetime worker APP",
    ]
    [reason] = duetime.json("why", task_id)["items"]
    assert reason["kind"] == "no_worker"
    shop.work()
    assert duetime("why", task_id).stdout.startswith("it succeeded ")


def test_why_tells_every_reason(duetime: CommandLine) -> None:
    task_id = duetime.submit("greet", "name=Ada", "--in", "2h")
    duetime("gates", "pause", "greet", "--note", "stock service down")
    due, gate, worker = duetime.lines("why", task_id)
    assert due.startswith("it is due in ")
    assert gate.startswith("a gate pauses greet until it is opened; set by ")
    assert gate.endswith(": stock service down")
    assert worker.startswith("no live worker runs greet")


def test_a_query_says_what_options_say_and_more(duetime: CommandLine, shop: Shop) -> None:
    duetime.submit("fail", "text=stock")
    shop.work()
    greeting = duetime.submit("greet", "name=Ada", "--priority", "8", "--key", "ada", "--in", "1h")
    assert duetime.ids("state:pending", "priority:>=7") == duetime.ids("--where", "state:pending priority:>=7") == [greeting]
    assert duetime.ids("handler:gr* due:<2h payload.name:Ada") == [greeting]
    assert duetime.ids("handler:gr*", "--state", "failed") == []
    assert len(duetime.ids("handler:*", "--handler", "*")) == 2
    assert duetime("tasks", "state:pending key:ada", "--count").stdout == "1 task\n"
    assert duetime.json("tasks", "priority:0..9", "--count") == {"count": 2, "more": False}
    [line] = duetime.lines("tasks", "key:ada")[1:]
    assert line.startswith(greeting)


def test_a_query_that_cannot_be_read_is_refused_with_its_position(duetime: CommandLine, shop: Shop) -> None:
    refused = duetime("tasks", "state:fialed", code=2).stderr
    assert "the query cannot be read at character 7 ('fialed'): expected one of blocked, pending" in refused
    assert "give the query once" in duetime("tasks", "state:failed", "--where", "key:a", code=2).stderr
    assert "handler is given both in the query and beside it" in duetime("tasks", "handler:a", "--handler", "b", code=2).stderr


def test_many_tasks_are_changed_by_a_query(duetime: CommandLine, shop: Shop) -> None:
    kept, gone = (duetime.submit("greet", f"name={name}", "--in", "1h") for name in ("Ada", "Bob"))
    assert "1 task" in duetime("cancel", "--where", "handler:gr* payload.name:Bob", "--yes").stdout
    assert duetime.ids("state:cancelled") == [gone]
    assert duetime.ids("state:pending") == [kept]


def test_people_find_what_they_submitted(duetime: CommandLine, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_USER", "anna")
    hers = duetime.submit("greet", "name=Ada")
    monkeypatch.setenv("DUETIME_USER", "ben")
    his = duetime.submit("greet", "name=Bob")
    assert duetime.ids("--mine") == [his]
    assert duetime.ids("--submitted-by", "anna") == [hers]
    assert duetime("tasks", "--mine", "--count").stdout.strip() == "1 task"
    assert duetime.json("cancel", "--mine", "--yes")["matched"] == 1
    assert duetime.json("task", hers)["state"] == "pending"
