"""The page of a worker: what it runs, its versions, and draining it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duetime import App
from duetime.worker.keeper import LAGS
from duetime.worker.worker import Worker
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard


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


async def test_a_worker_whose_event_loop_answers_late_is_told(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db")
    workers: list[Worker] = []

    @app.task
    async def blocks() -> None:
        """Hold the event loop until it has been asked for a sign of life, and a little longer."""
        keeper = workers[0]._keeper
        while keeper._beat_answered:
            time.sleep(0.001)  # noqa: ASYNC251
        time.sleep(2 * LAGS[0])  # noqa: ASYNC251

    async with dashboard(app) as ui, app.worker(grace=0.1) as worker:
        workers.append(worker)
        task = await blocks.now()
        await app.client.wait(task.id, timeout=PATIENCE)
        await worker._note_lag()
        [info] = await app.workers()
        assert info.lag >= LAGS[0]
        assert "alive" in await ui("/workers")
        assert "Its event loop answers up to" in await ui(f"/workers/{worker.id}")
        async with ui.session.get(f"{ui.url}/v1/workers") as response:
            assert (await response.json())["items"][0]["lag"] == info.lag
