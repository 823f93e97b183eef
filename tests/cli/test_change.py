"""Changing tasks: by id, and many by filters."""

import asyncio

import pytest

from tests.cli.conftest import CommandLine, Shop
from tests.cli.test_exits import UNKNOWN_ID
from tests.servers.waiting import PATIENCE


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
    done = duetime.json("cancel", "--handler", "greet", "--yes")
    assert (done["matched"], done["answers"], done["dry_run"]) == (0, {}, False)


@pytest.mark.each_store
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


def test_a_copy_is_a_new_task_that_names_its_origin(duetime: CommandLine, shop: Shop) -> None:
    _mood[:] = ["good"]
    shop.app.task(name="moody")(_moody)
    shop.do(shop._open())
    origin = duetime.submit("moody")
    shop.work()
    [line] = duetime.lines("copy", origin)
    assert line.startswith(f"{origin} copied as ")
    made = duetime.json("task", line.rpartition(" ")[2])
    assert (made["handler"], made["state"], made["meta"]) == ("moody", "pending", {"copy_of": origin})
    assert duetime("copy", origin, "--payload", '{"mood": 1}', code=1).stdout == ""


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


def test_a_task_is_deleted_by_id_or_key_and_nothing_is_left(duetime: CommandLine, shop: Shop) -> None:
    [waiting_id] = waiting(duetime)
    done = duetime.submit("greet", "name=x", "--key", "order-7")
    shop.work_on(done)
    assert duetime.json("delete", waiting_id)["items"] == [{"id": waiting_id, "answer": "deleted", "exit_code": 0}]
    duetime("task", waiting_id, code=3)
    assert duetime.lines("delete", "--handler", "greet", "--key", "order-7") == [f"{done} deleted"]
    assert "no task" in duetime("delete", done, code=3).stderr
    assert duetime.ids() == []


def test_a_running_task_is_not_deleted(duetime: CommandLine, shop: Shop) -> None:
    started, over = asyncio.Event(), asyncio.Event()

    async def last() -> None:
        started.set()
        await over.wait()

    shop.app.task(name="last")(last)

    async def delete_while_it_runs() -> str:
        async with shop.app.worker():
            task = await shop.app.handler("last").now()
            await asyncio.wait_for(started.wait(), PATIENCE)
            answer = await asyncio.to_thread(duetime, "delete", task.id, code=4)
            over.set()
            await shop.app.result(task, timeout=PATIENCE)
            return answer.stderr

    assert "is running and cannot be deleted: cancel it, and delete it when it has ended" in shop.do(delete_while_it_runs())
    assert len(duetime.ids("--state", "succeeded")) == 1
