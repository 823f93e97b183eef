"""Limits by key and rate: what handlers themselves see of how many run and start, in several workers on one store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from duetime import App, Context, Limit, LimitNotFound, Rate, RetryLater
from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidHandler, InvalidValue
from duetime.model.limit import CountedLimit, RateRule
from duetime.model.task import State
from duetime.model.why import ReasonKind
from duetime.store.open import store_from_url
from duetime.store.values import ClaimedTask
from tests.chaos.stepping import hire
from tests.conformance.build import ended, new_task, wait_until
from tests.integration.postgres import admin, schema_of
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow
TASKS = 60


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    return str(request.getfixturevalue("postgres_url"))


async def looks() -> AsyncIterator[None]:
    """Look again and again, with patience."""
    async with asyncio.timeout(PATIENCE):
        while True:
            yield
            await asyncio.sleep(0.01)


class Journal:
    """What runs now for each user, and the most that ever did, as the handlers say; and in which order they began."""

    def __init__(self) -> None:
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.order: defaultdict[int, list[int]] = defaultdict(list)
        self.ended = 0

    async def run(self, user: int, number: int) -> None:
        self.now[user] += 1
        self.most[user] = max(self.most[user], self.now[user])
        if number not in self.order[user]:
            self.order[user].append(number)
        await asyncio.sleep(0.002)
        self.now[user] -= 1


def make(url: str, journal: Journal, limit: Limit) -> App:
    app = App(url)

    @app.task(limits=[limit])
    async def sync(ctx: Context, user: int, number: int) -> None:
        await journal.run(user, number)
        if number % 10 == 9 and ctx.attempt == 1:
            raise RetryLater(0)
        journal.ended += 1

    return app


@pytest.mark.covers("XXL.3", "RED.5", "QZ.6")
async def test_each_user_is_served_one_at_a_time_and_in_order_by_all_workers_together(url: str) -> None:
    journal, limit = Journal(), Limit("per-user", running=1, by="user")
    apps = [make(url, journal, limit) for _ in range(3)]
    async with AsyncExitStack() as stack:
        sync = apps[0].handler("sync")
        await apps[0].submit_many([sync.new(user=number % 5, number=number) for number in range(TASKS)])
        for app in apps:
            await stack.enter_async_context(app.worker())
        await wait_until(lambda: journal.ended == TASKS, "all tasks have ended")
        async for _ in looks():
            if not (await apps[0].limits.get("per-user")).out:
                break
    assert set(journal.most.values()) == {1}
    assert all(numbers == sorted(numbers) for numbers in journal.order.values())


@pytest.mark.covers("AIR.4", "FEN.5", "CEL.9")
async def test_a_pool_for_each_group_is_changed_while_it_is_used_and_why_names_it(url: str) -> None:
    app, release = App(url), asyncio.Event()

    @app.task(limits=[Limit("pool", running=2, by="collection")])
    async def work() -> None:
        await release.wait()

    async with app.worker():
        eu = [await work.options(collection="eu").now() for _ in range(4)]
        us = await work.options(collection="us").now()
        async for _ in looks():
            if (await app.get(us)).state == "running" and (await app.limits.get("pool")).parked == 2:
                break
        [reason] = await app.why(eu[2])
        assert (reason.kind, "the limit pool allows 2 at a time for collection eu: 2 are taken" in reason.text) == (ReasonKind.LIMIT, True)
        assert reason.text.endswith("0 tasks wait before it")
        [there, other] = await app.limits.partitions("pool")
        assert (there.partition, there.out, there.parked, other.partition) == ("eu", 2, 2, "us")
        done = await app.limits.put("pool", partition="eu", running=3, lasting=600, note="for the sale")
        assert (done.in_force, done.partition is not None and done.partition.own) == (True, 3)
        async for _ in looks():  # the third one has its place first, and is claimed then
            if (await app.limits.partitions("pool", partition="eu"))[0].out == 3 and (await app.get(eu[2])).state == "running":
                break
        assert "set by" in (await app.why(eu[3]))[0].text
        lowered = await app.limits.put("pool", partition="eu", running=1)
        assert lowered.above == 2
        await app.limits.reset("pool", partition="eu")
        with pytest.raises(LimitNotFound, match="did you mean pool"):
            await app.limits.partitions("pol")
        release.set()
        for task in (*eu, us):
            await app.result(task, timeout=PATIENCE)


@pytest.mark.covers("HF.5", "QZ.5", "DBS.6")
async def test_one_at_a_time_higher_priority_first_and_what_waited_too_long_never_starts(url: str) -> None:
    app, release, begun = App(url), asyncio.Event(), list[int]()

    @app.task(limits=[Limit("one", running=1, by="collection")])
    async def work(number: int) -> None:
        begun.append(number)
        await release.wait()

    async with app.worker():
        first = await work.now(number=0)
        async for _ in looks():
            if begun == [0]:
                break
        due_at = datetime.now(UTC)
        tasks = [await work.options(priority=number).at(due_at, number=number) for number in (1, 9, 5)]
        late = await work.options(expires=0.05).now(number=99)
        async for _ in looks():
            if (await app.get(late)).state == "expired":
                break
        release.set()
        for task in (first, *tasks):
            await app.result(task, timeout=PATIENCE)
    assert begun == [0, 9, 5, 1]


@pytest.mark.covers("HF.7")
async def test_a_rate_bounds_the_starts_in_every_time(url: str) -> None:
    limit = Limit("vendor", rate=[Rate(50, per=1, burst=5)], by="user")
    starts: defaultdict[int, list[float]] = defaultdict(list)
    apps = [App(url), App(url)]
    for app in apps:

        @app.task(limits=[limit])
        async def call(user: int) -> None:
            starts[user].append(time.monotonic())

    async with AsyncExitStack() as stack:
        await apps[0].submit_many([apps[0].handler("call").new(user=number % 2) for number in range(TASKS)])
        for app in apps:
            await stack.enter_async_context(app.worker())
        await wait_until(lambda: sum(map(len, starts.values())) == TASKS, "all have started")
    for times in starts.values():
        # what began late on a busy machine is nearer to the next one: the bound is on all of the run, whatever a single start took
        assert times[-1] - times[0] >= (len(times) - 5) / 50 - 0.1


@pytest.mark.covers("CEL.6")
async def test_a_rate_is_changed_while_it_holds(url: str) -> None:
    app, starts = App(url), Counter[int]()

    @app.task(limits=[Limit("vendor", rate=[Rate(1, per=3_600)], by="user")])
    async def call(user: int) -> None:
        starts[user] += 1

    async with app.worker():
        for user in (1, 2):
            await app.submit_many([call.new(user=user) for _ in range(5)])
        async for _ in looks():
            if (await app.limits.get("vendor")).parked == 8:
                break
        assert starts == {1: 1, 2: 1}
        waiting = [task async for task in app.tasks(state="pending", handler="call")]
        assert "allows 1/3600s for user" in (await app.why(waiting[0]))[0].text
        done = await app.limits.put("vendor", rate=[Rate(1_000_000, per=1, burst=1_000_000)], lasting=600, note="they are fast today")
        assert (done.in_force, done.limit.rates, done.limit.own_rates) == (True, ["1,000,000/1s, burst 1,000,000"], True)
        with pytest.raises(InvalidValue, match="bounds only starts"):
            await app.limits.put("vendor", running=3)
        with pytest.raises(InvalidValue, match="not a rate"):
            await app.limits.put("vendor", rate=[Rate(1, per=1)], partition="1")
        with pytest.raises(InvalidValue, match="give running="):
            await app.limits.put("vendor")
        await wait_until(lambda: starts == {1: 5, 2: 5}, "all that waited goes by the new rate")
        assert (await app.limits.reset("vendor")).rates == ["1/3600s"]


def rows_of(url: str, table: str) -> int:
    """Count the rows of a table as the database has them."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return int(file.execute(f"select count(*) from duetime_{table}").fetchone()[0])
    with admin(url) as connection:
        [[count]] = connection.execute(f'select count(*) from "{schema_of(url)}".{table}').fetchall()
        return int(str(count))


