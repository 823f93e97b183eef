"""Take a guard away, and the checker must say so; with the guard in place the same scenario is clean.

A test of a promise shows little if nothing that breaks the promise would fail it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Context, RetryPolicy
from duetime.errors import StoreUnavailable
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome
from duetime.model.turns import Turns
from duetime.store.protocol import Claim, NewWorker
from duetime.store.sqlite import liveness, work
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.store import SqliteStore
from duetime.worker import executor
from duetime.worker.executor import Executor
from duetime.worker.reconciler import Reconciler
from tests.chaos.fleet import until
from tests.chaos.history import Attempt, History, Journal

Breaker = Callable[[pytest.MonkeyPatch], None]


class Scene:
    """An App, a journal, and two handlers that write into it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.app = app = App(f"sqlite:///{folder / 'duetime.db'}", lease=2.0, grace=0.0)
        self.journal = journal = Journal(folder / "journal")
        self.ends = asyncio.Event()

        @app.task(retry=RetryPolicy(attempts=2, base=0.0))
        async def waits(ctx: Context) -> None:
            with journal.attempt(ctx):
                await self.ends.wait()

        @app.task(timeout=0.1, retry=RetryPolicy(attempts=2, base=0.0))
        def deaf(ctx: Context) -> None:
            with journal.attempt(ctx):
                end = time.monotonic() + (1.0 if ctx.attempt == 1 else 0.0)
                while time.monotonic() < end:
                    time.sleep(0.01)

        @app.task(concurrency=1)
        async def brief(ctx: Context) -> None:
            with journal.attempt(ctx):
                await asyncio.sleep(0.001)

    async def submit(self, handler: str, count: int = 1, delay: float = 0.0) -> list[str]:
        tasks = await self.app.submit_many([self.app.handler(handler).new().after(delay) for _ in range(count)])
        for task in tasks:
            self.journal.write("submitted", task=task.id)
        return [task.id for task in tasks]

    async def started(self, task: str, attempts: int = 1) -> None:
        await until(f"attempt {attempts} has started", lambda: len(History.of(self.journal.path).attempts[task]) >= attempts)

    async def finish(self) -> None:
        async def over() -> bool:
            counts = await self.app.store.counts()
            return not any(lane.due + lane.later + lane.running for lane in counts.lanes)

        await until("everything is final", over)

    def attempts(self) -> list[Attempt]:
        return [attempt for attempts in History.of(self.journal.path).attempts.values() for attempt in attempts]

    async def rules(self) -> set[str]:
        """Give the rules that were broken."""
        history = History.of(self.journal.path)
        records = await self.app.store.get(sorted(history.submitted()))
        finals = {record.id: record.state.value for record in records if record is not None}
        return {violation.partition(":")[0] for violation in history.violations(finals)}


async def settle_of_another(scene: Scene) -> None:
    """Somebody who never claimed a task says that it succeeded."""
    async with scene.app:
        store = scene.app.store
        leases = [await store.register(NewWorker(id=name, host="here", pid=1, slots={})) for name in ("owner", "other")]
        await scene.submit("waits")
        claim = await store.claim("owner", 1, {"waits": 1}, 1)
        settlement = conclude(claim.tasks[0], Ended(Outcome.SUCCEEDED), RetryPolicy(), started_at=None, now=claim.now, chance=0.0)
        await store.settle("other", [settlement])
        for lease in leases:
            lease.close()
        await store.unregister("owner")
        await store.unregister("other")
        async with scene.app.worker():
            scene.ends.set()
            await scene.finish()


async def reaping(scene: Scene) -> None:
    """Somebody takes a worker for dead that runs a task, and a second worker is there to take it."""
    store = scene.app.store
    async with scene.app.worker() as first:
        [task] = await scene.submit("waits")
        await scene.started(task)
        async with scene.app.worker():
            taken = None
            for _ in range(10):  # a beat between the look and the reaping makes it void
                workers = [each for each in await store.workers() if each.id == first.id]
                scene.journal.path.with_name("reaping").touch()
                taken = await store.reap(workers[0].id, workers[0].beat) if workers else 1
                scene.journal.path.with_name("reaping").unlink()
                if taken:
                    break
            if taken:
                await scene.started(task, attempts=2)
            scene.ends.set()
            await scene.finish()


async def release(scene: Scene) -> None:
    """A worker stops in the middle of a task, and the next one runs it."""
    async with scene.app:
        async with scene.app.worker():
            [task] = await scene.submit("waits")
            await scene.started(task)
        scene.ends.set()
        async with scene.app.worker():
            await scene.finish()


