"""Handlers that take their process down: blamed alone, run apart, quarantined in the end; the others go on."""

import pytest

from duetime import State
from tests.chaos.fleet import Fleet
from tests.servers.waiting import PATIENCE


@pytest.mark.parametrize("handler", ["exits_on_the_loop", "exits_in_a_thread", "exits_in_a_child"])
async def test_a_task_that_kills_its_process_is_quarantined_after_three_crashes(fleet: Fleet, handler: str) -> None:
    first = await fleet.start()
    task = await fleet.one(handler)
    if handler != "exits_in_a_child":
        assert await first.ended() == 7
        first = await fleet.start()
    bystanders = await fleet.submit(fleet.new("quick", seconds=0.05) for _ in range(20))
    await fleet.finish()
    failed = await fleet.app.get(task.id)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert failed.error.type == "Quarantined"
    assert "died 3 times" in failed.error.message
    assert failed.tries == 0, "a crash is no try of the policy's"
    history = await fleet.check()
    assert [attempt.start.fence for attempt in history.attempts[task.id]] == [1, 2, 3]
    assert first.running, "the suspect ran in a sub-process, so this worker survived it"
    assert {(await fleet.app.get(each.id)).state for each in bystanders} == {State.SUCCEEDED}


@pytest.mark.parametrize("handler", ["exits_on_the_loop", "exits_in_a_thread", "exits_in_a_child"])
async def test_a_task_that_crashed_once_succeeds_apart_from_the_others(fleet: Fleet, handler: str) -> None:
    worker = await fleet.start()
    task = await fleet.one(handler, times=1)
    if handler != "exits_in_a_child":
        await worker.ended()
        worker = await fleet.start()
    pid = await fleet.app.result(task, timeout=PATIENCE)
    assert pid != worker.pid
    await fleet.check()


@pytest.mark.covers("RMQ.4")
async def test_of_two_hundred_tasks_in_a_worker_only_the_one_that_kills_it_is_quarantined(fleet: Fleet) -> None:
    worker = await fleet.start()
    tasks = await fleet.submit([*(fleet.new("crowd") for _ in range(199)), fleet.new("crowd", poison="yes", wait_for=200)])
    assert await worker.ended() == 9
    second = await fleet.start()
    await fleet.finish(seconds=100)
    assert second.running, "all are suspects now and run apart, so the other deaths harm nobody"
    states = [(await fleet.app.get(task.id)).state for task in tasks]
    assert states == [State.SUCCEEDED] * 199 + [State.FAILED]
    await fleet.check()
