"""Locks for any code: one holder at a time, a fence, and nothing stays locked when its holder dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from duetime import App, InvalidValue, Lock, LockLost, LockNotFound, LockTaken
from duetime.clock import monotonic
from tests.servers.waiting import PATIENCE


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url, user="anna@shop") as app:
        yield app


@pytest.mark.covers("SHL.4", "SHL.5", "RED.6")
async def test_one_at_a_time_holds_a_lock_and_each_has_a_higher_fence(app: App) -> None:
    async with app.lock("nightly", max_hold=600) as lock:
        lock.check()
        with pytest.raises(LockTaken, match="the lock nightly is held"):
            async with app.lock("nightly"):
                raise AssertionError("nobody else has it")
        assert await app.locks.take("nightly") is None
        [info] = await app.locks.list()
        assert (info.name, info.by, info.fence, info.silent) == ("nightly", "anna@shop", lock.fence, False)
    with pytest.raises(LockLost, match="it was released"):
        lock.check()
    assert await app.locks.list() == []
    async with app.lock("nightly") as next_one:
        assert next_one.fence > lock.fence


async def test_a_lock_stays_taken_for_min_hold(app: App) -> None:
    async with app.lock("short", min_hold=3_600):
        pass
    assert await app.locks.take("short") is None
    info = await app.locks.get("short")
    assert info.free_at is not None
    assert info.free_at > info.taken_at


@pytest.mark.covers("SHL.3")
async def test_a_lock_is_over_after_max_hold_unless_it_is_extended(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    now = monotonic()
    monkeypatch.setattr("duetime.client.locks.monotonic", lambda: now)
    lock = await app.locks.take("long", max_hold=10)
    assert lock is not None
    now += 9
    await lock.renew()
    lock.extend(10)
    now += 9
    await lock.renew()
    lock.check()
    now += 2
    with pytest.raises(LockLost, match="as long as max_hold allows"):
        lock.check()
    with pytest.raises(LockLost):
        lock.extend(10)
    assert await lock.renew() is None
    assert await app.locks.list() == [], "it is free although its holder goes on"
    await lock.release()


async def test_who_waits_gets_it_when_it_is_released(app: App) -> None:
    order = []

    async def wait() -> None:
        async with app.lock("queue", wait=PATIENCE):
            order.append("second")

    async with app.lock("queue"):
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


@pytest.mark.covers("SHL.1")
async def test_a_decorated_function_is_skipped_while_somebody_has_the_lock(app: App) -> None:
    calls = []

    @app.lock("report", max_hold=60)
    async def report(day: int) -> int:
        calls.append(day)
        return day

    assert await report(1) == 1
    async with app.lock("report"):
        assert await report(2) is None
    assert await report(3) == 3
    assert calls == [1, 3]


def test_synchronous_code_holds_locks_too(url: str) -> None:
    app = App(url)

    @app.lock("job")
    def job() -> str:
        return "done"

    with app.lock("job", max_hold=60) as lock:
        lock.check()
        assert job() is None
    assert job() == "done"
    app.sync(app.close())


@pytest.mark.covers("SHL.6")
async def test_a_holder_that_cannot_renew_counts_itself_out_before_others_take_over(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    now = monotonic()
    monkeypatch.setattr("duetime.client.locks.monotonic", lambda: now)
    lock = await app.locks.take("a")
    assert lock is not None
    others = App(app.config.url, lease=app.config.lease).locks
    assert await others.take("a") is None
    now += 0.71 * app.config.lease
    assert lock.lost
    assert await others.take("a") is None, "it was watched for less than a lease"
    now += 0.3 * app.config.lease
    taken = await others.take("a")
    assert taken is not None
    assert taken.fence > lock.fence
    assert await lock.renew() is None
    with pytest.raises(LockLost, match="taken by somebody"):
        lock.check()
    await taken.release()
    await lock.release()


async def test_an_operator_takes_a_lock_away(app: App) -> None:
    lock = await app.locks.take("stuck")
    assert isinstance(lock, Lock)
    await app.locks.delete("stuck")
    assert await lock.renew() is None
    assert lock.lost
    with pytest.raises(LockNotFound, match="nobody holds a lock 'stuck'"):
        await app.locks.delete("stuck")
    with pytest.raises(LockNotFound):
        await app.locks.get("stuck")
    await lock.release()


async def test_what_makes_no_sense_is_refused(app: App) -> None:
    for options in ({"max_hold": 0}, {"min_hold": -1}, {"wait": -1}, {"max_hold": 5, "min_hold": 6}):
        with pytest.raises(InvalidValue):
            await app.locks.take("a", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="the name of a lock"):
        await app.locks.take("")
