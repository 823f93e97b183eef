"""Quotas of submissions at every door: Python, HTTP one by one and in batches, a remote program, metrics."""

from __future__ import annotations

from datetime import timedelta

import pytest

import duetime.testing
from duetime import App, InvalidValue, Quota, QuotaExceeded
from tests.api.conftest import served


@pytest.fixture
def bounded(app: App) -> App:
    @app.task(quota=Quota(60, per=timedelta(hours=1), burst=3), name="notify", aliases=["tell"])
    async def notify() -> None: ...

    @app.task(name="free")
    async def free() -> None: ...

    return app


@pytest.mark.covers("ATF.3")
async def test_what_is_beyond_a_quota_is_refused_with_when_to_come_again(bounded: App) -> None:
    async with bounded, served(bounded) as http:
        for handler in ("notify", "tell"):
            await http("POST", "/v1/tasks", {"handler": handler}, status=201)
        batch = [{"handler": "notify"}, {"handler": "free"}, {"handler": "notify"}]
        answered = (await http("POST", "/v1/tasks/batch", batch)).json["items"]
        assert [each["verdict"] for each in answered] == ["refused", "added", "refused"]
        assert answered[0]["problem"]["type"].endswith("quota-exceeded")
        await http("POST", "/v1/tasks", {"handler": "notify"}, status=201)
        refused = await http("POST", "/v1/tasks", {"handler": "notify"}, status=429)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json["type"].endswith("quota-exceeded")
        assert (
            "notify has a quota of 60 per hour, 3 at once for all programs together, and it is used up; try again in"
            in refused.json["detail"]
        )
        too_many = (await http("POST", "/v1/tasks/batch", [{"handler": "notify"}] * 4)).json["items"][0]["problem"]["detail"]
        assert "at most 3 can be submitted at once, got 4" in too_many
        text = (await http("GET", "/metrics")).data.decode()
        assert 'duetime_quota_refused_total{handler="notify"} 7.0' in text
        async with App(http.server.url) as remote:
            with pytest.raises(QuotaExceeded, match="try again in"):
                await remote.handler("notify").now()
            with pytest.raises(QuotaExceeded):
                await remote.submit_many([remote.handler("notify").new()])
            await remote.handler("free").now()
        stored = [task.handler async for task in bounded.tasks()]
        assert sorted(stored) == ["free", "free", "notify", "notify", "notify"]


async def test_programs_on_a_store_share_a_quota_and_come_again() -> None:
    app = App("sqlite:///:memory:")
    notify = app.task(quota=Quota(2, per=10), name="notify")(_nothing)
    async with duetime.testing.using(app) as t:
        await app.submit_many([notify.new(), notify.new()])
        with pytest.raises(QuotaExceeded) as caught:
            await notify.now()
        assert caught.value.wait == pytest.approx(5)
        await t.advance(seconds=5)
        await app.handler("notify").now()
        with pytest.raises(QuotaExceeded, match="at most 2 can be submitted at once") as caught:
            await app.submit_many([notify.new() for _ in range(3)])
        assert caught.value.wait is None
        assert len([task async for task in app.tasks()]) == 3


def _nothing() -> None: ...


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (lambda: Quota(0, per=1), "whole number from 1"),
        (lambda: Quota(1, per=0), "0.001 seconds to 366 days"),
        (lambda: Quota(1, per=1, burst=0), "burst must be"),
        (lambda: App("sqlite:///:memory:").task(quota=5)(_nothing), "such as Quota"),  # type: ignore[call-overload]
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(quota, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValue, match=said):
        quota()
