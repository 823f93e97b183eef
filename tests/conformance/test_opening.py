"""Opening and closing a store, what it says of itself, and several objects on one store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from duetime.clock import ManualClock
from duetime.errors import StoreUnavailable
from duetime.model.task import State
from duetime.store import Store
from tests.conformance.build import Worker, add, get, new_task, state_of
from tests.conformance.conftest import Another
from tests.conformance.stores import StoreKind


async def test_opening_and_closing_twice_is_harmless(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)
    await store.open()
    record = await add(store)
    await store.open()
    assert await get(store, record) == record
    await store.close()
    await store.close()


async def test_a_store_that_was_never_opened_can_be_closed(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    await kind.store(tmp_path, clock).close()


async def test_a_store_tells_what_it_is(store: Store, kind: StoreKind, clock: ManualClock) -> None:
    assert "://" in store.url
    assert len(store.traits.durability) > 20
    assert store.traits.liveness in ("lock", "lease")
    assert store.traits.atomic in ("call", "shard")
    assert store.output_folder is None or store.output_folder
    assert store.now() == clock.now()
    clock.advance(1.5)
    assert store.now() == clock.now()


async def test_an_open_store_answers_a_ping_and_a_closed_one_does_not(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.open()
    await store.ping()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.ping()


async def test_a_store_may_be_opened_from_several_coroutines_at_once(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)

    async def use(pause: float) -> str:
        await asyncio.sleep(pause)
        await store.open()
        return (await add(store)).id

    ids = await asyncio.gather(*(use(number / 2_000) for number in range(10)))
    assert None not in await store.get(ids)
    await store.close()


async def test_a_store_that_is_not_open_says_so(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)
    with pytest.raises(StoreUnavailable, match="open"):
        await store.add([new_task()])
    await store.open()
    await store.close()
    with pytest.raises(StoreUnavailable, match="open"):
        await store.get(["x"])


async def test_a_store_without_tables_is_refused_unless_it_may_create_them(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)
    with pytest.raises(StoreUnavailable, match="migrate"):
        await store.open(migrate=False)
    await store.close()


async def test_tables_that_are_up_to_date_need_no_migration(another: Another, kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    record = await add(await another())
    store = kind.store(tmp_path, clock)
    await store.open(migrate=False)
    assert await get(store, record) == record
    await store.close()


@pytest.mark.parametrize("migrate", [True, False])
async def test_tables_newer_than_this_code_are_refused(
    newer_tables: Callable[[], None], store: Store, kind: StoreKind, clock: ManualClock, tmp_path: Path, migrate: bool
) -> None:
    newer_tables()
    late = kind.store(tmp_path, clock)
    with pytest.raises(StoreUnavailable, match="upgrade"):
        await late.open(migrate=migrate)
    await late.close()


def test_a_store_serves_several_event_loops_one_after_the_other(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> None:
    store = kind.store(tmp_path, clock)

    async def first() -> str:
        await store.open()
        heard: list[object] = []
        listener = store.listen(heard.append)
        record = await add(store)
        listener.close()
        return record.id

    async def second(id: str) -> None:
        await store.open()
        heard: list[object] = []
        listener = store.listen(heard.append)
        assert await state_of(store, id) is State.PENDING
        await add(store)
        listener.close()
        await store.close()

    id = asyncio.run(first())
    asyncio.run(second(id))


async def test_verbs_called_at_the_same_time_do_not_disturb_each_other(store: Store, worker: Worker) -> None:
    batches = [[new_task(key=f"{batch}-{number}") for number in range(20)] for batch in range(20)]
    answers, _, _ = await asyncio.gather(
        asyncio.gather(*(store.add(batch) for batch in batches)),
        asyncio.gather(*(store.counts() for _ in range(10))),
        asyncio.gather(*(store.get([batch[0].id]) for batch in batches)),
    )
    for batch, added in zip(batches, answers, strict=True):
        assert [one.record.id for one in added] == [submitted.id for submitted in batch]
    assert len(await worker.take()) == 400


async def test_what_was_written_is_there_after_closing_and_opening_again(store: Store, another: Another, worker: Worker) -> None:
    first = await another()
    records = [await add(first, key="k", payload=b'{"n": 1}'), await add(first, "done")]
    await worker.run(State.SUCCEEDED, "done", result=b"42")
    expected = await first.get([record.id for record in records])
    await first.close()
    second = await another()
    assert await second.get([record.id for record in records]) == expected


async def test_any_number_of_store_objects_may_open_at_once(kind: StoreKind, clock: ManualClock, tmp_path: Path, another: Another) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    stores = [kind.store(folder, clock) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    records = await asyncio.gather(*(add(store) for store in stores))
    for store in stores:
        assert None not in await store.get([record.id for record in records])
    await asyncio.gather(*(store.close() for store in stores))
