"""Handlers that block the event loop, hold the interpreter's lock or never end: the lease holds and the timeout ends them."""

from typing import Any

import pytest

from duetime import State
from tests.chaos.fleet import Fleet, until

GIVE_UP_SOON: dict[str, Any] = {"chaos_throw_after": 0.2, "chaos_stuck_after": 0.5}


@pytest.mark.parametrize(("handler", "arguments"), [("sleeps_on_the_loop", {"seconds": 3.0}), ("spins_on_the_loop", {})])
async def test_a_handler_that_blocks_the_loop_for_leases_is_named_and_ended_at_its_timeout(
    fleet: Fleet, handler: str, arguments: dict[str, float]
) -> None:
    worker = await fleet.start("--lease", "1s")
    witness = await fleet.start("--lease", "1s", "--handler", "threaded")
    task = await fleet.one(handler, **arguments)
    await until("it has started", lambda: fleet.started(task))
    bystanders = await fleet.submit(fleet.new("quick") for _ in range(5))
    await fleet.finish()
    blocked = await fleet.app.get(task.id)
    assert blocked.state is State.FAILED
    assert blocked.error is not None
    assert blocked.error.type == "TimedOut"
    [attempt] = await fleet.app.attempts(task)
    assert attempt.outcome == "timed_out"
    assert f"handler {handler} has blocked the event loop" in worker.log()
    assert "died" not in witness.log()
    assert worker.running
    assert {(await fleet.app.get(each.id)).state for each in bystanders} == {State.SUCCEEDED}
    await fleet.check()


async def test_a_regular_expression_that_holds_the_interpreter_for_leases_harms_nothing(fleet: Fleet) -> None:
    worker = await fleet.start("--lease", "0.5s")
    witness = await fleet.start("--lease", "0.5s", "--handler", "threaded")
    allowed = await fleet.one("holds_the_lock_of_the_interpreter", length=24)
    await until("it has started", lambda: fleet.started(allowed))
    forbidden = await fleet.one("holds_it_beyond_its_timeout", length=25)
    bystanders = await fleet.submit(fleet.new("quick") for _ in range(5))
    await fleet.finish()
    assert (await fleet.app.get(allowed.id)).state is State.SUCCEEDED
    [attempt] = await fleet.app.attempts(forbidden)
    assert attempt.outcome in ("timed_out", "succeeded"), "it may have ended before anyone could stop it"
    assert worker.running
    assert "died" not in witness.log()
    assert {(await fleet.app.get(each.id)).state for each in bystanders} == {State.SUCCEEDED}
    history = await fleet.check()
    assert all(len(attempts) == 1 for attempts in history.attempts.values())


async def test_a_thread_that_lets_exceptions_through_is_interrupted_at_its_timeout(fleet: Fleet) -> None:
    worker = await fleet.start(**GIVE_UP_SOON)
    task = await fleet.one("ends_when_interrupted")
    await fleet.finish()
    [attempt] = await fleet.app.attempts(task)
    assert attempt.outcome == "timed_out"
    assert worker.running
    await fleet.check()


async def test_a_worker_with_a_thread_that_never_ends_drains_and_starts_anew(fleet: Fleet) -> None:
    worker = await fleet.start("--handler", "never_ends", "--handler", "quick", **GIVE_UP_SOON)
    other = await fleet.start("--handler", "quick", **GIVE_UP_SOON)
    task = await fleet.one("never_ends")
    running = await fleet.submit(fleet.new("quick", seconds=1.0) for _ in range(8))
    await until("it was given up", lambda: "does not end" in worker.log())
    await fleet.finish()
    assert worker.running, "it started anew under the same process id"
    assert (await fleet.app.get(task.id)).state is State.FAILED
    assert {(await fleet.app.get(each.id)).state for each in running} == {State.SUCCEEDED}
    history = await fleet.check()
    assert len(history.attempts[task.id]) > 1
    assert other.running


async def test_a_handler_that_spins_and_swallows_every_interrupt_ends_with_its_process(fleet: Fleet) -> None:
    worker = await fleet.start("--lease", "0.5s", "--handler", "spins_and_will_not_stop", chaos_hopeless_after=1)
    task = await fleet.one("spins_and_will_not_stop")
    assert await worker.ended() == 70
    await fleet.start("--handler", "spins_and_will_not_stop", chaos_hopeless_after=1)
    await fleet.finish()
    failed = await fleet.app.get(task.id)
    assert failed.state is State.FAILED
    outcomes = [attempt.outcome for attempt in await fleet.app.attempts(task)]
    assert outcomes == ["lost", "timed_out"], "the second attempt ran in a sub-process, which can be killed"
    await fleet.check()
