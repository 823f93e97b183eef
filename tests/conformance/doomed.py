"""A process that registers a worker, claims, says how much it got, and is killed: `python -m tests.conformance.doomed ORDER`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from duetime.clock import ManualClock
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker


async def main(order: str) -> None:
    new_task = json.loads(order)
    store = store_from_url(new_task["url"], clock=ManualClock(new_task["now"]))
    await store.open()
    lease = await store.register(NewWorker(id=new_task["worker"], host="doomed", pid=os.getpid(), slots=new_task["wants"]))
    claim = await store.claim(new_task["worker"], 1, new_task["wants"], sum(new_task["wants"].values()))
    assert lease is not None  # it must live until the end, with whatever lock it holds
    print(len(claim.tasks), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
