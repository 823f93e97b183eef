"""A custom target, which ends its attempts from plain callbacks: the executor treats it as it treats Python functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duetime import App, InvalidHandler, RetryPolicy, State, Task
from duetime.app.handlers import AnyHandler
from duetime.clock import SECOND
from duetime.model.detail import detail_of
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, SettleVerdict
from duetime.model.task import ErrorInfo
from duetime.targets.host import TargetHost
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, AttemptHandle, Stop
from duetime.worker import executor
from duetime.worker.worker import Worker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

SOON = RetryPolicy(tries=2, base=0.01, cap=0.01)


class Stopped(Exception):
    """What this target raises in an attempt that was told to stop."""


class Callbacks:
    """A target spec and its target in one: an attempt ends when a test calls `end` or `fail`."""

    kind = "callback"
    direct_call = None

    def __init__(self, *, prepares: bool = False) -> None:
        self._prepares = prepares
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self.attempts: list[AttemptHandle] = []
        self.stops: list[Stop] = []
        self.on_stop: Callable[[AttemptHandle], None] = lambda attempt: self.fail(attempt, Stopped())
        self.asked, self.ready, self.allowed, self.runs = (asyncio.Event() for _ in range(4))

    def open(self, handler: HandlerSpec, host: TargetHost) -> Callbacks:
        return self

    async def perform(self, attempt: AttemptHandle) -> Ended | Accepted:
        if self._prepares:
            attempt.postpone()
            self.asked.set()
            await self.ready.wait()
            if not attempt.may_begin():
                return Ended(Outcome.RELEASED)
            self.allowed.set()
            await self.runs.wait()
            attempt.has_begun()
        self._ends[attempt.claimed.id] = end = asyncio.get_running_loop().create_future()
        self.attempts.append(attempt)
        ended: Ended | Accepted = await end
        return ended

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        self.stops.append(reason)
        self.on_stop(attempt)
        return 0.0

    def end(self, attempt: AttemptHandle, ended: object) -> None:
        self._ends[attempt.claimed.id].set_result(ended)

    def fail(self, attempt: AttemptHandle, error: Exception) -> None:
        self._ends[attempt.claimed.id].set_exception(error)

    async def begun(self, count: int = 1) -> AttemptHandle:
        await until(f"{count} attempts have begun", lambda: len(self.attempts) >= count)
        return self.attempts[count - 1]


def declare(app: App, target: Callbacks, *, timeout: float = 60.0, concurrency: int = 50) -> AnyHandler:
    payloads = OpenPayloads("ring")
    return app.register(HandlerSpec(name="ring", target=target, payloads=payloads, timeout=timeout, retry=SOON, concurrency=concurrency))


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


@pytest.fixture
async def target() -> Callbacks:
    return Callbacks()


async def outcomes(app: App, task: Task[Any]) -> list[Outcome | None]:
    return [attempt.outcome for attempt in await app.attempts(task)]


async def in_state(app: App, task: Task[Any], state: State) -> bool:
    return (await app.get(task)).state is state


async def is_final(app: App, task: Task[Any]) -> bool:
    return (await app.get(task)).final


async def test_it_succeeds_with_the_result_that_a_callback_gave(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now(number=7)
        attempt = await target.begun()
        assert attempt.claimed.payload == '{"number":7}'
        attempt.report(0.5, "half of it")
        asyncio.get_running_loop().call_soon(target.end, attempt, Ended(Outcome.SUCCEEDED, result=b'{"status":200}'))
        assert await app.result(task, timeout=PATIENCE) == {"status": 200}


async def test_a_failure_that_it_reports_is_tried_again(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        target.end(await target.begun(), Ended(Outcome.FAILED, error=ErrorInfo("Status503", "not now")))
        target.end(await target.begun(2), Ended(Outcome.SUCCEEDED))
        assert await app.result(task, timeout=PATIENCE) is None
        first, second = await app.attempts(task)
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.SUCCEEDED)
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("Status503", "not now")


async def test_an_exception_from_it_is_a_failure_like_a_handlers(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        target.fail(await target.begun(), ConnectionError("refused"))
        target.fail(await target.begun(2), ConnectionError("refused"))
        await until("it has failed", partial(in_state, app, task, State.FAILED))
        error = (await app.get(task)).error
    assert error is not None
    assert (error.type, error.message) == ("ConnectionError", "refused")


@pytest.mark.parametrize("nonsense", [None, "done"])
async def test_what_is_no_end_is_a_failure_and_harms_nobody(app: App, target: Callbacks, nonsense: object) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        target.end(await target.begun(), nonsense)
        target.end(await target.begun(2), Ended(Outcome.SUCCEEDED))
        await app.result(task, timeout=PATIENCE)
        first, _ = await app.attempts(task)
    assert first.error is not None
    assert first.error.message.startswith("a target returns Ended or Accepted, not ")


async def test_work_that_was_handed_over_takes_no_slot_and_ends_when_its_end_is_known(app: App, target: Callbacks) -> None:
    ring = declare(app, target, concurrency=1)
    async with app.worker() as worker:
        first = await ring.now()
        target.end(await target.begun(), Accepted(deadline_at=app.store.now() + 3_600 * SECOND))
        second = await ring.now()
        target.end(await target.begun(2), Ended(Outcome.SUCCEEDED))
        await app.result(second, timeout=PATIENCE)
        await until("nothing runs in the worker", lambda: settled(worker))
        assert (await app.get(first)).state is State.RUNNING
        assert await outcomes(app, first) == [None]
    task = await app.get(first)
    assert (task.state, task.worker, task.deadline_at is not None) == (State.RUNNING, None, True)  # its worker has gone
    [attempt] = await app.store.open_attempts([first.id])
    said = conclude(attempt.task, Ended(Outcome.SUCCEEDED), RetryPolicy(), started_at=1, now=app.store.now(), chance=0.0)
    assert await app.store.complete([said]) == [SettleVerdict.ACCEPTED]
    assert (await app.get(first)).state is State.SUCCEEDED


async def test_work_that_was_handed_over_and_never_completed_times_out_and_is_tried_again(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        target.end(await target.begun(), Accepted(deadline_at=app.store.now()))
        target.end(await target.begun(2), Accepted(deadline_at=app.store.now() + 3_600 * SECOND, silence=0.01))
        await until("it has failed", partial(in_state, app, task, State.FAILED))
        assert await outcomes(app, task) == [Outcome.TIMED_OUT, Outcome.TIMED_OUT]
        error = (await app.get(task)).error
    assert error is not None
    assert (error.type, "accepted elsewhere" in error.message) == ("TimedOut", True)


async def test_the_end_of_work_may_be_known_before_it_was_handed_over(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker() as worker:
        task = await ring.now()
        begun = await target.begun()
        [attempt] = await app.store.open_attempts([task.id])
        said = conclude(attempt.task, Ended(Outcome.SUCCEEDED, result=b"7"), RetryPolicy(), started_at=1, now=app.store.now(), chance=0.0)
        assert await app.store.complete([said]) == [SettleVerdict.ACCEPTED]
        target.end(begun, Accepted(deadline_at=app.store.now() + 3_600 * SECOND))
        assert await app.result(task, timeout=PATIENCE) == 7
        await until("nothing runs in the worker", lambda: settled(worker))
        assert worker.settler.stale == 0
    assert await outcomes(app, task) == [Outcome.SUCCEEDED]


async def settled(worker: Worker) -> bool:
    return worker.executor.busy == 0 and len(worker.settler) == 0


async def test_a_timeout_stops_it(app: App, target: Callbacks) -> None:
    ring = declare(app, target, timeout=0.05)
    async with app.worker():
        task = await ring.now()
        await until("both tries are over", partial(in_state, app, task, State.FAILED))
        assert await outcomes(app, task) == [Outcome.TIMED_OUT, Outcome.TIMED_OUT]
    assert target.stops == [Stop.TIMEOUT, Stop.TIMEOUT]


async def test_a_cancel_stops_it(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        await target.begun()
        await app.cancel(task)
        await until("it is cancelled", partial(in_state, app, task, State.CANCELLED))
    assert target.stops == [Stop.CANCEL]


async def test_what_ends_well_although_it_was_told_to_stop_has_succeeded(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    target.on_stop = lambda attempt: target.end(attempt, Ended(Outcome.SUCCEEDED, result=b'"done"'))
    async with app.worker():
        task = await ring.now()
        await target.begun()
        await app.cancel(task)
        assert await app.result(task, timeout=PATIENCE) == "done"


async def test_a_graceful_stop_gives_it_back_and_uses_no_try(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker(grace=0.05):
        task = await ring.now()
        await target.begun()
    async with app:
        record = await app.get(task)
        assert (record.state, record.tries) == (State.PENDING, 0)
        assert await outcomes(app, task) == [Outcome.RELEASED]
    assert target.stops == [Stop.RELEASE]


async def test_what_the_store_took_away_is_stopped_and_nothing_is_written(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    async with app.worker() as worker:
        task = await ring.now()
        await target.begun()
        worker.executor.lose(task.id)
        await until("it has stopped", lambda: not worker.executor.running)
        assert len(worker.settler) == 0
        assert await outcomes(app, task) == [None]
        await target.begun(2)  # a renewal showed that it was still this worker's, so it went back
        target.end(target.attempts[1], Ended(Outcome.SUCCEEDED))
        await app.result(task, timeout=PATIENCE)
    assert target.stops == [Stop.LOST]


async def test_a_lost_lease_stops_it_again_although_it_was_told_before(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    target.on_stop = lambda attempt: None
    async with app.worker() as worker:
        task = await ring.now()
        attempt = await target.begun()
        await app.cancel(task)
        await until("it was told", lambda: target.stops == [Stop.CANCEL])
        worker.executor.stop_all(Stop.RELEASE)
        worker.executor.stop_all(Stop.LOST)
        assert target.stops == [Stop.CANCEL, Stop.LOST]
        target.fail(attempt, Stopped())
        await until("it has ended", lambda: not worker.executor.running)


async def test_one_that_does_not_stop_is_reported(
    app: App, target: Callbacks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.05)
    ring = declare(app, target)
    target.on_stop = lambda attempt: None
    async with app.worker():
        task = await ring.now()
        attempt = await target.begun()
        await app.cancel(task)
        await until("it is reported", lambda: "its code does not end" in caplog.text)
        target.fail(attempt, Stopped())


async def test_one_whose_stop_fails_keeps_no_other_from_being_stopped_and_is_found_stuck(
    app: App, target: Callbacks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.05)
    ring = declare(app, target)

    def refuse_the_first(attempt: AttemptHandle) -> None:
        if attempt is target.attempts[0]:
            raise ConnectionError("the receiver cannot be told")
        target.fail(attempt, Stopped())

    target.on_stop = refuse_the_first
    async with app.worker() as worker:
        tasks = [await ring.now(), await ring.now()]
        first, _ = [await target.begun(count) for count in (1, 2)]
        worker.executor.stop_all(Stop.CANCEL)
        assert target.stops == [Stop.CANCEL, Stop.CANCEL]
        await until("it is reported", lambda: "its code does not end" in caplog.text)
        assert "the receiver cannot be told" in caplog.text
        target.fail(first, Stopped())
        for task in tasks:
            await until("it is cancelled", partial(in_state, app, task, State.CANCELLED))


async def test_a_gate_that_closes_while_something_is_made_ready_holds(app: App) -> None:
    target = Callbacks(prepares=True)
    ring = declare(app, target)
    async with app.worker():
        task = await ring.now()
        await asyncio.wait_for(target.asked.wait(), PATIENCE)
        assert (await app.gates.pause("ring", timeout=PATIENCE)).in_force
        target.ready.set()
        await until("it has gone back", partial(in_state, app, task, State.PENDING))
        assert not target.allowed.is_set()
        assert await outcomes(app, task) == [Outcome.RELEASED]


async def test_a_gate_is_confirmed_only_when_nothing_is_about_to_begin_behind_it(app: App) -> None:
    target = Callbacks(prepares=True)
    ring = declare(app, target)
    target.ready.set()
    async with app.worker() as worker:
        task = await ring.now()
        await asyncio.wait_for(target.allowed.wait(), PATIENCE)
        assert (await app.gates.pause("ring", timeout=0.1)).waiting == [worker.id]
        target.runs.set()
        attempt = await target.begun()
        assert attempt.deadline_at - attempt.started_at == 60 * SECOND, "its time counts from when it began"
        assert (await app.gates.pause("ring", timeout=PATIENCE)).in_force
        target.end(attempt, Ended(Outcome.SUCCEEDED))
        await app.result(task, timeout=PATIENCE)


async def test_a_handler_that_is_no_function_cannot_be_called(app: App, target: Callbacks) -> None:
    ring = declare(app, target)
    with pytest.raises(InvalidHandler, match="ring is not a Python function and cannot be called here"):
        ring()


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FATAL, Outcome.TIMED_OUT])
async def test_the_detail_that_it_gives_is_shown_with_the_attempt(app: App, target: Callbacks, outcome: Outcome) -> None:
    ring = declare(app, target)
    async with app.worker():
        task = await ring.options(retry=RetryPolicy(tries=1)).now()
        target.end(await target.begun(), Ended(outcome, detail=detail_of({"status": 418, "phases": {"dns": 0.002}})))
        await until("it has ended", partial(is_final, app, task))
        [attempt] = await app.attempts(task)
    assert attempt.detail == {"status": 418, "phases": {"dns": 0.002}}


async def test_attempts_of_python_functions_have_no_detail(app: App) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    async with app.worker():
        task = await plain.now()
        await app.result(task, timeout=PATIENCE)
        [attempt] = await app.attempts(task)
    assert attempt.detail is None
