"""Changing tasks: by id, and many by filters."""

import pytest

from tests.cli.conftest import CommandLine, Shop
from tests.cli.test_exits import UNKNOWN_ID


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def waiting(duetime: CommandLine, number: int = 1) -> list[str]:
    return [duetime.submit("greet", f"name=n{each}", "--in", "1h") for each in range(number)]


def test_tasks_are_cancelled_by_id(duetime: CommandLine) -> None:
    first, second = waiting(duetime, 2)
    assert duetime.lines("cancel", first, second) == [f"{first} cancelled", f"{second} cancelled"]
    answer = duetime("cancel", first, code=4)
    assert answer.stdout == f"{first} finished\n"


def test_one_id_that_fails_does_not_stop_the_rest(duetime: CommandLine) -> None:
    first, second = waiting(duetime, 2)
    answer = duetime("cancel", first, UNKNOWN_ID, second, code=3)
    assert answer.stdout.splitlines() == [f"{first} cancelled", f"{second} cancelled"]
    assert UNKNOWN_ID in answer.stderr
    items = duetime.json("cancel", UNKNOWN_ID, first, code=3)["items"]
    assert [item["exit_code"] for item in items] == [3, 4]


def test_a_task_is_cancelled_by_its_key_without_a_question(duetime: CommandLine) -> None:
    task_id = duetime.submit("greet", "name=x", "--key", "order-7", "--in", "1h")
    assert duetime.lines("cancel", "--handler", "greet", "--key", "order-7") == [f"{task_id} cancelled"]
    assert duetime("cancel", "--handler", "greet", "--key", "order-7", code=4).stdout == f"{task_id} finished\n"
    duetime("cancel", "--handler", "greet", "--key", "order-8", code=3)


def test_many_are_cancelled_by_filters_only_if_that_is_confirmed(duetime: CommandLine) -> None:
    ids = waiting(duetime, 3)
    other = duetime.submit("fail", "text=x", "--in", "1h")
    answer = duetime("cancel", "--handler", "greet", code=2)
    assert "this would cancel 3 tasks; add --yes" in answer.stderr
    assert duetime.lines("cancel", "--handler", "greet", "--dry-run") == ["3 tasks would be changed by cancel"]
    assert set(duetime.ids("--state", "pending")) == {*ids, other}
    assert duetime.lines("cancel", "--handler", "greet", "--yes") == ["3 tasks: 3 cancelled"]
    assert duetime.ids("--state", "pending") == [other]
    assert duetime.json("cancel", "--handler", "greet", "--yes") == {"matched": 0, "answers": {}, "dry_run": False}


@pytest.mark.covers("AIR.10")
def test_a_failed_task_is_explained_and_runs_again_with_its_history(duetime: CommandLine, shop: Shop) -> None:
    _mood.clear()
    shop.app.task(name="moody")(_moody)
    shop.do(shop._open())
    task_id = duetime.submit("moody")
    shop.work()
    assert duetime("why", task_id).stdout.startswith("it failed ")
    _mood.append("good")
    assert duetime.lines("retry", "--handler", "moody", "--yes") == ["1 task: 1 changed"]
    assert duetime("why", task_id).stdout.startswith("no live worker runs moody")
    shop.work()
    assert [attempt["outcome"] for attempt in duetime.json("task", task_id)["attempts"]] == ["fatal", "succeeded"]


_mood: list[str] = []


async def _moody() -> None:
    from duetime import Fatal

    if not _mood:
        raise Fatal("not in the mood")


def test_only_what_did_not_succeed_is_retried(duetime: CommandLine, shop: Shop) -> None:
    done = duetime.submit("greet", "name=x")
    shop.work()
    [cancelled] = waiting(duetime)
    duetime("cancel", cancelled)
    assert "is succeeded" in duetime("retry", done, code=4).stderr
    assert duetime.lines("retry", "--handler", "greet", "--yes") == ["0 tasks"]
    assert duetime.lines("retry", "--state", "cancelled", "--yes") == ["1 task: 1 changed"]
    assert duetime.ids("--state", "pending") == [cancelled]


def test_a_waiting_task_is_edited(duetime: CommandLine) -> None:
    [task_id] = waiting(duetime)
    changes = ["--at", "2031-02-03T04:05:06Z", "--priority", "9", "--collection", "eu"]
    assert duetime.lines("edit", task_id, *changes) == [f"{task_id} pending, due 2031-02-03 04:05:06 UTC"]
    task = duetime.json("task", task_id)
    assert (task["due_at"], task["priority"], task["collection"]) == ("2031-02-03T04:05:06Z", 9, "eu")
    duetime("cancel", task_id)
    assert "cannot be changed" in duetime("edit", task_id, "--priority", "1", code=4).stderr


@pytest.mark.covers("RSQ.7")
def test_delayed_tasks_are_removed_run_now_or_pushed_back(duetime: CommandLine, shop: Shop) -> None:
    now, back, removed = waiting(duetime, 3)
    duetime("reschedule", now, "--in", "0")
    duetime("reschedule", back, "--at", "2031-02-03T04:05:06Z")
    duetime("edit", removed, "--collection", "old")
    duetime("cancel", "--collection", "old", "--yes")
    shop.work_on(now)
    states = {task["id"]: task["state"] for task in duetime.json("tasks")["items"]}
    assert states == {now: "succeeded", back: "pending", removed: "cancelled"}
    assert duetime.json("task", back)["due_at"] == "2031-02-03T04:05:06Z"
