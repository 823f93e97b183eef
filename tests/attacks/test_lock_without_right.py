"""On SQLite a worker lives as long as its file lock is held. Somebody else holds it: its tasks come back all the same (promise 2)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import State
from duetime.duties.reaper import LOOK_EVERY, Reaper
from duetime.runtime.service import Alarms
from duetime.store.sqlite.store import SqliteStore
from tests.chaos.fleet import Fleet, until
from tests.chaos.test_kill import lives
from tests.conformance.build import add

APP = "tests.attacks.forking:app"
LEASE = 3.0


@contextlib.contextmanager
def ended_afterwards(pids: Path) -> Iterator[None]:
    """End the processes whose numbers are in a file: orphans, of whom nobody else takes care."""
    try:
        yield
    finally:
        for pid in map(int, pids.read_text().split()):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "forks", "lease"),
    [
        pytest.param("use_a_pool", 2, "1h", id="forks of Python give the lock up, so nobody waits for a lease"),
        pytest.param("fork_in_c", 1, "1s", id="others hold it, for a lease"),
    ],
)
async def test_tasks_come_back_although_forks_outlive_their_worker(
    fleet: Fleet, tmp_path: Path, handler: str, forks: int, lease: str
) -> None:
    pids = tmp_path / "pids"
    worker = await fleet.start(app=APP, guarded=False)  # guards would have killed the forks
    task = await fleet.one(handler, pids=str(pids))
    await until("the forks are at work", lambda: pids.exists() and len(pids.read_text().split()) == forks)
    with ended_afterwards(pids):
        worker.kill()
        assert all(map(lives, map(int, pids.read_text().split()))), "the attack is over before it began"
        await fleet.start("--lease", lease, app=APP)
        await until("the task has run elsewhere", lambda: fleet.in_state(task, State.SUCCEEDED))
        assert await fleet.app.result(task) == 2
        assert all(map(lives, map(int, pids.read_text().split())))


@pytest.mark.slow
async def test_a_fork_of_a_stopped_worker_does_not_make_it_dead(fleet: Fleet, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    worker = await fleet.start(app=APP)
    task = await fleet.one("fork_in_c", pids=str(pids))
    await until("the fork is at work", lambda: pids.exists() and bool(pids.read_text()))
    with ended_afterwards(pids):
        await fleet.freeze_outside_a_write(worker)
        async with contextlib.AsyncExitStack() as stack:
            store = SqliteStore(str(fleet.path))
            await store.open()
            stack.push_async_callback(store.close)
            alarms = Alarms()
            stack.callback(alarms.close)
            reaper = Reaper(store, alarms, lease=LEASE)
            for look in range(100):
                assert await reaper.reap(look * LOOK_EVERY) == 0
        worker.thaw()
        assert await fleet.in_state(task, State.RUNNING)


class Stranger:
    """A process that may read a worker's file, and waits for its lock for as long as it takes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._path = path

    def take(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def leave(self) -> None:
        os.close(self._file)


@pytest.mark.slow
async def test_a_stranger_who_locks_a_dead_workers_file_delays_its_tasks_by_a_lease_only(tmp_path: Path) -> None:
    store = SqliteStore(f"{tmp_path}/store.db")
    await store.open()
    record = await add(store)
    claims = "tests.attacks.claiming"
    process = subprocess.Popen([sys.executable, "-m", claims, store.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    [path] = (tmp_path / "store.db-duetime" / "workers").iterdir()
    alarms = Alarms()
    reaper = Reaper(store, alarms, lease=LEASE)
    assert await reaper.reap(0.0) == 0
    stranger = Stranger(path)
    process.kill()
    stranger.take()
    # It lets go of its files a moment before it is a zombie.
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        for zombie in (True, False):  # nobody has collected the process yet; then somebody has
            [worker] = await store.workers()
            assert worker.alive is None, f"zombie: {zombie}"
            process.wait()
        assert [await reaper.reap(LOOK_EVERY * look) for look in range(1, 6)] == [0] * 5, "perhaps a child of it still runs"
        seen = [await reaper.reap(LOOK_EVERY * look) for look in range(6, 60)]
        assert sum(seen) == 1
        assert seen.index(1) * LOOK_EVERY >= LEASE - 6 * LOOK_EVERY, "not before a lease has passed"
        [back] = await store.get([record.id])
        assert back is not None
        assert (back.state, back.worker) == (State.PENDING, None)
        assert await store.workers() == []
    finally:
        stranger.leave()
        process.wait()
        alarms.close()
        await store.close()
        process.stdin and process.stdin.close()
        process.stdout.close()
