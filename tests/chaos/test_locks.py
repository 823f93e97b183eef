"""Locks under SIGKILL and SIGSTOP: a dead holder's lock is taken over, and one that wakes up knows that it has lost it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duetime import App
from tests.servers.waiting import PATIENCE

LEASE = 1.0
# A program that takes the lock, says its fence, and answers each line that it reads with whether it still has it.
HOLDER = """
import asyncio, sys
from duetime import App, LockLost

async def main():
    app = App(sys.argv[1], lease=float(sys.argv[2]))
    lock = await app.locks.take("chaos", max_hold=600)
    print(lock.fence, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            lock.check()
            print("held", flush=True)
        except LockLost:
            print("lost", flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def start(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, url, str(LEASE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def ask(holder: subprocess.Popen[str], line: str | None = None) -> str:
    assert holder.stdin is not None
    assert holder.stdout is not None
    if line is not None:
        print(line, file=holder.stdin, flush=True)
    return holder.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.covers("SHL.2")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_lock_of_a_holder_that_is_silent_is_taken_over(url: str, number: signal.Signals) -> None:
    async with App(url, lease=LEASE) as app:
        with start(url) as holder:
            try:
                fence = int(await asyncio.to_thread(ask, holder))
                assert await asyncio.to_thread(ask, holder, "?") == "held"
                assert await app.locks.take("chaos") is None
                holder.send_signal(number)
                lock = await app.locks.take("chaos", wait=PATIENCE)
                assert lock is not None
                assert lock.fence > fence
                if number == signal.SIGSTOP:
                    holder.send_signal(signal.SIGCONT)
                    assert await asyncio.to_thread(ask, holder, "?") == "lost"
                lock.check()
                await lock.release()
            finally:
                holder.kill()


@pytest.mark.slow
async def test_a_crashed_holder_does_not_stop_who_asks_only_once(url: str) -> None:
    async with App(url, lease=LEASE) as app:
        with start(url) as holder:
            await asyncio.to_thread(ask, holder)
            holder.kill()
        async with asyncio.timeout(PATIENCE):
            while not (await app.locks.get("chaos")).silent:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        fresh = App(url, lease=LEASE)
        lock = await fresh.locks.take("chaos")
        assert lock is not None
        await lock.release()
        await fresh.close()