async def test_many_keys_leave_nothing_behind(url: str, request: pytest.FixtureRequest) -> None:
    """Each key is seen once: what was taken is gone when its attempt has ended, what is known of a rate soon after its burst is whole."""
    many = 100_000 if request.config.getoption("--scope") == "everything" else 2_000
    clock, at_once = ManualClock(), 1_000
    store = store_from_url(url, clock=clock)
    await store.open()
    worker = await hire(store)
    rate = CountedLimit(name="vendor", running=0, uses={"work": 1}, by="user", rates=[RateRule(1, SECOND)])
    await store.declare_counted(["work"], [CountedLimit(name="per-user", running=1, uses={"work": 1}, by="user"), rate])
    for first in range(0, many, at_once):
        await store.add([new_task("work", b'{"user":%d}' % number) for number in range(first, first + at_once)])
        taken: list[ClaimedTask] = []
        while len(taken) < at_once:
            taken += await worker.take(total=at_once)
        assert rows_of(url, "admitted") == 2 * at_once
        await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in taken])
        assert rows_of(url, "admitted") == 0
        clock.advance(1)
        await store.look_at_limits()
    assert rows_of(url, "spent") <= 61 * at_once
    clock.advance(62)
    await store.look_at_limits()
    assert [rows_of(url, table) for table in ("spent", "admitted", "held", "partition")] == [0] * 4
    assert await store.partitions("vendor") == []
    worker.lease.close()
    await store.unregister(worker.id)
    await store.close()


