"""Handlers say how long their finished tasks are kept: declared with the code, known to whoever removes old tasks, shown to people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Handlers
from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.task import State

YEAR = timedelta(days=365)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{tmp_path / 'shop.db'}", keep_succeeded=timedelta(days=1))
    group = Handlers(prefix="shop.")

    @app.task(keep_failed=YEAR, keep_succeeded=3_600)
    async def charge() -> None: ...

    @app.schedule(every=60, keep_succeeded=timedelta(minutes=5), keep_expired=0)
    async def poll() -> None: ...

    @group.task(keep_cancelled=1, keep_dropped=2.5)
    async def ship() -> None: ...

    @app.task
    async def usual() -> None: ...

    app.http("hook", "https://example.org/", keep=100, keep_failed=YEAR)
    app.command("backup", ["true"], keep_failed=YEAR)
    app.include(group)
    async with app:
        yield app


async def test_handlers_are_shown_with_what_they_keep(app: App) -> None:
    year = YEAR.total_seconds()
    assert {each.name: each.keep for each in await app.handlers()} == {
        "charge": {State.FAILED: year, State.SUCCEEDED: 3_600},
        "poll": {State.SUCCEEDED: 300, State.EXPIRED: 0},
        "shop.ship": {State.CANCELLED: 1, State.DROPPED: 2.5},
        "usual": {},
        "hook": {State.FAILED: year},
        "backup": {State.FAILED: year},
    }


@pytest.mark.parametrize("declare", ["task", "http", "command", "schedule"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, r"keep_failed must lie between 0 and 36,500 days, got -1 s; leave it out to keep what DUETIME_KEEP_FAILED says"),
        (timedelta(days=40_000), r"keep_failed must lie between 0 and 36,500 days, got 3.456e\+09 s"),
        (float("inf"), r"keep_failed must be finite, got inf"),
        ("7d", r"keep_failed must be seconds or a timedelta, got str '7d'; write 604800 or timedelta\(days=7\)"),
        (True, r"keep_failed must be seconds or a timedelta, got bool"),
    ],
)
def test_what_cannot_be_kept_is_refused_where_it_is_declared(declare: str, wrong: Seconds, message: str) -> None:
    app = App("sqlite:///:memory:")
    ways: dict[str, Callable[[], Any]] = {
        "task": lambda: app.task(keep_failed=wrong),
        "http": lambda: app.http("hook", "https://example.org/", keep_failed=wrong),
        "command": lambda: app.command("backup", ["true"], keep_failed=wrong),
        "schedule": lambda: app.schedule(every=60, name="poll", keep_failed=wrong)(lambda: None),
    }
    with pytest.raises(InvalidValue, match=message):
        ways[declare]()
