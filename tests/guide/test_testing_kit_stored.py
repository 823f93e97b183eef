"""Stored targets in the testing kit: served as soon as they are put, and nothing reaches the network or starts a process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetime import App, Every, InvalidValue, RetryPolicy, Schedule, State, StoredCommand, StoredHttp, StoredPublish, UnknownHandler
from duetime.testing import UnansweredRequest, using

NOW = datetime(2030, 1, 1, 9, tzinfo=UTC)
PING = StoredHttp(url="https://shop.example/health", method="GET")


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


async def test_a_stored_request_is_answered_by_the_test_and_kept(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("ping", StoredHttp(url="https://shop.example/health", method="GET", retry=RetryPolicy(tries=2, base=60)))
        await app.schedules.put(Schedule("ping", handler="ping", rule=Every(600)))
        t.answer_next("ping", status=503)
        t.answer_next("ping", body={"ok": True})
        await t.advance(minutes=12)
        first, second = t.requests("ping")
        assert first.method == "GET"
        assert first.url == "https://shop.example/health"
        assert (first.attempt, second.attempt) == (1, 2)
        [task] = t.tasks(state=State.SUCCEEDED)
        assert await app.result(task) == {"ok": True}


async def test_a_stored_command_and_a_stored_message_reach_nothing_either(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("backup", StoredCommand(argv=["/nowhere/backup", "{payload.name}"]))
        await app.targets.put("ship", StoredPublish(url="nats://broker.example", to="orders.{payload.region}"))
        t.answer_next("backup", exit=0, output="done", result={"rows": 3})
        t.answer_next("ship", broker="confirmed")
        backup = await app.handler("backup").now(name="shop")
        ship = await app.handler("ship").now(region="north")
        await t.drain()
        assert await app.result(backup) == {"rows": 3}
        assert t.requests("backup")[0].argv == ("/nowhere/backup", "shop")
        assert t.task(ship).state is State.SUCCEEDED
        assert t.requests("ship")[0].to == "orders.north"


async def test_a_stored_request_without_an_answer_fails_the_test_by_name(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("ping", PING)
        await app.handler("ping").now()
        with pytest.raises(UnansweredRequest, match=r"ping sent GET https://shop\.example/health"):
            await t.drain()


async def test_a_target_that_is_put_again_or_deleted_counts_at_once(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("ping", PING)
        await app.targets.put("ping", StoredHttp(url="https://shop.example/other", method="HEAD"))
        t.answer_next("ping")
        await app.handler("ping").now()
        await t.drain()
        assert [request.url for request in t.requests("ping")] == ["https://shop.example/other"]
        await app.handler("ping").after(60)
        await app.targets.delete("ping")
        assert await t.advance(120) == []
        with pytest.raises(UnknownHandler, match="no target is stored under that name"):
            t.answer_next("ping")


async def test_an_answer_must_be_one_for_its_kind_of_target(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("ping", PING)
        with pytest.raises(InvalidValue, match="ping is an HTTP handler: answer it with status"):
            t.answer_next("ping", exit=1)


async def test_failures_and_crashes_can_be_injected_too(app: App) -> None:
    async with using(app, now=NOW) as t:
        await app.targets.put("ping", PING)
        t.fail_next("ping", OSError("no route"))
        t.crash_next("ping")
        t.answer_next("ping", times=2)
        task = await app.handler("ping").now()
        await t.advance(hours=1, raise_errors=False)
        assert t.task(task).state is State.SUCCEEDED
        assert t.task(task).crashes + t.task(task).attempt >= 3


async def test_targets_that_a_file_holds_already_are_served(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'shop.db'}", user="ada")
    async with app:
        await app.targets.put("ping", PING)
    async with using(App("sqlite:///:memory:", user="ada"), file=tmp_path / "shop.db") as t:
        t.answer_next("ping")
        await t.app.handler("ping").now()
        assert len(await t.drain()) == 1
        assert len(t.requests("ping")) == 1


@pytest.mark.each_store
@pytest.mark.covers("SCH.3")
async def test_the_retries_of_a_run_end_before_the_next_one_or_that_is_skipped(store_url: str) -> None:
    app = App(store_url, user="ada")
    async with using(app, url=store_url, now=NOW) as t:
        fits = RetryPolicy(tries=9, base=10, factor=1, jitter=0.5, within=50)
        await app.targets.put("fits", StoredHttp(url="https://shop.example/a", retry=fits))
        await app.targets.put("lasts", StoredHttp(url="https://shop.example/b", retry=RetryPolicy(tries=9, base=10, factor=1)))
        for name in ("fits", "lasts"):
            told = await app.schedules.put(Schedule(name, handler=name, rule=Every(60)))
            assert ("the retries of a run may last 1 min 20 s" in told.warning) is (name == "lasts")
            assert (await app.schedules.get(name)).warning == told.warning
            t.answer_next(name, status=500, times=40)
        await t.advance(minutes=3, raise_errors=False)
        ends = [(run.attempt, run.finished_at, run.planned_at) for run in t.tasks(handler="fits", state=State.FAILED)]
        assert len(ends) >= 2
        for attempt, ended_at, planned_at in ends:
            assert ended_at is not None
            assert planned_at is not None
            assert (attempt, ended_at - planned_at <= timedelta(seconds=50)) == (6, True)
        first, second, *_ = [run.planned_at for run in t.tasks(handler="lasts") if run.planned_at]
        assert second - first == timedelta(seconds=120), "while it was retried, one occurrence was skipped"
        skipped = await app.schedules.skips("lasts")
        assert [each.reason for each in skipped] == ["overlap"]
