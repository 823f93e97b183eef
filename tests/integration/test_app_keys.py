"""Few tasks of many submissions, as programs ask for them: locally and over a server."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from duetime import App, InvalidValue, Schedule, State, Task
from duetime.testing import using
from tests.integration.reached import WAYS, reached


async def index(doc: int, change: int = 0) -> None:
    raise AssertionError("never run here")


@pytest.fixture(params=WAYS)
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    async with reached(request.param, "sqlite:///:memory:", user="anna@shop") as app:
        app.task(index)
        yield app


async def test_debounced_submissions_are_one_task_with_the_newest_arguments(app: App) -> None:
    often = app.handler("index").options(key="doc-7", debounce=timedelta(seconds=30), max_wait=300)
    first = await often.now(doc=7, change=1)
    last = await often.now(doc=7, change=2)
    assert (last.id, last.payload, last.state) == (first.id, {"doc": 7, "change": 2}, State.PENDING)
    assert last.merged is not None
    assert (last.merged.submissions, last.merged.latest_at) == (2, first.merged and first.merged.latest_at)
    assert timedelta(seconds=29) < last.due_at - first.submitted_at < timedelta(seconds=3_600)
    [again] = await app.submit_many([often.new(doc=7, change=3)])
    assert (again.id, again.payload["change"]) == (first.id, 3)


async def test_throttled_submissions_are_answered_with_the_first(app: App) -> None:
    seldom = app.handler("index").options(key="doc-7", throttle=600)
    first = await seldom.after(60, doc=7, change=1)
    many = await app.submit_many([seldom.new(doc=7, change=2), seldom.new(doc=7, change=3)])
    assert [(task.id, task.payload["change"]) for task in many] == [(first.id, 1)] * 2
    await app.cancel(first)
    assert (await seldom.now(doc=7)).id == first.id
    assert (await seldom.options(key="doc-8").now(doc=8)).id != first.id


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"debounce": 30}, "give key= too"),
        ({"throttle": 30}, "give key= too"),
        ({"key": "k", "debounce": 0}, "debounce must be positive"),
        ({"key": "k", "throttle": -1}, "throttle must be positive"),
        ({"key": "k", "max_wait": 30}, "give debounce too"),
        ({"key": "k", "debounce": 30, "max_wait": 29}, "max_wait must be at least debounce, got 29 and 30 seconds"),
        ({"key": "k", "debounce": 30, "throttle": 30}, "exclude each other"),
        ({"key": "k", "debounce": 1e12}, "9999"),
        ({"key": "k", "debounce": 30, "if_exists": "keep"}, "leave it out"),
        ({"key": "k", "if_exists": "queue"}, "if_exists must be one of error, keep, replace, queue_one"),
    ],
)
async def test_what_makes_no_sense_is_refused(app: App, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidValue, match=wrong):
        await app.handler("index").options(**options).now(doc=7)


async def test_debounce_says_when_the_task_is_due(app: App) -> None:
    often = app.handler("index").options(key="k", debounce=30)
    with pytest.raises(InvalidValue, match=r"submit it with \.now"):
        await often.after(60, doc=7)
    with pytest.raises(InvalidValue, match=r"leave out \.at"):
        often.new(doc=7).after(60)


@pytest.mark.parametrize("options", [{"if_exists": "queue_one"}, {"debounce": 30}, {"throttle": 30}])
async def test_a_callers_transaction_is_told_what_cannot_be(options: dict[str, Any], tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/tasks.db")
    app.task(index)
    async with app:
        connection = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
        connection.execute("begin immediate")
        with pytest.raises(InvalidValue, match="not possible with connection="):
            await app.handler("index").options(key="k", connection=connection, **options).now(doc=7)
        connection.execute("commit")
        connection.close()
        assert [task async for task in app.tasks()] == []


async def test_a_schedule_is_not_stored_behind_another(app: App) -> None:
    with pytest.raises(InvalidValue, match="if_exists must be one of error, keep, replace, got"):
        await app.schedules.put(Schedule("nightly", handler="index", rule="every 10m", payload={"doc": 1}), if_exists="queue_one")  # type: ignore[arg-type]


async def test_why_names_the_running_task_of_the_key() -> None:
    app = App("sqlite:///:memory:")
    seen: list[Task[None]] = []
    reasons: list[str] = []

    async def busy(doc: int) -> None:
        if not seen:
            seen.append(await app.handler("busy").options(key="k", if_exists="queue_one").now(doc=2))
            reasons.extend(reason.text for reason in await app.why(seen[0]))

    app.task(busy)
    async with using(app) as t:
        first = await app.handler("busy").options(key="k", if_exists="queue_one").now(doc=1)
        assert [task.payload["doc"] for task in await t.drain()] == [1, 2]
        assert f"it waits for task {first.id}" in reasons[0]
        assert "which has its key" in reasons[0]
