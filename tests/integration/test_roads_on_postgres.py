"""Roads of collections on PostgreSQL, where processes remember lanes: what they have not read yet, and what a fail-over has mixed."""

from __future__ import annotations

import pytest

from duetime.store.postgres.store import PostgresStore
from duetime.store.values import NewWorker
from tests.conformance.build import Worker, new_task
from tests.integration.postgres import admin, opened, schema_of

pytestmark = pytest.mark.slow


async def hired(store: PostgresStore) -> Worker:
    return Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 10})))


async def test_a_lane_that_is_made_while_a_claim_goes_on_is_met_on_its_road(postgres_url: str) -> None:
    here, there = await opened(postgres_url), await opened(postgres_url)
    assert isinstance(here, PostgresStore)
    try:
        worker = await hired(here)
        await there.add([new_task(collection="one")])
        assert [task.collection for task in await worker.take()] == ["one"]
        await there.add([new_task(collection="two"), new_task(collection="one")])
        here._lanes.version += 1  # as if the lane had been made right after the versions were compared
        assert sorted(str(task.collection) for task in await worker.take()) == ["one", "two"]
        worker.lease.close()
    finally:
        await here.close()
        await there.close()


async def test_lanes_of_two_handlers_on_one_road_are_told_apart(postgres_url: str) -> None:
    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        await store.add([new_task(collection="one"), new_task(collection="three")])
        schema = schema_of(postgres_url)
        with admin(postgres_url) as connection:  # as two servers may have given the same numbers away
            taken = f"select max(id) + 1, 'other', 'two', 5 from {schema}.lane where id < 0"
            connection.execute(f"insert into {schema}.lane (id, handler, collection, priority) {taken}")
            connection.execute(f"update {schema}.control set lanes_version = lanes_version + 1")
        await store.add([new_task("other", collection="two")])
        worker = await hired(store)
        assert [task.handler for task in await worker.take("other")] == ["other"]
        assert sorted(str(task.collection) for task in await worker.take("work", "other")) == ["one", "three"]
        worker.lease.close()
    finally:
        await store.close()


async def test_floors_of_roads_are_published_for_those_who_start_later(postgres_url: str) -> None:
    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        await store.add([new_task(collection="one"), new_task(collection="two")])
        [road] = store._lanes.ways["work"]
        road.floor = 5_000_000
        await store._lanes.publish()
        later = await opened(postgres_url)
        assert isinstance(later, PostgresStore)
        await later._lanes.load()
        assert [way.floor for way in later._lanes.ways["work"]] == [5_000_000]
        assert {lane.floor for lane in later._lanes.single("work")} == {5_000_000}
        await later.close()
    finally:
        await store.close()
