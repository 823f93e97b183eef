"""A handler forks, and the copy comes back into the worker's code: it must not go on as a second worker."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.runtime.forks import EXIT_FORKED
from tests.chaos.fleet import Fleet, WorkerProcess, until
from tests.servers.waiting import PATIENCE

APP = "tests.attacks.forking:app"
ON_THE_LOOP = ["fork_in_a_coroutine", "fork_after_waiting"]
BESIDE_IT = ["fork_in_a_thread", "fork_in_a_process", "fork_in_a_coroutine_in_a_process"]
WAYS = {"returns": EXIT_FORKED, "raises": EXIT_FORKED, "fails to exec": EXIT_FORKED, "exits": 23}

pytestmark = pytest.mark.slow


async def result_of(fleet: Fleet, handler: str, **arguments: Any) -> object:
    return await fleet.app.result(await fleet.one(handler, **arguments), timeout=PATIENCE)


async def works_on(fleet: Fleet, worker: WorkerProcess) -> None:
    """Assert that the worker claims, settles, is told of tasks and stops in order, with nothing left in the store."""
    for number in range(20):
        assert await result_of(fleet, "say", text=f"{number}") == f"{number}"
    assert [record.pid for record in await fleet.store.workers()] == [worker.pid]
    worker.terminate()
    assert await worker.ended() == 0
    assert await fleet.store.workers() == []
    assert not await fleet.store.inspect(repair=False)
    assert "stale" not in worker.log()


@pytest.mark.parametrize("handler", [*ON_THE_LOOP, *BESIDE_IT])
async def test_a_fork_that_comes_back_leaves_at_once_and_the_worker_goes_on(any_fleet: Fleet, handler: str) -> None:
    worker = await any_fleet.start(app=APP)
    for way, code in WAYS.items():
        assert await result_of(any_fleet, handler, way=way) == code, way
    if handler in BESIDE_IT[:1] or handler in ON_THE_LOOP:
        assert worker.log().count("came back into the code of Duetime") == len(WAYS)
        assert "raised ValueError: in the fork and came back" in worker.log()
    await works_on(any_fleet, worker)


@pytest.mark.parametrize("handler", [*ON_THE_LOOP, "fork_in_a_coroutine_in_a_process", "fork_in_a_task"])
async def test_a_fork_that_waits_in_the_event_loop_leaves_instead(any_fleet: Fleet, handler: str) -> None:
    worker = await any_fleet.start(app=APP)
    assert await result_of(any_fleet, handler, way="waits") == EXIT_FORKED
    await works_on(any_fleet, worker)


async def test_a_task_of_a_handler_that_forks_does_not_take_the_worker_with_it(any_fleet: Fleet) -> None:
    worker = await any_fleet.start(app=APP)
    for way in ("returns", "raises", "fails to exec"):
        assert await result_of(any_fleet, "fork_in_a_task", way=way) == EXIT_FORKED, way
    await works_on(any_fleet, worker)


async def test_a_fork_dies_of_the_signal_that_would_stop_the_worker(fleet: Fleet) -> None:
    worker = await fleet.start(app=APP)
    assert await result_of(fleet, "terminate_a_fork") == -15
    await works_on(fleet, worker)


async def test_what_a_fork_prints_of_itself_is_in_the_output_of_a_sub_process(fleet: Fleet) -> None:
    await fleet.start(app=APP)
    task = await fleet.one("fork_in_a_process", way="exits")
    await fleet.app.result(task, timeout=PATIENCE)

    async def is_told() -> bool:
        return any("raised SystemExit: 23 and came back into" in output.text for output in await fleet.app.output.read(task.id))

    await until("the line of the fork is in the task's output", is_told)


@pytest.mark.system  # for `make test-all`: on SQLite one copy in some four hundred, eight at once, still does not come to an end
async def test_a_fork_may_use_the_app_and_its_parent_does_not_notice(any_fleet: Fleet) -> None:
    worker = await any_fleet.start(app=APP)
    for number in range(3):
        assert await result_of(any_fleet, "submit_in_a_fork", text=f"from fork {number}") == 0
    said = {task.result async for task in any_fleet.app.tasks(handler="say")}
    assert len(said) == 3
    await works_on(any_fleet, worker)
