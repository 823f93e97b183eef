"""Changing handlers while tasks wait, from the command line: the gate of a deploy, what is parked, and its repair."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from duetime import App
from tests.cli.conftest import CommandLine
from tests.servers.waiting import PATIENCE

SHOP = """
from duetime import App
app = App()

@app.task
async def expire_order({parameters}) -> str:
    return "done"
"""


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    monkeypatch.syspath_prepend(tmp_path)
    return Deploy(tmp_path)


class Deploy:
    """Writes a version of a program; returns its import string."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = 0

    def __call__(self, parameters: str) -> str:
        self._versions += 1
        name = f"{self._folder.name.replace('-', '_')}_v{self._versions}"
        (self._folder / f"{name}.py").write_text(SHOP.format(parameters=parameters))
        sys.modules.pop(name, None)
        return f"{name}:app"


def program(url: str) -> App:
    app = App(url)

    @app.task
    async def expire_order(order_id: int) -> str:
        return "done"

    return app


async def submit_three(url: str) -> None:
    async with program(url) as app:
        for number in range(3):
            await app.handler("expire_order").after(3600, order_id=number)


async def park_one(url: str) -> str:
    """Let a worker of the program refuse a task of newer code."""
    app, newer = program(url), App(url)

    @newer.task
    async def expire_order(order_id: int, note: str = "") -> None: ...

    async with newer, app.worker():
        task = await newer.handler("expire_order").now(order_id=1, note="x")
        async with asyncio.timeout(PATIENCE):
            while not (await newer.get(task)).parked:  # noqa: ASYNC110  another process may change it
                await asyncio.sleep(0.01)
    return task.id


def test_a_check_before_a_deploy_exits_with_1_if_waiting_tasks_do_not_fit_and_with_0_if_they_do(
    duetime: CommandLine, url: str, deploy: Deploy
) -> None:
    asyncio.run(submit_three(url))
    before = duetime.json("handlers")
    refused = duetime("worker", "--check", deploy("order: int"), code=1)
    assert refused.stdout == "3 pending tasks of expire_order do not fit its parameters (order_id: unknown)\n"
    assert "3 waiting tasks checked" in refused.stderr
    fits = duetime("worker", "--check", deploy("order_id: int, note: str = ''"))
    assert (fits.stdout, "3 waiting tasks checked" in fits.stderr) == ("", True)
    assert duetime.json("handlers") == before, "a check declares nothing"
    assert "there are more" in duetime("worker", "--check", "--limit", "2", deploy("order_id: int")).stderr


def test_what_is_parked_is_listed_explained_found_by_the_doctor_and_repaired(duetime: CommandLine, url: str, deploy: Deploy) -> None:
    task = asyncio.run(park_one(url))
    assert duetime.ids("--parked") == [task]
    assert "parked" in duetime("tasks").stdout
    assert "parked" in duetime("task", task).stdout
    assert "note: unknown" in duetime("why", task).stdout
    doctor = duetime("doctor").stdout
    assert "parked: expire_order: 1 task parked" in doctor
    duetime("edit", task, "--payload", '{"nonsense": 1}', code=1)
    assert duetime("edit", task, "--payload", '{"order_id": 1}').stdout.startswith(f"{task} pending, due")
    assert duetime.ids("--parked") == []
    assert duetime.json("task", task)["payload"] == {"order_id": 1}


def test_the_doctor_names_waiting_tasks_that_do_not_fit_what_is_declared(duetime: CommandLine, url: str) -> None:
    asyncio.run(submit_three(url))
    changed = App(url)

    @changed.task
    async def expire_order(order: int) -> None: ...

    async def declare() -> None:
        async with changed:
            pass

    asyncio.run(declare())
    assert "3 pending tasks of expire_order do not fit its parameters" in duetime("doctor").stdout


def test_the_payload_of_a_task_that_ended_without_success_is_changed_for_a_retry(duetime: CommandLine, url: str) -> None:
    asyncio.run(submit_three(url))
    task = duetime.ids()[0]
    duetime("cancel", task)
    assert "duetime retry" in duetime("edit", task, "--payload", '{"order_id": 9}').stdout
    duetime("retry", task)
    assert duetime.json("task", task)["payload"] == {"order_id": 9}
