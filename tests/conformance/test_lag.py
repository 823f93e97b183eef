"""How late the event loop of a worker answers, as the worker itself has noted it."""

from __future__ import annotations

from duetime.store import Store
from tests.conformance.conftest import Hire


async def test_the_lag_of_a_worker_is_that_which_was_noted_last(store: Store, hire: Hire) -> None:
    one, other = await hire(), await hire()
    await store.note_lag(one.id, 0.2)
    await store.note_lag(one.id, 0.5)
    await store.note_lag("no such worker", 1.0)
    assert {worker.id: worker.lag for worker in await store.workers()} == {one.id: 0.5, other.id: 0.0}
    await store.note_lag(one.id, 0.0)
    assert {worker.lag for worker in await store.workers()} == {0.0}
