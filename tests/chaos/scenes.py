"""Small scenarios, each of which goes wrong if a guard is missing: played with the guard and without it."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Context, RetryPolicy
from duetime.errors import AttemptCancelled, StoreUnavailable
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome
from duetime.store.values import Claim, NewWorker
from duetime.targets.python.thread import ThreadTarget
from duetime.targets.python.threads import ThreadCall
from duetime.targets.target import AttemptHandle, Stop
from tests.chaos.fleet import until
from tests.chaos.history import Attempt, History, rules
from tests.chaos.journal import Journal


class Scene:
    """An App, a journal, and handlers that write into it."""

    def __init__(self, folder: Path, url: str, *, lease: float = 2.0) -> None:
        folder.mkdir()
        self.app = app = App(url, lease=lease, grace=0.0)
        self.journal = journal = Journal(folder / "journal")
        self.ends = asyncio.Event()
        self.patience = 30.0  # seconds for what should be found
        self._noticed: set[str] = set()

        @app.task(retry=RetryPolicy(tries=2, base=0.0))
        async def waits(ctx: Context) -> None:
            with journal.attempt(ctx):
                await self.ends.wait()

        @app.task(timeout=0.1, retry=RetryPolicy(tries=2, base=0.0))
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
        """Give the rules that were broken, `state` among them if the store is in one that cannot be."""
        history = History.of(self.journal.path)
        records = [record for record in await self.app.store.get(sorted(history.submitted())) if record is not None]
        finals = {record.id: record.state.value for record in records}
        broken = set(rules(history.violations(finals, {record.id: record.attempt for record in records})))
        await self.inspect()
        return broken | self._noticed

    async def inspect(self) -> None:
        """Note if the store is in a state that cannot be, which what follows may hide."""
        if await self.app.store.inspect(repair=False):
            self._noticed.add("state")


@asynccontextmanager
async def scene_in(folder: Path, url: str, *, lease: float = 2.0) -> AsyncIterator[Scene]:
    scene = Scene(folder, url, lease=lease)
    async with scene.app:
        yield scene
    await until("no code runs any more", lambda: all(each.end for each in scene.attempts()))
    scene.journal.close()


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
        await scene.submit("brief", 3, delay=1.5)
        await scene.finish()


async def lost_reply(scene: Scene) -> None:
    """The reply to a claim is lost after it was committed."""
    store = scene.app.store
    hand_out, lose = store.claim, [True]

    async def forgetful(worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, **options: Any) -> Claim:
        reply = await hand_out(worker, claim, wants, total, ahead=ahead, **options)
        if reply.tasks and lose:
            lose.clear()
            raise StoreUnavailable("the reply was lost")
        return reply

    store.claim = forgetful  # type: ignore[method-assign]
    async with scene.app.worker():
        await scene.submit("brief")
        await until("the reply was lost", lambda: not lose)
        await asyncio.sleep(1.5)  # three renewals


def thread_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an attempt that is told to stop end at once, although its thread runs on."""

    def leave(target: ThreadTarget, attempt: AttemptHandle, reason: Stop) -> float:
        call = target._calls[attempt.claimed.id]
        assert isinstance(call, ThreadCall)
        ended, call.ended = call.ended, lambda value, failure: None
        assert ended is not None
        ended(None, AttemptCancelled("left behind"))
        return 0.0

    monkeypatch.setattr(ThreadTarget, "stop", leave)
