"""A process that registers a worker, claims, says how many tasks it got, and waits: `python -m tests.attacks.claiming URL`."""

from __future__ import annotations

import asyncio
import os
import sys

from duetime.store.open import store_from_url
from duetime.store.values import NewWorker


async def main(url: str) -> None:
    store = store_from_url(url)
    await store.open()
    lease = await store.register(NewWorker(id="f" * 16, host="here", pid=os.getpid(), slots={"work": 1}))
    claim = await store.claim("f" * 16, 1, {"work": 1}, 1)
    print(len(claim.tasks), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    lease.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
