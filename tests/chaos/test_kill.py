"""`kill -9`, SIGSTOP and the death of sub-processes: nothing is lost, nothing runs twice at once."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from duetime import State
from tests.chaos.fleet import Fleet, until

ROUNDS = int(os.environ.get("DUETIME_TEST_KILLS", "8"))


@pytest.mark.timeout(300 + 10 * ROUNDS)
@pytest.mark.covers("REQ.3", "RED.2", "ATF.8")
async def test_workers_killed_at_random_lose_nothing_and_overlap_nowhere(fleet: Fleet) -> None:
    chance = random.Random()
    for _ in range(3):
        await fleet.start(ready=False)
    for worker in fleet.workers:
        await fleet.is_ready(worker)
    for _ in range(ROUNDS):
        handlers = chance.choices(["quick", "threaded", "boxed"], weights=[8, 4, 1], k=30)
        await fleet.submit(fleet.new(handler, seconds=chance.uniform(0, 0.1)).after(chance.uniform(0, 0.5)) for handler in handlers)
        await asyncio.sleep(chance.uniform(0, 0.4))
        alive = [worker for worker in fleet.workers if worker.running]
        chance.choice(alive).kill()
        await fleet.start(ready=chance.random() < 0.5)
    await fleet.finish()
    history = await fleet.check()
    states = await fleet.states()
    assert len(states) == ROUNDS * 30
    assert set(states.values()) == {"succeeded"}
    assert len(history.killed) == ROUNDS


@pytest.mark.covers("ATF.8")
async def test_a_frozen_worker_keeps_its_tasks_and_goes_on_when_it_thaws(fleet: Fleet) -> None:
    frozen = await fleet.start("--lease", "0.5s")
    fleet.hold()
    held = await fleet.submit(fleet.new(handler, held=True) for handler in ["quick"] * 4 + ["threaded"] * 4 + ["boxed"])
    await until("all have started", lambda: fleet.started(*held))
    await fleet.freeze_outside_a_write(frozen)
    other = await fleet.start("--lease", "0.5s")
    await fleet.submit(fleet.new("quick") for _ in range(20))
    await asyncio.sleep(1.5)  # three leases: on a store that goes by leases alone it would be dead by now
    assert "died" not in other.log()
    assert {(await fleet.app.get(task.id)).state for task in held} == {State.RUNNING}
    frozen.thaw()
    fleet.let_go()
    await fleet.finish()
    history = await fleet.check()
    assert all(len(history.attempts[task.id]) == 1 for task in held), "nobody had to run them again"
    assert frozen.running


async def test_sub_processes_die_with_their_worker_and_the_next_attempt_waits_for_that(fleet: Fleet) -> None:
    worker = await fleet.start()
    fleet.hold()
    tasks = await fleet.submit(fleet.new("boxed", held=True) for _ in range(3))
    await until("all have started", lambda: fleet.started(*tasks))
    children = {fleet.history().attempts[task.id][0].start.pid for task in tasks}
    assert worker.pid not in children
    assert len(children) == 3
    other = await fleet.start()
    worker.kill()
    await until("the sub-processes are gone", lambda: not any(lives(child) for child in children))
    await until("the others have seen the death", lambda: "3 attempts go back" in other.log())
    fleet.let_go()
    await fleet.finish()
    history = await fleet.check()
    assert all([attempt.start.fence for attempt in history.attempts[task.id]] == [1, 2] for task in tasks)
    assert {(await fleet.app.get(task.id)).tries for task in tasks} == {0}


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that is dead but not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
