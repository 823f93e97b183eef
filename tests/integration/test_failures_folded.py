"""Adding up failures is exact, also when a process is killed in the middle of it while another is about to do the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from duetime.model.failures import fingerprint
from duetime.model.task import ErrorInfo, State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker
from tests.conformance.build import Worker, add, ended
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

FOLDER = """
import asyncio, sys
from duetime.store.open import store_from_url
from duetime.store.postgres import failures as postgres
from duetime.store.sqlite import failures as sqlite

def in_the_middle(*given):
    print("has taken them", flush=True)
    sys.stdin.read()

async def main():
    store = store_from_url(sys.argv[1])
    await store.open()
    await store.fold_failures()

postgres.folded = sqlite.folded = in_the_middle
asyncio.run(main())
"""


async def fail(store: Store, worker: Worker, times: int) -> None:
    """Let so many tasks fail, each with a write of its own."""
    said = ErrorInfo("ValueError", "no order 7")
    error = ErrorInfo("ValueError", "no order 7", fingerprint=fingerprint("work", said, None))
    for _ in range(times):
        await add(store)
        task = await worker.take_one()
        await store.settle(worker.id, [ended(task, State.FAILED, at=store.now(), error=error, handler="work")])


async def counted(store: Store) -> tuple[int, int]:
    [group] = await store.failures(0)
    return sum(each.attempts for each in group.buckets), sum(each.tasks for each in group.buckets)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_of_two_who_fold_at_once_one_is_killed_in_the_middle(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    store = store_from_url(url)
    await store.open()
    worker = Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=os.getpid(), slots={"work": 9})))
    await fail(store, worker, 3)
    assert await store.fold_failures() == 3
    await fail(store, worker, 5)

    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", FOLDER, url, stdin=pipe, stdout=pipe)
    assert other.stdout is not None
    assert await asyncio.wait_for(other.stdout.readline(), PATIENCE) == b"has taken them\n"
    folding = asyncio.create_task(store.fold_failures())
    assert await counted(store) == (8, 8), "a reader sees all of them, wherever they are"
    if kind == "postgres":  # SQLite has one writer at a time
        await asyncio.wait_for(fail(store, worker, 2), PATIENCE)
        assert not folding.done(), "who settles does not wait for those who fold"
    other.send_signal(signal.SIGKILL)
    assert await other.wait() == -signal.SIGKILL
    total = 10 if kind == "postgres" else 8
    assert await asyncio.wait_for(folding, PATIENCE) == total - 3
    assert await store.fold_failures() == 0
    assert await counted(store) == (total, total)
    worker.lease.close()
    await store.unregister("w")
    await store.close()
