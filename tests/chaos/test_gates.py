"""Gates and cancels with several worker processes: what was acknowledged holds."""

import asyncio
import random
from collections import Counter

import pytest

from duetime import CancelVerdict, GateSet, State, Task
from tests.chaos.fleet import Fleet, until
from tests.servers.waiting import PATIENCE


async def start_three(fleet: Fleet) -> None:
    for _ in range(3):
        await fleet.start(ready=False)
    for worker in fleet.workers:
        await fleet.is_ready(worker)


@pytest.mark.covers("REQ.14", "ATF.4")
async def test_nothing_starts_after_a_gate_was_acknowledged_however_much_is_in_flight(any_fleet: Fleet) -> None:
    fleet = any_fleet
    await start_three(fleet)
    chance = random.Random()
    handler = fleet.app.handler("quick")
    gated = 0
    for _ in range(8):
        collections = [chance.choice(["eu", "us"]) for _ in range(150)]
        await fleet.submit(handler.options(collection=collection).new(seconds=chance.uniform(0, 0.02)) for collection in collections)
        await asyncio.sleep(chance.uniform(0, 0.1))
        collection = chance.choice([None, "eu", "us"])
        answer = await fleet.app.gates.pause("quick", collection=collection, timeout=PATIENCE)
        fleet.journal.write("gate", handler="quick", collection=collection)
        assert answer.in_force
        assert len(answer.confirmed) == 3
        late = [handler.options(collection=collection or "eu").new() for _ in range(10)]
        late_tasks = await fleet.submit(late)
        await asyncio.sleep(0.15)
        waiting = [(await fleet.app.get(task.id)).state for task in late_tasks]
        assert set(waiting) == {State.PENDING}
        gated += len(waiting)
        fleet.journal.write("opened", handler="quick", collection=collection)
        assert await fleet.app.gates.open("quick", collection=collection)
    await fleet.finish()
    assert gated == 80
    assert set((await fleet.states()).values()) == {"succeeded"}
    await fleet.check()


async def test_dropped_tasks_are_recorded_and_never_start(fleet: Fleet) -> None:
    await start_three(fleet)
    before = await fleet.submit(fleet.new("quick", seconds=0.01) for _ in range(100))
    answer = await fleet.app.gates.drop("quick", note="not wanted any more", timeout=PATIENCE)
    fleet.journal.write("gate", handler="quick")
    assert answer.in_force
    after = await fleet.submit(fleet.new("quick") for _ in range(20))
    await fleet.finish()
    assert {(await fleet.app.get(task.id)).state for task in after} == {State.DROPPED}
    assert {(await fleet.app.get(task.id)).state for task in before} <= {State.DROPPED, State.SUCCEEDED}
    await fleet.check()


async def test_a_gate_that_was_set_for_a_time_opens_by_itself(fleet: Fleet) -> None:
    await fleet.start()
    await fleet.app.gates.pause("quick", lasting=1.0)
    task = await fleet.one("quick")
    assert (await fleet.app.get(task.id)).state is State.PENDING
    [gate] = await fleet.app.gates.list()
    await until("the task has run", lambda: fleet.started(task))
    await fleet.finish()
    assert gate.until_at is not None
    [attempt] = fleet.history().attempts[task.id]
    assert attempt.start.wall >= gate.until_at.timestamp()
    assert (await fleet.app.get(task.id)).state is State.SUCCEEDED


async def test_a_frozen_worker_is_named_as_not_confirmed_and_a_dead_one_holds_nothing_up(fleet: Fleet) -> None:
    await start_three(fleet)
    alive, frozen, dead = fleet.workers
    ids = {worker.pid: worker.id for worker in await fleet.store.workers()}
    await fleet.freeze_outside_a_write(frozen)
    answers: list[GateSet] = []

    async def others_confirm() -> bool:
        answers.append(await fleet.app.gates.pause("quick", timeout=1))
        return answers[-1].waiting == [ids[frozen.pid]]

    await until("all but the frozen one have confirmed", others_confirm)
    answer = answers[-1]
    assert not answer.in_force
    assert str(answer) == "in force on 2 of 3 workers"
    frozen.thaw()
    dead.kill()
    answer = await fleet.app.gates.pause("quick", collection="eu", timeout=PATIENCE)
    assert answer.in_force
    assert set(answer.confirmed) <= {ids[alive.pid], ids[frozen.pid]}


async def test_cancelled_means_never_and_cancelling_ends_cancelled_unless_it_finished_first(any_fleet: Fleet) -> None:
    fleet = any_fleet
    await start_three(fleet)
    chance = random.Random()
    tasks: list[Task[None]] = []
    verdicts: dict[str, CancelVerdict] = {}
    fleet.hold()
    running = [await fleet.one(handler, held=True) for handler in ("quick", "threaded")]
    await until("they run", lambda: fleet.started(*running))
    verdicts |= {each.id: await fleet.app.cancel(each.id) for each in running}
    assert set(verdicts.values()) == {CancelVerdict.CANCELLING}
    await until("they have ended", lambda: all(attempt.end for each in running for attempt in fleet.attempts(each)))
    fleet.let_go()

    async def cancel_some() -> None:
        while len(verdicts) < 300:
            open_tasks = [task for task in tasks if task.id not in verdicts]
            for task in chance.sample(open_tasks, min(5, len(open_tasks))):
                verdict = await fleet.app.cancel(task.id)
                verdicts[task.id] = verdict
                if verdict is CancelVerdict.CANCELLED:
                    fleet.journal.write("cancelled", task=task.id)
            await asyncio.sleep(0.005)

    async def submit_some() -> None:
        for _ in range(15):
            handlers = chance.choices(["quick", "threaded"], k=30)
            new = [fleet.new(handler, seconds=chance.uniform(0, 0.3)).after(chance.uniform(0, 0.2)) for handler in handlers]
            tasks.extend(await fleet.submit(new))
            await asyncio.sleep(0.05)

    await asyncio.gather(submit_some(), cancel_some())
    await fleet.finish()
    states = await fleet.states()
    for task, verdict in verdicts.items():
        match verdict:
            case CancelVerdict.CANCELLED:
                assert states[task] == "cancelled"
            case CancelVerdict.CANCELLING:
                assert states[task] in ("cancelled", "succeeded")
            case _:
                assert states[task] == "succeeded"
    assert {states[task.id] for task in tasks if task.id not in verdicts} == {"succeeded"}
    assert CancelVerdict.CANCELLED in verdicts.values(), f"not all cases happened: {Counter(verdicts.values())}"
    assert {states[each.id] for each in running} == {"cancelled"}
    history = await fleet.check()
    for task, verdict in verdicts.items():
        if verdict is CancelVerdict.CANCELLED:
            assert task not in history.attempts, "it was answered that it never starts"
