"""Worker processes on PostgreSQL that drain, block, meet what they do not know, and speak through a pooler."""

import asyncio

import pytest

from duetime import State
from tests.chaos.fleet import Fleet, until
from tests.chaos.pooling import Pooling
from tests.conformance.build import new_task
from tests.servers.waiting import PATIENCE


async def test_t4_an_old_process_drains_while_the_new_one_recovers_what_it_may(postgres_fleet: Fleet) -> None:
    """T4: same host, same handlers. What the old one still runs is its own, for longer than a lease, until it dies."""
    fleet = postgres_fleet
    old = await fleet.start("--lease", "2s", "--grace", "60s")
    fleet.hold()
    tasks = await fleet.submit(fleet.new("quick", held=True) for _ in range(4))
    await until("they have started", lambda: fleet.started(*tasks))
    old.terminate()
    new = await fleet.start("--lease", "2s", "--grace", "60s")
    for task in await fleet.submit(fleet.new("quick") for _ in range(4)):
        await fleet.app.result(task, timeout=PATIENCE)
    await asyncio.sleep(3)  # a lease and a half: it drains for longer than that, and is left alone
    fleet.let_go()
    assert await old.ended() == 0
    await fleet.finish()
    assert all(len(fleet.history().attempts[task.id]) == 1 for task in tasks)
    assert "died" not in new.log()
    fleet.hold()
    again = await fleet.submit(fleet.new("quick", held=True) for _ in range(2))
    await until("they have started", lambda: fleet.started(*again))
    new.terminate()
    newest = await fleet.start("--lease", "2s")
    new.kill()  # in the middle of its drain
    await until("its tasks were taken back", lambda: "2 attempts go back" in newest.log())
    for task in again:
        await fleet.app.cancel(task.id)
    await fleet.finish()
    await fleet.check()


async def test_t6_one_payload_that_cannot_be_read_leaves_the_rest_of_its_batch_alone(postgres_fleet: Fleet) -> None:
    """T6: all are claimed at once; two do not fit the handler, and are parked until a worker comes that they fit."""
    fleet = postgres_fleet
    new_tasks = [new_task("quick", payload) for payload in [b"{}"] * 10 + [b'{"seconds": "soon"}', b"[7]"] + [b"{}"] * 10]
    for added in await fleet.store.add(new_tasks):
        fleet.journal.write("submitted", task=added.record.id)
    await fleet.start()

    async def states() -> list[State]:
        return [(await fleet.app.get(each.id)).state for each in new_tasks]

    expected = [State.SUCCEEDED] * 10 + [State.PENDING] * 2 + [State.SUCCEEDED] * 10

    async def parked() -> bool:
        return await states() == expected and len([task async for task in fleet.app.tasks(parked=True)]) == 2

    await until("the others have run, and these two are parked", parked)
    for each in new_tasks[10:12]:
        await fleet.app.cancel(each.id)
    await fleet.check()


async def test_t8_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_task(postgres_fleet: Fleet) -> None:
    """T8: the lease is renewed by another thread; only where that cannot run either does the kernel end the process."""
    fleet = postgres_fleet
    sitting, holding = "sits_on_the_loop", "holds_the_lock_of_the_interpreter"
    sitter = await fleet.start("--lease", "1.5s", "--handler", sitting, ready=False)
    holder = await fleet.start("--lease", "1.5s", "--handler", holding)
    await fleet.is_ready(sitter)
    blocked = await fleet.one(sitting, seconds=4.5)
    held = await fleet.one(holding, length=26)
    await until("both have started", lambda: fleet.started(blocked, held))
    successor = await fleet.start("--lease", "1.5s", "--handler", holding)
    assert await holder.ended() == -9, "ended by the kernel before its lease was over"
    await fleet.finish()
    assert len(fleet.history().attempts[blocked.id]) == 1
    assert sitter.running
    assert (successor.log() + sitter.log()).count(" died; ") == 1, "that of the one which held the lock"
    attempts = fleet.history().attempts[held.id]
    assert [attempt.start.fence for attempt in attempts] == [1, 2]
    assert attempts[1].start.pid != attempts[1].start.worker, "the second time in a sub-process with a lock of its own"
    await fleet.check()


async def test_t16_everything_works_through_a_pooler_in_transaction_mode(tmp_path_factory: pytest.TempPathFactory) -> None:
    """T16: PgBouncer where it is installed, otherwise without what it takes away: LISTEN, and statements that outlive a transaction."""
    async with Pooling() as pooling:
        print(f"T16 runs {pooling.how}")
        async with Fleet(tmp_path_factory.mktemp("pooled"), url=pooling.url, look_url=pooling.look_url) as fleet:
            workers = await fleet.start_some(2, "--lease", "2s")
            await fleet.submit(fleet.new("quick", seconds=0.02).after(0.01 * number) for number in range(100))
            fleet.hold()
            [keyed] = await fleet.submit([fleet.app.handler("boxed").options(key="one").new(held=True)])
            await until("it has started", lambda: fleet.started(keyed))
            workers[0].kill()
            fleet.let_go()
            await fleet.app.gates.pause("stumbles")
            fleet.journal.write("gate", handler="stumbles")
            await fleet.submit(fleet.new("stumbles") for _ in range(5))
            fleet.journal.write("opened", handler="stumbles")
            await fleet.app.gates.open("stumbles")
            await fleet.finish()
            assert set((await fleet.states()).values()) == {"succeeded"}
            await fleet.check()


async def test_t17_a_worker_that_knows_half_of_the_handlers_leaves_the_others_tasks_alone(postgres_fleet: Fleet) -> None:
    """T17: what it does not know waits untouched, however much of it there is, and holds nothing up."""
    fleet = postgres_fleet
    await fleet.start("--handler", "quick")
    strange = await fleet.submit(fleet.new("threaded") for _ in range(300))
    known = await fleet.submit(fleet.new("quick") for _ in range(50))
    await until("what it knows has run", lambda: fleet.started(*known))
    for task in strange[::50]:
        record = await fleet.app.get(task.id)
        assert (record.state, record.attempt) == (State.PENDING, 0)
    await fleet.start("--handler", "threaded")
    await fleet.finish()
    assert set((await fleet.states()).values()) == {"succeeded"}
    history = await fleet.check()
    assert all(len(attempts) == 1 for attempts in history.attempts.values())
