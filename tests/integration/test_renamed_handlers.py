"""A handler gets another name while its tasks wait; the former name and the present one are one handler through every door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duetime import App, DuplicateKey, Task
from duetime.model.task import State
from tests.api.conftest import served
from tests.cli.conftest import CommandLine
from tests.servers.waiting import PATIENCE


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


def before(url: str) -> App:
    app = App(url)

    @app.task
    async def expire(order: int) -> str:
        return f"before {order}"

    return app


def after(url: str) -> App:
    app = App(url)

    @app.task(name="expire_order", aliases=["expire"])
    async def expire_order(order: int) -> str:
        return f"after {order}"

    return app


@pytest.fixture(params=["python", "http"])
async def door(request: pytest.FixtureRequest, url: str) -> AsyncIterator[App]:
    """A program that has none of the handlers' code, on the store or on a server; both names are declared."""
    async with before(url), after(url) as new:
        if request.param == "python":
            async with App(url) as app:
                yield app
        else:
            async with served(new) as http, App(http.url) as app:
                yield app


async def waiting(url: str, **options: Any) -> Task[Any]:
    """Submit a task by the former name, from the program as it was."""
    async with before(url) as old:
        return await old.handler("expire").options(**options).after(3600, order=7)


async def test_a_task_of_the_former_name_is_found_and_cancelled_by_the_present_one_and_its_key(url: str, door: App) -> None:
    task = await waiting(url, key="order-7")
    assert [found.id async for found in door.tasks(handler="expire_order")] == [task.id]
    assert [found.id async for found in door.tasks(handler="expire_order", key="order-7", state="pending")] == [task.id]
    with pytest.raises(DuplicateKey, match=task.id):
        await door.handler("expire_order").options(key="order-7").now(order=8)
    assert await door.cancel(handler="expire_order", key="order-7") == "cancelled"
    assert (await door.get(task)).state is State.CANCELLED


async def test_a_gate_on_the_present_name_holds_the_tasks_of_the_former_one_and_is_shown_once(url: str, door: App) -> None:
    task = await waiting(url)
    new = after(url)

    @new.task
    async def ping() -> str:
        return "pong"

    async with before(url).worker(), new.worker():
        set_gate = await door.gates.pause("expire_order", note="stock service down", timeout=PATIENCE)
        assert set_gate.in_force
        await door.reschedule(task.id, delay=0)
        assert [(gate.handler, gate.note) for gate in await door.gates.list()] == [("expire_order", "stock service down")]
        [reason] = [each for each in await door.why(task.id) if each.kind == "gate"]
        assert reason.text.startswith("a gate pauses expire_order until it is opened")
        for _ in range(3):  # the workers claim what is due meanwhile
            assert await door.result(await door.handler("ping").now(), timeout=PATIENCE) == "pong"
        assert (await door.get(task.id)).state is State.PENDING
        assert await door.gates.open("expire")
        result = await door.result(task.id, timeout=PATIENCE)
        assert result in ("before 7", "after 7")


async def test_handlers_and_counts_have_it_once(url: str, door: App) -> None:
    await waiting(url)
    await door.handler("expire_order").after(3600, order=8)
    await door.handler("expire").after(3600, order=9)
    [handler] = await door.handlers()
    assert (handler.name, list(handler.aliases), handler.states[State.PENDING]) == ("expire_order", ["expire"], 3)
    [counts] = (await door.stats()).handlers
    assert (counts.handler, counts.later) == ("expire_order", 3)


async def test_a_worker_from_before_the_renaming_counts_as_one_of_the_handler(url: str, door: App) -> None:
    async def worked() -> tuple[int, int]:
        [handler] = await door.handlers()
        return handler.workers, handler.slots

    async with before(url).worker(concurrency=5):
        assert await worked() == (1, 5)
        async with after(url).worker(concurrency=7):
            assert await worked() == (2, 12)


async def test_the_doctor_counts_what_nobody_runs_by_the_names_that_workers_know(url: str) -> None:
    async with before(url) as old, after(url) as new:
        await old.gates.pause("expire", timeout=0)
        await old.handler("expire").now(order=7)
        await new.handler("expire_order").now(order=8)

        async def noted() -> list[str]:
            found = (await new.doctor.examine()).findings
            return [f"{each.subject}: {each.detail}" for each in found if each.kind == "no worker"]

        assert await noted() == ["expire_order: 2 due tasks and no live worker that runs them"]
        async with before(url).worker():
            assert await noted() == ["expire_order: 1 due task and no live worker that runs them"]
            async with after(url).worker():
                assert await noted() == []


async def test_many_are_changed_by_the_present_name(url: str, door: App) -> None:
    task = await waiting(url)
    other = await door.handler("expire_order").after(3600, order=8)
    done = await door.cancel_many(handler="expire_order")
    assert (done.matched, done.answers) == (2, {"cancelled": 2})
    assert {(await door.get(each.id)).state for each in (task, other)} == {State.CANCELLED}


def test_the_command_line_takes_all_names_for_one(url: str) -> None:
    async def prepare() -> Task[Any]:
        task = await waiting(url, key="order-7")
        async with after(url):
            return task

    task = asyncio.run(prepare())
    duetime = CommandLine(url)
    assert duetime.ids("--handler", "expire_order") == [task.id]
    duetime("gates", "pause", "expire", "--note", "down")
    assert "expire_order" in duetime("gates").stdout
    assert "a gate pauses" in duetime("why", task.id).stdout
    duetime("gates", "open", "expire_order")
    assert [each["name"] for each in duetime.json("handlers")["items"]] == ["expire_order"]
    assert duetime.lines("cancel", "--handler", "expire_order", "--key", "order-7") == [f"{task.id} cancelled"]
