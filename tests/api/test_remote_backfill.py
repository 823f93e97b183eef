"""Backfills over a server: the scenarios of the library's own tests, played by an App that has nothing but an address."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import App, Every, Schedule
from duetime.clock import ManualClock, to_instant
from duetime.store.open import store_from_url
from tests.integration import test_backfill
from tests.integration.reached import over_server

globals().update({name: test for name, test in vars(test_backfill).items() if name.startswith("test_")})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(test_backfill.NOON))


@pytest.fixture
async def app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    home = App(store_url, user="anna@shop")
    async with home.using_store(store_from_url(store_url, clock=clock)), over_server(home) as app:

        @app.task
        async def count(day: int = 0) -> None: ...

        await app.schedules.put(Schedule("hourly", "count", Every(hours=1), payload={"day": 7}, missed="skip", collection="eu"))
        yield app
