"""Take a guard away, and the checker must say so; with the guard in place the same scenario is clean.

A test of a promise shows little if nothing that breaks the promise would fail it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from duetime.model.claim_order import ClaimOrder
from duetime.store.sqlite import liveness, work
from duetime.store.sqlite.statements import SQL
from duetime.store.values import Claim
from duetime.targets.python import threads
from duetime.worker.executor import Executor
from duetime.worker.reconciler import Reconciler
from tests.chaos.scenes import (
    Scene,
    a_later_task,
    gate_with_a_queue,
    lost_reply,
    release,
    scene_in,
    settle_of_another,
    thread_left_behind,
    timeout_of_a_thread,
)

Breaker = Callable[[pytest.MonkeyPatch], None]


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


def without(statement: str, guard: str) -> Breaker:
    def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
        text = getattr(SQL, statement)
        assert guard in text
        monkeypatch.setattr(SQL, statement, text.replace(guard, "(1 or worker = ?)"))

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


def no_check_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_checked", lambda self, attempt: True)


def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = work.hand_out

    def hasty(
        connection: Any, worker: str, number: int, wants: Mapping[str, int], total: int, lead: int, now: int, order: ClaimOrder, **more: Any
    ) -> Claim:
        return claim(connection, worker, number, wants, total, lead, now + 5_000_000, order, **more)

    monkeypatch.setattr(work, "hand_out", hasty)


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


@pytest.mark.parametrize("case", CASES)
async def test_a_guard_taken_away_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(threads, "THROW_AFTER", 5.0)
    play, take_away, rule = CASES[case]
    async with scene_in(tmp_path / "sound", f"sqlite:///{tmp_path / 'sound' / 'duetime.db'}") as scene:
        await play(scene)
        assert await scene.rules() == set()
    async with scene_in(tmp_path / "broken", f"sqlite:///{tmp_path / 'broken' / 'duetime.db'}") as scene:
        with monkeypatch.context() as patch:
            take_away(patch)
            await play(scene)
            assert rule in await scene.rules()
