"""Series as programs, servers and the command line read them, of a store on which tasks really ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duetime import App, Fatal
from duetime.api.duties import performing
from duetime.client.series import Series
from duetime.duties import Sampler
from duetime.model.series import SeriesName
from duetime.runtime.service import Alarms
from tests.api.conftest import served
from tests.servers.waiting import PATIENCE


def shop(url: str) -> App:
    app = App(url)

    @app.task
    async def charge(order: int) -> None:
        if order == 7:
            raise Fatal("order unknown")

    @app.task
    async def ship(order: int) -> None:
        pass

    return app


async def worked(app: App) -> None:
    """Run ten tasks, of which one fails, and leave two waiting; then take a sample."""
    tasks = [await app.handler("charge").now(order=order) for order in range(1, 11)]
    async with app.worker(handlers=["charge"]):
        for task in tasks:
            await app.client.wait(task.id, timeout=PATIENCE)
    await app.handler("ship").now(order=1)
    await app.handler("ship").after(3_600, order=2)
    alarms = Alarms()
    await Sampler(app.store, alarms).sample()
    alarms.close()


def total(series: Series, name: str) -> float:
    return sum(value or 0 for value in series[name])


async def check(app: App) -> None:
    whole = await app.series()
    assert (whole.handler, whole.step, set(whole.values)) == (None, 10, set(SeriesName))
    assert {len(values) for values in whole.values.values()} == {len(whole.at)}
    assert whole.at[0] == whole.since
    assert whole.at[1] - whole.at[0] == timedelta(seconds=10)
    assert (total(whole, "attempts"), total(whole, "succeeded"), total(whole, "fatal"), total(whole, "tasks_failed")) == (10, 9, 1, 1)
    assert (whole.last("due"), whole.last("later"), whole.last("running")) == (1, 1, 0)
    some = await app.series(["succeeded", "lateness_p99"], handler="charge", step=300)
    assert [*some.values] == ["succeeded", "lateness_p99"]
    assert (some.handler, some.step, total(some, "succeeded")) == ("charge", 300, 9)
    late = some.last("lateness_p99")
    assert late is not None
    assert late > 0
    by_handler = {each.handler: each for each in await app.series_by_handler(["attempts", "due"])}
    assert {name: (total(each, "attempts"), each.last("due")) for name, each in by_handler.items()} == {"charge": (10, 0), "ship": (0, 1)}
    long_ago = await app.series(["attempts"], since=datetime.now(UTC) - timedelta(days=30))
    assert (long_ago.step, total(long_ago, "attempts")) == (3600, 10)
    assert 720 <= len(long_ago.at) <= 722


async def test_series_of_a_store_in_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with shop(f"sqlite:///{tmp_path_factory.mktemp('store')}/duetime.db") as app:
        await worked(app)
        await check(app)
        assert await app.store.fold_series() > 0
        await check(app)


async def test_series_of_a_store_on_postgres_and_over_a_server(postgres_url: str) -> None:
    async with shop(postgres_url) as app:
        await worked(app)
        await check(app)
        async with served(app) as http, shop(http.url) as remote:
            await check(remote)


async def test_a_server_takes_samples_without_a_worker(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with shop(f"sqlite:///{tmp_path_factory.mktemp('store')}/duetime.db") as app, performing(app) as duties:
        assert "sampler" in {duty.name for duty in duties}