async def timeout_of_a_thread(scene: Scene) -> None:
    """A thread does not hear that its time is over."""
    async with scene.app.worker(), scene.app.worker():
        await scene.submit("deaf")
        await scene.finish()


async def gate_with_a_queue(scene: Scene) -> None:
    """A gate closes while many tasks are claimed and wait for a slot."""
    async with scene.app.worker() as worker:
        await scene.submit("brief", 20)
        await until("the worker knows how long they take", lambda: worker.executor.finished >= 20)
        await scene.submit("brief", 300)
        await until("some are claimed and wait", lambda: len(worker.executor.attempts()) > 10)
        await scene.app.gates.pause("brief")
        scene.journal.write("gate", handler="brief")
        await asyncio.sleep(0.1)
        scene.journal.write("opened", handler="brief")
        await scene.app.gates.open("brief")
        await scene.finish()


async def a_later_task(scene: Scene) -> None:
    """A task is due in a while."""
    async with scene.app.worker():
        await scene.submit("brief", 3, delay=0.5)
        await scene.finish()


async def lost_reply(scene: Scene) -> None:
    """The reply to a claim is lost after it was committed."""
    store = scene.app.store
    assert isinstance(store, SqliteStore)
    hand_out, lose = store.claim, [True]

    async def forgetful(worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        reply = await hand_out(worker, claim, wants, total)
        if reply.tasks and lose:
            lose.clear()
            raise StoreUnavailable("the reply was lost")
        return reply

    store.claim = forgetful  # type: ignore[method-assign]
    async with scene.app.worker():
        await scene.submit("brief")
        await until("the reply was lost", lambda: not lose)
        await asyncio.sleep(1.5)  # three renewals


def without(statement: str, guard: str) -> Breaker:
    def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
        text = getattr(SQL, statement)
        assert guard in text
        monkeypatch.setitem(SQL._texts, statement, text.replace(guard, "(1 or worker = ?)"))

    return take_away


def blind_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    is_alive = liveness.is_alive

    def blind(path: Path, process: str) -> bool | None:
        # only during the scenario's own call: the workers' reapers would else end the scene before it begins
        reaping = path.parents[2] / "reaping"
        return False if reaping.exists() else is_alive(path, process)

    monkeypatch.setattr(liveness, "is_alive", blind)


def fence_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    put_due = work.put_due

    def forgetful(connection: Any, entries: Sequence[tuple[int, int, int, int, int, int]], now: int) -> int | None:
        return put_due(connection, [(*entry[:3], max(0, entry[3] - 1), *entry[4:]) for entry in entries], now)

    monkeypatch.setattr(work, "put_due", forgetful)


def thread_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_deliver", lambda self, attempt: attempt.runner.cancel())


def no_check_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_checked", lambda self, attempt: True)


def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = work.claim

    def hasty(connection: Any, worker: str, number: int, wants: Mapping[str, int], total: int, now: int, turns: Turns) -> Claim:
        return claim(connection, worker, number, wants, total, now + 700_000, turns)

    monkeypatch.setattr(work, "claim", hasty)


def no_reconciliation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reconciler, "compare", lambda self, *facts: ([], []))


CASES: dict[str, tuple[Callable[[Scene], Awaitable[None]], Breaker, str]] = {
    "settle without looking at the owner": (settle_of_another, without("held_by_worker", "worker = ?"), "lost"),
    "a reaper that ignores the lock": (reaping, blind_reaper, "overlap"),
    "a fence used again after a release": (release, fence_used_twice, "fence"),
    "a retry while the thread still runs": (timeout_of_a_thread, thread_left_behind, "overlap"),
    "no look at the gates at the start": (gate_with_a_queue, no_check_at_the_start, "gate"),
    "a claim ahead of the due time": (a_later_task, fast_clock, "early"),
    "no reconciliation": (lost_reply, no_reconciliation, "lost"),
}


@asynccontextmanager
async def scene_in(folder: Path) -> AsyncIterator[Scene]:
    scene = Scene(folder)
    async with scene.app:
        yield scene
    await until("no code runs any more", lambda: all(each.end for each in scene.attempts()))
    scene.journal.close()


@pytest.mark.parametrize("case", CASES)
async def test_a_guard_taken_away_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(executor, "THROW_AFTER", 5.0)
    play, take_away, rule = CASES[case]
    async with scene_in(tmp_path / "sound") as scene:
        await play(scene)
        assert await scene.rules() == set()
    async with scene_in(tmp_path / "broken") as scene:
        with monkeypatch.context() as patch:
            take_away(patch)
            await play(scene)
            assert rule in await scene.rules()
