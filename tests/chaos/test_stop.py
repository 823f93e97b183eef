"""Stopping a worker burns nothing: what can finish finishes, the rest goes back with a higher number and no try used."""

import signal

from duetime import State
from tests.chaos.fleet import Fleet, until


async def test_running_attempts_finish_within_the_grace(fleet: Fleet) -> None:
    worker = await fleet.start("--grace", "90s")
    fleet.hold()
    tasks = await fleet.submit(fleet.new(handler, held=True) for handler in ("quick", "threaded", "boxed"))
    await until("all have started", lambda: fleet.started(*tasks))
    worker.terminate()
    await until("it is stopping", lambda: "SIGTERM: stopping" in worker.log())
    waiting = await fleet.submit([fleet.new("quick")])
    fleet.let_go()
    assert await worker.ended() == 0
    assert {(await fleet.app.get(task.id)).state for task in tasks} == {State.SUCCEEDED}
    assert (await fleet.app.get(waiting[0].id)).state is State.PENDING, "a stopping worker claims nothing more"
    assert await fleet.store.workers() == []
    await fleet.start()
    await fleet.finish()
    await fleet.check()


async def test_what_does_not_finish_within_the_grace_goes_back_without_using_up_a_try(fleet: Fleet) -> None:
    worker = await fleet.start("--grace", "0.3s")
    fleet.hold()
    endless = [fleet.new(handler, held=True) for handler in ("quick", "threaded", "boxed")]
    tasks = await fleet.submit([*endless, fleet.new("cleans_up", cleaning=0.5)])
    await until("all have started", lambda: fleet.started(*tasks))
    worker.terminate()
    assert await worker.ended() == 0
    for task in tasks:
        back = await fleet.app.get(task.id)
        assert (back.state, back.attempt, back.tries, back.crashes) == (State.PENDING, 1, 0, 0), back.handler
        [attempt] = await fleet.app.attempts(task)
        assert attempt.outcome == "released"
    assert await fleet.store.workers() == []
    other = await fleet.start()
    await until("all have started again", lambda: all(len(fleet.history().attempts[task.id]) == 2 for task in tasks))
    for task in tasks:
        await fleet.app.cancel(task.id)
    await fleet.finish()
    await fleet.check()
    assert other.running


async def test_a_thread_deep_in_a_system_call_goes_back_when_its_process_has_ended(fleet: Fleet) -> None:
    worker = await fleet.start("--grace", "0.2s", chaos_throw_after=0.1, chaos_last_word=0.5)
    task = await fleet.one("sleeps_deeply")
    await until("it has started", lambda: fleet.started(task))
    worker.terminate()
    assert await worker.ended() == 0
    await fleet.start()
    await until("it runs again", lambda: len(fleet.history().attempts[task.id]) == 2)
    again = await fleet.app.get(task.id)
    assert (again.attempt, again.tries, again.crashes) == (2, 0, 0)
    attempts = await fleet.app.attempts(task)
    assert attempts[0].outcome == "released"
    assert fleet.history().violations({task.id: "failed"}) == []


async def test_a_second_signal_ends_at_once_and_what_ran_runs_again(fleet: Fleet) -> None:
    worker = await fleet.start("--grace", "90s")
    fleet.hold()
    tasks = await fleet.submit(fleet.new(handler, held=True) for handler in ("quick", "threaded", "boxed"))
    await until("all have started", lambda: fleet.started(*tasks))
    worker.terminate()
    await until("it is stopping", lambda: "SIGTERM: stopping" in worker.log())
    worker.terminate(signal.SIGINT)  # another SIGTERM right after the first would be the same
    assert await worker.ended() == 130
    fleet.let_go()
    await fleet.start()
    await fleet.finish()
    assert set((await fleet.states()).values()) == {"succeeded"}
    await fleet.check()


async def test_rolling_restarts_lose_nothing_and_use_up_no_try(any_fleet: Fleet) -> None:
    fleet = any_fleet
    await fleet.start_some(2, "--grace", "0.1s")
    fleet.hold()
    interrupted = []
    for _ in range(7):
        await fleet.submit(fleet.new(handler, seconds=seconds) for handler in ("quick", "threaded") for seconds in (0, 0.05))
        long = await fleet.submit(fleet.new(handler, held=True) for handler in ("quick", "threaded"))
        await fleet.start("--grace", "0.1s", ready=True)
        await until("one of them runs", lambda long=long: any(fleet.started(task) for task in long))  # type: ignore[misc]
        task = next(task for task in long if fleet.started(task))
        old = next(worker for worker in fleet.workers if worker.pid == fleet.history().attempts[task.id][-1].start.worker)
        interrupted.append(task)
        old.terminate()
        assert await old.ended() == 0
    fleet.let_go()
    await fleet.finish()
    history = await fleet.check()
    states = await fleet.states()
    assert set(states.values()) == {"succeeded"}
    records = [await fleet.app.get(task) for task in states]
    assert {(record.tries, record.crashes) for record in records} == {(0, 0)}
    assert all(len(history.attempts[task.id]) > 1 for task in interrupted), "what was interrupted ran again"
