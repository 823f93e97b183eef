"""Schedules and calendars over a server: the scenarios of the library's own tests, played by an App that has nothing but an address."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import App, Context
from duetime.clock import ManualClock, to_instant
from duetime.store.open import store_from_url
from tests.integration import test_app_schedules
from tests.integration.reached import over_server

# A server fires schedules by itself, so nothing is left that a test could fire and count.
_COUNT_WHAT_THEY_FIRE = {
    "test_a_new_schedule_fires_from_now_on_and_on_request_from_its_start",
    "test_resuming_can_catch_up",
    "test_editing_a_calendar_plans_its_schedules_anew_and_fires_nothing_that_has_passed",
}

globals().update(
    {name: test for name, test in vars(test_app_schedules).items() if name.startswith("test_") and name not in _COUNT_WHAT_THEY_FIRE}
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(test_app_schedules.MONDAY))


@pytest.fixture
async def app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    home = App(store_url, user="anna@shop")
    async with home.using_store(store_from_url(store_url, clock=clock)), over_server(home) as app:

        @app.task(priority=7)
        async def sweep(ctx: Context, shop: int = 0) -> int:
            return shop

        yield app
