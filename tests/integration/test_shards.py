"""Shards of SQLite files behind an App: what people do with them, and what a worker does over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from duetime import App
from duetime.errors import Conflict, DuplicateKey, InvalidValue
from duetime.model import sharding
from duetime.model.sharding import CONTROL
from duetime.model.task import State
from duetime.store.open import store_from_url
from tests.conformance.build import wait_until

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _changes_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SETTLING", 0)  # one process, so nobody has an older map


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'control.db'}"


async def with_shards(url: str, tmp_path: Path, *names: str) -> App:
    """Add shards to a store, and open it as a process does that starts then."""
    async with App(url) as first:
        for name in names:
            await first.shards.add(name, f"sqlite:///{tmp_path / name}.db", start=True)
    return App(url)


async def live(app: App) -> dict[str, int | None]:
    return {each.name: each.live for each in await app.shards.list()}


async def test_tasks_are_spread_and_run_and_found_again(url: str, tmp_path: Path) -> None:
    app = await with_shards(url, tmp_path, *NAMES)
    done: list[int] = []

    @app.task
    async def work(number: int) -> int:
        done.append(number)
        return number * 2

    async with app:
        tasks = [await work.now(number=number) for number in range(60)]  # one by one: a batch has one shard
        held = await live(app)
        assert held[CONTROL] == 0
        assert sum(count or 0 for count in held.values()) == 60
        assert all(held[name] for name in NAMES)
        async with app.worker():
            assert [await app.result(task, timeout=60) for task in tasks] == [number * 2 for number in range(60)]
        assert sorted(done) == list(range(60))
        found = [task.id async for task in app.tasks(state="succeeded")]
        assert sorted(found) == sorted(task.id for task in tasks)
        assert (await app.stats()).states[State.SUCCEEDED] == 60
        assert await app.shards.check() == []


async def test_a_key_is_held_by_one_task_also_when_its_shard_changes(url: str, tmp_path: Path) -> None:
    app = App(url)

    app.task(_nothing)
    async with app:
        tasks = [await app.handler("_nothing").options(key=f"k{number}").after(3_600) for number in range(20)]
    app = await with_shards(url, tmp_path, *NAMES)
    app.task(_nothing)
    async with app:
        for number in range(20):
            with pytest.raises(DuplicateKey):
                await app.handler("_nothing").options(key=f"k{number}").after(60)
            kept = await app.handler("_nothing").options(key=f"k{number}", if_exists="keep").after(60)
            assert kept.id == tasks[number].id
        assert [task.id for task in [await app.get(task.id) for task in tasks]] == [task.id for task in tasks]
        for task in tasks:
            await app.cancel(task)
        again = [await app.handler("_nothing").options(key=f"k{number}").after(60) for number in range(20)]
        assert (await live(app))[CONTROL] == 0, "new tasks are stored where the keys belong now"
        assert len({task.id for task in again}) == 20


async def test_a_repeat_is_no_second_task_although_the_shards_have_changed(url: str, tmp_path: Path) -> None:
    async with App(url) as before:
        before.task(_nothing)
        new = [before.handler("_nothing").new() for _ in range(20)]
        await before.submit_many(new)
    async with await with_shards(url, tmp_path, *NAMES) as app:
        await app.submit_many(new)
        assert await live(app) == {CONTROL: 20, "a": 0, "b": 0, "c": 0}


async def _nothing() -> None: ...


async def test_a_shard_is_drained_and_forgotten(url: str, tmp_path: Path) -> None:
    app = await with_shards(url, tmp_path, *NAMES)
    app.task(_nothing)
    async with app:
        for _ in range(60):
            await app.handler("_nothing").after(60)
        with pytest.raises(Conflict, match="live tasks"):
            await app.shards.delete("a")
        before = (await live(app))["a"]
        await app.shards.drain("a")
        for _ in range(60):
            await app.handler("_nothing").after(60)
        assert (await live(app))["a"] == before
        with pytest.raises(Conflict, match="live tasks"):
            await app.shards.delete("a")
        async for task in app.tasks(state="pending"):
            await app.cancel(task)
        await app.shards.delete("a")
        assert [each.name for each in await app.shards.list()] == [CONTROL, "b", "c"]


async def test_a_first_shard_waits_until_it_is_started(url: str, tmp_path: Path) -> None:
    async with App(url) as app:
        added = await app.shards.add("a", f"sqlite:///{tmp_path / 'a.db'}")
        assert added.state == "draining"
    async with App(url) as app:
        app.task(_nothing)
        await app.handler("_nothing").after(60)
        assert (await live(app))[CONTROL] == 1
        await app.shards.start("a")
        await app.handler("_nothing").after(60)
        assert (await live(app)) == {CONTROL: 1, "a": 1}


async def test_a_database_is_the_shard_of_one_store_and_has_one_name(url: str, tmp_path: Path) -> None:
    app = await with_shards(url, tmp_path, "a")
    async with app:
        with pytest.raises(InvalidValue, match="give an empty database"):
            await app.shards.add("again", f"sqlite:///{tmp_path / 'a.db'}")
        with pytest.raises(InvalidValue, match="shards of its own"):
            await app.shards.add("control-again", url)
    async with App(f"sqlite:///{tmp_path / 'other.db'}") as other:
        with pytest.raises(InvalidValue, match="of another store"):
            await other.shards.add("a", f"sqlite:///{tmp_path / 'a.db'}")


async def test_a_password_in_the_url_of_a_shard_is_refused(url: str) -> None:
    async with App(url) as app:
        with pytest.raises(InvalidValue, match="PGPASSFILE"):
            await app.shards.add("a", "postgresql://me:secret@host/db")


async def test_schedules_and_flows_work_over_shards(url: str, tmp_path: Path) -> None:
    app = await with_shards(url, tmp_path, *NAMES)
    fired: list[str] = []

    @app.schedule(every=1)
    async def sweep() -> None:
        fired.append("sweep")

    @app.task
    async def one(number: int) -> int:
        return number

    async with app, app.worker():
        flow = await app.chain(one.new(number=1), one.new(number=2))
        await wait_until(lambda: len(fired) >= 1, "the schedule to fire")
        assert await app.result(flow, timeout=60) is not None


async def test_what_is_not_there_over_shards_is_refused_with_a_way_out(url: str, tmp_path: Path) -> None:
    app = await with_shards(url, tmp_path, *NAMES)
    app.task(_nothing)
    async with app:
        parents = [await app.handler("_nothing").after(60) for _ in range(8)]
        with pytest.raises(InvalidValue, match="submit them as a flow"):
            await app.handler("_nothing").options(needs=parents).now()


async def test_the_layer_is_not_there_without_shards(url: str) -> None:
    async with App(url) as app:
        assert type(app.store) is type(store_from_url(url))
