"""Two processes that fold series at once on PostgreSQL."""

from __future__ import annotations

import asyncio

import psycopg

from duetime.model.figures import ATTEMPTS, FigureKey
from duetime.model.series import ALL, STEPS
from duetime.store.open import store_from_url
from tests.conformance.test_series import folding_process
from tests.servers.waiting import PATIENCE

SUCCEEDED = FigureKey(ATTEMPTS, "work", "succeeded")
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%%series_piece%%'"


async def test_a_second_process_that_folds_waits_until_the_first_has_written_the_buckets(postgres_url: str) -> None:
    store = store_from_url(postgres_url)
    await store.open()
    await store.add_figures("a", 1, {SUCCEEDED: 5})
    folding = await folding_process(postgres_url)
    await store.add_figures("a", 2, {SUCCEEDED: 7})
    second = asyncio.create_task(store.fold_series())
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as watching:
        async with asyncio.timeout(PATIENCE):
            while not second.done() and watching.execute(WAITING).fetchone() == (0,):  # noqa: ASYNC110  # the server says so to nobody
                await asyncio.sleep(0.01)
    assert not second.done(), "it did not wait"
    await folding.communicate(b"\n")
    assert await second == 1
    for step in STEPS:
        buckets = (await store.series(step, 0, 1 << 60)).buckets
        assert sum(counts[ATTEMPTS]["succeeded"] for (_, handler), counts in buckets.items() if handler == ALL) == 12
    await store.close()
