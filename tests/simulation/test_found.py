"""What simulated worlds have found, each as a small cluster that shows it."""

import asyncio
from typing import cast

from duetime import App, Context, State
from duetime.testing.simulation.cluster import Cluster, Settings
from duetime.testing.simulation.process import current

app = App("sqlite:///:memory:")
began: list[float] = []


@app.task(concurrency=2)
async def works(ctx: Context, seconds: float) -> None:
    process = current()
    assert process is not None
    if seconds:
        began.append(process.cluster.now)
        await asyncio.sleep(seconds)


def test_what_expires_in_a_workers_memory_never_starts() -> None:
    """Quick attempts let the worker claim for its buffer; slower ones come, and the rest waits there past its expiry."""
    began.clear()
    cluster = Cluster(1, lambda version: app, [], Settings(workers=1))

    async def client() -> tuple[float, list[State]]:
        quick = [works.new(seconds=0.0) for _ in range(60)]
        slower = [works.options(expires=2.0).new(seconds=0.3) for _ in range(40)]
        await asyncio.sleep(1.0)
        submitted = await app.submit_many(quick + slower)
        expires_at = cluster.now + 2.0
        await asyncio.sleep(20.0)
        return expires_at, [(await app.get(task)).state for task in submitted]

    async def main() -> tuple[float, list[State]]:
        return cast(tuple[float, list[State]], await (await cluster.client()).begin(client()))

    expires_at, states = cluster.run(main)
    assert max(began) < expires_at + 0.01
    assert set(states[:60]) == {State.SUCCEEDED}
    assert states[60:].count(State.EXPIRED) > 20
