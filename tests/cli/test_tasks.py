"""Looking at tasks: lists, one task, and why it is where it is."""

import msgspec
import pytest

from tests.cli.conftest import CommandLine, Shop


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