async def test_over_the_limit_the_newest_wins_or_is_dropped(url: str) -> None:
    app, stopped, release = App(url), asyncio.Event(), asyncio.Event()

    @app.task(limits=[Limit("preview", running=1, by="doc", over="cancel_running")])
    async def preview(doc: int, version: int) -> int:
        if version == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return version

    @app.task(limits=[Limit("ping", running=1, over="drop")])
    async def ping() -> None:
        await release.wait()

    async with app.worker():
        first = await preview.now(doc=7, version=1)
        one = await ping.now()
        async for _ in looks():
            if (await app.get(first)).state == "running" and (await app.get(one)).state == "running":
                break
        second, two = await preview.now(doc=7, version=2), await ping.now()
        assert await app.result(second, timeout=PATIENCE) == 2
        assert stopped.is_set()
        assert (await app.get(first)).state == "cancelled"
        async for _ in looks():
            if (await app.get(two)).state == "dropped":
                break
        release.set()
        await app.result(one, timeout=PATIENCE)


async def test_the_newest_waits_for_a_handler_that_does_not_stop(url: str) -> None:
    app, told, release, running = App(url), asyncio.Event(), asyncio.Event(), set[int]()

    @app.task(limits=[Limit("preview", running=1, by="doc", over="cancel_running")])
    async def preview(doc: int, version: int) -> list[int]:
        running.add(version)
        beside = sorted(running)
        try:
            if version == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            await release.wait()
            raise
        finally:
            running.discard(version)
        return beside

    async with app.worker():
        first = await preview.now(doc=7, version=1)
        async for _ in looks():
            if running == {1}:
                break
        newest = await preview.now(doc=7, version=2)
        await asyncio.wait_for(told.wait(), PATIENCE)
        async for _ in looks():
            if (await app.get(newest)).parked:
                break
        assert running == {1}
        release.set()
        assert await app.result(newest, timeout=PATIENCE) == [2]
        assert (await app.get(first)).state == "cancelled"


async def test_who_pauses_takes_nothing_of_a_limit_meanwhile(url: str) -> None:
    app, order = App(url), list[str]()

    @app.task(limits=[Limit("one", running=1, by="user")])
    async def work(ctx: Context, user: int, name: str) -> None:
        order.append(f"{name} begins")
        if name == "first":
            await ctx.sleep("a while", 0.3)
            order.append("first goes on")

    async with app.worker():
        for task in [await work.now(user=7, name=name) for name in ("first", "second")]:
            await app.result(task, timeout=PATIENCE)
    assert order == ["first begins", "second begins", "first begins", "first goes on"]


async def test_what_makes_no_sense_is_refused_where_it_is_declared() -> None:
    for wrong, message in (
        (lambda: Limit("x"), "bounds nothing"),
        (lambda: Limit("x", running=1, by="a..b"), "by names a field"),
        (lambda: Limit("x", running=1, over="never"), "over must be one of"),  # type: ignore[arg-type]
        (lambda: Limit("x", rate=[Rate(1, per=1)], over="cancel_running"), "running= alone"),
        (lambda: Limit("x", rate=[1]), "a list such as"),  # type: ignore[list-item]
        (lambda: Rate(0, per=1), "count"),
        (lambda: Rate(1, per=0), "above 0"),
        (lambda: Rate(1, per="week"), '"day"'),  # type: ignore[arg-type]
        (lambda: Rate(1, per="day", burst=2), "no burst"),
    ):
        with pytest.raises(InvalidValue, match=message):
            wrong()
    app = App("sqlite:///:memory:")
    with pytest.raises(InvalidHandler, match="is by customer, but misled takes a, user, other; name one of these"):
        app.task(limits=[Limit("x", running=1, by="customer")], name="misled")(_anything)
    with pytest.raises(InvalidValue, match="at most 2 limits"):
        app.task(limits=[Limit(name, running=1, by="a") for name in "abc"], name="many")(_anything)
    app.task(limits=[Limit("a", running=1, by="user")], name="first")(_anything)
    with pytest.raises(InvalidHandler, match="allows 1 at once, by other in second and 1 at once, by user in first"):
        app.task(limits=[Limit("a", running=1, by="other")], name="second")(_anything)


async def _anything(a: int = 0, user: int = 0, other: int = 0) -> None: ...
