"""The page of a worker: what it runs, its versions, and draining it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duetime import App
from tests.web.conftest import Reader


async def test_a_worker_is_drained_on_its_page_and_claims_again(ui: Reader, app: App) -> None:
    async with app.worker() as worker:
        page = await ui(f"/workers/{worker.id}")
        [info] = await app.workers()
        assert f"Duetime {info.version}" in page
        assert f"Python {info.python}" in page
        assert "Nothing runs there now" in page
        await ui(f"/workers/{worker.id}", form={"do": "drain"}, status=303)
        assert [each.draining for each in await app.workers()] == [True]
        assert "draining" in await ui("/workers")
        page = await ui(f"/workers/{worker.id}")
        assert "Claim again" in page
        assert 'value="drain"' not in page
        await ui(f"/workers/{worker.id}", form={"do": "undo"}, status=303)
        assert [each.draining for each in await app.workers()] == [False]


async def test_a_worker_is_drained_only_by_those_who_may_operate_all_its_handlers(signed: Callable[..., Any], app: App) -> None:
    reads = await signed("reads", scopes=["read"])
    some = await signed("some", scopes=["operate"], handlers=["orders.expire"])
    async with app.worker() as worker:
        for reader, status in ((reads, 403), (some, 303)):  # refused by scope; by handler: answered with the reason
            assert 'value="drain"' not in await reader(f"/workers/{worker.id}")
            await reader(f"/workers/{worker.id}", form={"do": "drain"}, status=status)
        assert [each.draining for each in await app.workers()] == [False]
    await some(f"/workers/{worker.id}", status=404)
