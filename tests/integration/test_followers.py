"""Attempts that follow others in the same sub-process: in order, one at a time, and taken back until they begin."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from duetime.model.outcome import Ended, Outcome
from duetime.store.values import ClaimedTask
from duetime.targets.python import conversation
from duetime.targets.python.frames import Order
from duetime.targets.python.pool import NEVER, ChildPool, Follower, Recycling
from tests.integration.test_process import HERE, claimed, pids_in, result_of, runs, until


class Following:
    """Attempts that may follow one, and what became of each, in the order in which it did."""

    def __init__(self, pool: ChildPool, *tasks: ClaimedTask) -> None:
        self.waiting: list[Follower] = [Attempt(pool, task, self) for task in tasks]
        self.events: list[tuple[str, str]] = []
        self.ended: dict[str, Ended] = {}

    def __call__(self, has: int, most: int) -> Sequence[Follower]:
        taken, self.waiting = self.waiting[: most - has], self.waiting[most - has :]
        return taken

    def of(self, task: ClaimedTask) -> list[str]:
        return [what for name, what in self.events if name == task.id]


class Attempt:
    def __init__(self, pool: ChildPool, task: ClaimedTask, following: Following) -> None:
        self.task = task
        self.order: Order = pool.order(task, None, clock=1_000_000, timeout=5)
        self._following = following

    def next_up(self) -> None:
        self._note("next up")

    def began(self, started_at: int) -> None:
        assert started_at > 1_000_000
        self._note("began")

    def report(self, fraction: float, text: str) -> None:
        self._note(text)

    def ended(self, ended: Ended, took: int, *, silent: bool) -> None:
        self._following.ended[self.task.id] = ended
        self._note("ended")

    def went_back(self, *, tried: bool) -> None:
        self._note("tried" if tried else "went back")

    def _note(self, what: str) -> None:
        self._following.events.append((self.task.id, what))


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChildPool]:
    monkeypatch.setattr(conversation, "STALLED_AFTER", 600)
    pool = ChildPool(f"{HERE}:app")
    yield pool
    await pool.close()


def perform(pool: ChildPool, task: ClaimedTask, following: Following, recycling: Recycling = NEVER) -> asyncio.Future[Ended]:
    return asyncio.ensure_future(
        pool.perform(task, started_at=1, deadline_at=2, output_path=None, progress=print, recycling=recycling, following=following)
    )


def waiting(tmp_path: Path, name: str = "first") -> ClaimedTask:
    return claimed("wait_for", note=str(tmp_path / f"{name}.note"), word=str(tmp_path / f"{name}.word"))


async def test_followers_run_one_after_the_other_in_the_same_process_after_the_first(pool: ChildPool) -> None:
    tasks = [claimed("echo", number=number) for number in range(200)]
    following = Following(pool, *tasks)
    first = result_of(await perform(pool, claimed("echo"), following))
    await until(lambda: len(following.ended) == 200, "all have ended")
    results = [result_of(following.ended[task.id]) for task in tasks]
    assert [(each["number"], each["pid"]) for each in results] == [(number, first["pid"]) for number in range(200)]
    assert [task for task, what in following.events if what == "ended"] == [task.id for task in tasks]
    assert all(following.of(task) == ["next up", "began", "ended"] for task in tasks)
    assert len(pool._idle) == 1


async def test_the_lifespan_lives_on_beside_many_functions(pool: ChildPool) -> None:
    tasks = [claimed("lifespan_facts") for _ in range(3_000)]
    following = Following(pool, *tasks)
    await perform(pool, claimed("quiet"), following)
    await until(lambda: len(following.ended) == 3_000, "all have ended")
    beats = [result_of(following.ended[task.id])["beats"] for task in tasks]
    assert beats[-1] > beats[0]


async def test_what_has_not_begun_is_taken_back_and_never_runs(pool: ChildPool, tmp_path: Path) -> None:
    first, behind = waiting(tmp_path), [waiting(tmp_path, f"{number}") for number in range(3)]
    following = Following(pool, *behind)
    running = perform(pool, first, following)
    await pids_in(tmp_path / "first.note")
    await until(lambda: not following.waiting, "three follow")
    pool.take_back()
    assert following.events == [(task.id, "went back") for task in reversed(behind)]
    (tmp_path / "first.word").touch()
    assert result_of(await running) == "done"
    assert result_of(await perform(pool, claimed("echo"), Following(pool)))
    assert sorted(os.listdir(tmp_path)) == ["first.note", "first.word"]


async def test_what_waits_behind_one_that_takes_long_goes_back_by_itself(
    pool: ChildPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "STALLED_AFTER", 0.02)
    behind = claimed("echo")
    following = Following(pool, behind)
    running = perform(pool, waiting(tmp_path), following)
    await until(lambda: following.of(behind) == ["went back"], "the follower goes back")
    (tmp_path / "first.word").touch()
    assert result_of(await running) == "done"


async def test_after_a_failure_nothing_follows(pool: ChildPool) -> None:
    failing, behind = claimed("fail", kind="value"), [claimed("echo") for _ in range(3)]
    following = Following(pool, claimed("quiet"), failing, *behind)
    await perform(pool, claimed("quiet"), following)
    await until(lambda: failing.id in following.ended, "one has failed")
    assert following.ended[failing.id].outcome is Outcome.FAILED
    assert [what for task in behind for what in following.of(task)] == ["went back"] * 3
    assert result_of(await perform(pool, claimed("echo"), Following(pool)))


async def test_a_death_is_blamed_on_the_attempt_that_had_begun_and_on_no_other(pool: ChildPool) -> None:
    before, dying, behind = claimed("echo"), claimed("die", how="kill"), [claimed("echo") for _ in range(3)]
    following = Following(pool, before, dying, *behind)
    await perform(pool, claimed("quiet"), following)
    await until(lambda: dying.id in following.ended, "the death is told")
    ended = following.ended[dying.id]
    assert (ended.outcome, ended.crashed, ended.alone) == (Outcome.LOST, True, True)
    assert result_of(following.ended[before.id])
    assert [what for task in behind for what in following.of(task)] == ["went back"] * 3
    assert not pool._children


async def test_the_end_of_one_that_was_told_before_its_follower_died_counts(pool: ChildPool) -> None:
    dying = claimed("die", how="exit")
    following = Following(pool, dying)
    first = perform(pool, claimed("echo"), following)
    assert result_of(await first)["attempt"] == 1
    await until(lambda: dying.id in following.ended, "the death is told")
    assert following.ended[dying.id].crashed


async def test_a_signal_reaches_the_follower_that_runs_and_no_other(pool: ChildPool, tmp_path: Path) -> None:
    first, second, third = claimed("quiet"), waiting(tmp_path), claimed("echo")
    following = Following(pool, second, third)
    await perform(pool, first, following)
    await pids_in(tmp_path / "first.note")
    await until(lambda: following.of(second) == ["next up", "began"], "the second runs")
    assert pool.may_perform(second.id)
    assert following.of(third) == ["went back"]
    assert pool.interrupt(second.id)
    await until(lambda: second.id in following.ended, "it has ended")
    assert following.ended[second.id].outcome is not Outcome.SUCCEEDED
    assert not pool._children


async def test_a_signal_for_one_whose_end_is_on_its_way_does_not_hit_its_follower(pool: ChildPool, tmp_path: Path) -> None:
    first, second = waiting(tmp_path), waiting(tmp_path, "second")
    following = Following(pool, second)
    running = perform(pool, first, following)
    await pids_in(tmp_path / "first.note")
    await until(lambda: not following.waiting, "the second follows")
    [child] = pool._children
    transport = child._conversation._transport
    assert transport is not None
    transport.pause_reading()
    (tmp_path / "first.word").touch()
    await pids_in(tmp_path / "second.note")
    assert following.of(second) == []  # the worker has read neither end nor beginning
    assert not pool.may_perform(first.id)
    assert pool.may_perform(second.id)
    assert not pool.interrupt(first.id)
    assert not pool.interrupt(second.id)
    transport.resume_reading()
    assert result_of(await running) == "done"
    await until(lambda: following.of(second) == ["next up", "began"], "the second is known to run")
    pool.end(second.id)
    await until(lambda: second.id in following.ended, "it is gone")
    ended = following.ended[second.id]
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, False)


async def test_what_a_frozen_child_has_taken_but_not_begun_is_blamed_on_nobody(pool: ChildPool, tmp_path: Path) -> None:
    first, behind = waiting(tmp_path), [claimed("echo") for _ in range(2)]
    following = Following(pool, *behind)
    running = perform(pool, first, following)
    [pid] = await pids_in(tmp_path / "first.note")
    await until(lambda: not following.waiting, "two follow")
    os.kill(pid, signal.SIGKILL)
    ended = await running
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, True)
    assert [what for task in behind for what in following.of(task)] == ["went back"] * 2
    assert not runs(pid)


async def test_a_child_gets_no_more_followers_than_it_may_perform(pool: ChildPool) -> None:
    following = Following(pool, *(claimed("echo") for _ in range(10)))
    await perform(pool, claimed("echo"), following, Recycling(attempts=4))
    await until(lambda: not pool._children, "the child has left")
    assert (len(following.ended), len(following.waiting)) == (3, 7)


async def test_a_child_whose_memory_is_watched_gets_none(pool: ChildPool) -> None:
    following = Following(pool, claimed("echo"))
    await perform(pool, claimed("echo"), following, Recycling(memory=1 << 40))
    assert len(following.waiting) == 1


async def test_an_order_too_large_for_a_packet_goes_back(pool: ChildPool) -> None:
    large, small = claimed("echo", text="x" * 5_000_000), claimed("echo")
    following = Following(pool, large, small)
    await perform(pool, claimed("echo"), following)
    assert following.of(large) == ["went back"]


async def test_a_child_whose_only_order_is_taken_back_is_used_again(pool: ChildPool) -> None:
    pid = result_of(await perform(pool, claimed("echo"), Following(pool)))["pid"]
    [child] = pool._children
    talk, behind = child._conversation, claimed("echo")
    following = Following(pool, behind)
    assert talk._transport is not None
    talk._transport.pause_reading()
    first = perform(pool, claimed("quiet"), following)
    await until(lambda: b'"done"' in answers(talk._connection), "the first has ended")
    os.kill(pid, signal.SIGSTOP)
    talk._transport.resume_reading()
    await first
    assert following.of(behind) == ["next up"]
    pool.take_back()
    assert following.of(behind) == ["next up", "went back"]
    assert pool._idle == [child]
    os.kill(pid, signal.SIGCONT)
    assert result_of(await perform(pool, claimed("echo"), Following(pool)))["pid"] == pid


def answers(connection: socket.socket) -> bytes:
    """Return what a child has sent and the worker has not read."""
    try:
        return connection.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
