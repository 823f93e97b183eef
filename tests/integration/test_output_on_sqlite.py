"""What only the SQLite store has: an index of words that a build may lack, and two ways to walk it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.duties.pruner import LOOK_EVERY, PAUSE, Pruner
from duetime.errors import InvalidValue
from duetime.model.query import Query
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store.output import OutputChunk, OutputPosition, OutputSearch
from duetime.store.sqlite import output
from duetime.store.sqlite.store import SqliteStore
from tests.conformance.build import add


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"{tmp_path}/store.db", clock=clock)
    await store.open()
    yield store
    await store.close()


async def keep(store: SqliteStore, *texts: str) -> list[str]:
    tasks = [await add(store, due_at=store.now() + 60 * SECOND) for _ in texts]
    await store.keep_output([OutputChunk(task.id, 1, 0, text) for task, text in zip(tasks, texts, strict=True)])
    return [task.id for task in tasks]


async def found(store: SqliteStore, words: str) -> list[str]:
    hits = await store.search_output(OutputSearch(words=words))
    listed = [record.id for record in (await store.page(Query(logs=words))).items]
    assert sorted(listed) == sorted(hit.task for hit in hits.items)
    return listed


@pytest.mark.parametrize("few", [0, 2, 2_000])
async def test_words_that_many_and_few_have_are_found_alike(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(output, "FEW", few)
    ids = await keep(store, *(f"common number {n} {'odd' if n % 2 else 'even'}" for n in range(6)))
    assert await found(store, "common") == ids[::-1]
    assert await found(store, "common odd") == [ids[5], ids[3], ids[1]]
    assert await found(store, "comm* 3") == [ids[3]]
    assert await found(store, '"number 4"') == [ids[4]]
    [hit] = (await store.search_output(OutputSearch(words="odd 5"))).items
    assert hit.passage == "common number 5 odd"


async def test_without_fts5_output_is_kept_and_only_searching_is_refused(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "has_fts5", lambda connection: False)
    [first] = await keep(store, "kept without an index")
    assert [chunk.text for chunk in await store.output(first, None, OutputPosition(), 10)] == ["kept without an index"]
    with pytest.raises(InvalidValue, match="built without FTS5"):
        await store.search_output(OutputSearch(words="kept"))
    with pytest.raises(InvalidValue, match="built without FTS5"):
        await store.page(Query(logs="kept"))
    [problem] = await store.inspect(repair=False)
    assert (problem.kind, problem.repaired) == ("no search", False)
    await store.cancel([first])
    assert len(await store.prune(State.CANCELLED, store.now() + SECOND, 10)) == 1
    [second] = await keep(store, "kept without an index too")
    monkeypatch.undo()
    [third] = await keep(store, "kept with an index")
    assert await found(store, "kept") == [third, second], "the index has what was kept before it was made"


async def test_one_prune_removes_no_more_output_than_the_writer_can_spare_time_for(store: SqliteStore) -> None:
    ids = await keep(store, *(["word " * 80_000] * 6), "word " * 300_000, "word")
    await store.cancel(ids)
    batches = [[each.id for each in await store.prune(State.CANCELLED, store.now() + SECOND, 1_000)] for _ in range(6)]
    assert [len(batch) for batch in batches] == [2, 2, 2, 1, 1, 0], "up to a mebibyte, but at least one task"
    assert sorted(each for batch in batches for each in batch) == sorted(ids)
    assert await found(store, "word") == []


async def test_a_round_of_the_pruner_lasts_until_nothing_is_left_of_what_was_old_when_it_began(
    store: SqliteStore, clock: ManualClock
) -> None:
    ids = await keep(store, *(["word " * 160_000] * 3))
    await store.cancel(ids)
    alarms = Alarms()
    pruner = Pruner(store, alarms, {State.CANCELLED: timedelta(0)})
    clock.advance(1)
    pauses = [await pruner.run_once()]
    [later] = await keep(store, "late")
    await store.cancel([later])
    clock.advance(1)
    pauses += [await pruner.run_once() for _ in range(3)]
    assert pauses == [PAUSE, PAUSE, PAUSE, LOOK_EVERY]
    assert [record is None for record in await store.get([*ids, later])] == [True, True, True, False]
    assert await pruner.run_once() == PAUSE, "the next round takes what has become old meanwhile"
    alarms.close()


async def test_output_whose_task_is_gone_is_found_and_removed(store: SqliteStore, tmp_path: Path) -> None:
    await keep(store, "some text")
    await store._write(lambda connection: connection.execute("delete from duetime_task").close())
    await store._write(lambda connection: connection.execute("delete from duetime_due").close())
    kinds = [problem.kind for problem in await store.inspect(repair=True)]
    assert "orphaned logs" in kinds
    assert [problem.kind for problem in await store.inspect(repair=False)] == []
    assert await found(store, "text") == []
