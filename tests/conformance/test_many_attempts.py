"""Tasks with very many attempts: the first and the last are kept, those between are left out with their output, and pages tell how many."""

from __future__ import annotations

import itertools

from duetime.clock import ManualClock
from duetime.model.outcome import FIRST_ATTEMPTS_KEPT, LAST_ATTEMPTS_KEPT, MOST_ATTEMPTS_KEPT, Outcome, SettleVerdict
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.output import OutputChunk, OutputPosition, OutputSearch
from tests.conformance.build import Worker, add, ended, error, get

MORE = 25


async def run(store: Store, worker: Worker, times: int, *records: TaskRecord) -> None:
    """Let tasks be claimed and go back so often."""
    for _ in range(times):
        tasks = await worker.take()
        assert {task.id for task in tasks} == {record.id for record in records}
        await store.settle(worker.id, [ended(task, State.PENDING, at=store.now(), outcome=Outcome.RETRY_LATER) for task in tasks])


def kept(last: int) -> list[int]:
    return [*range(1, FIRST_ATTEMPTS_KEPT + 1), *range(last - LAST_ATTEMPTS_KEPT + 1, last + 1)]


async def numbers(store: Store, record: TaskRecord) -> list[int]:
    return [attempt.attempt for attempt in await store.attempts(record.id)]


def test_so_many_are_kept() -> None:
    assert (FIRST_ATTEMPTS_KEPT, LAST_ATTEMPTS_KEPT, MOST_ATTEMPTS_KEPT) == (100, 400, 500)


async def test_the_first_and_the_last_attempts_are_kept_and_those_between_are_left_out(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    often, beside = await add(store), await add(store, priority=3)
    await run(store, worker, MOST_ATTEMPTS_KEPT, often, beside)
    assert await numbers(store, often) == list(range(1, MOST_ATTEMPTS_KEPT + 1)), "so far all are"
    await store.cancel([beside.id])
    await run(store, worker, MORE, often)
    last = MOST_ATTEMPTS_KEPT + MORE
    assert await numbers(store, often) == kept(last)
    assert len(await numbers(store, beside)) == MOST_ATTEMPTS_KEPT, "those of others stay"

    task = await worker.take_one()
    assert await numbers(store, often) == [*kept(last), last + 1], "with the one that runs"
    settlement = ended(task, State.FAILED, at=store.now(), error=error())
    assert await store.settle(worker.id, [settlement]) == [SettleVerdict.ACCEPTED]
    assert await numbers(store, often) == [*kept(last), last + 1]
    assert (await get(store, often)).attempt == last + 1
    assert await store.settle(worker.id, [settlement]) == [SettleVerdict.ALREADY]
    await store.retry([often.id])
    await run(store, worker, 1, often)
    assert await numbers(store, often) == kept(last + 2)
    clock.advance(60)


async def test_what_left_out_attempts_printed_is_gone_too(store: Store, worker: Worker) -> None:
    record, other = await add(store), await add(store, "other")
    chunks = [OutputChunk(record.id, attempt, 0, f"attempt{attempt} says something", last=True) for attempt in (1, 100, 101, 102, 103, 450)]
    await run(store, worker, MOST_ATTEMPTS_KEPT, record)
    await store.keep_output([*chunks, OutputChunk(other.id, 101, 0, "something of another", last=True)])
    await run(store, worker, 2, record)
    assert [output.attempt for output in await store.kept_output(record.id)] == [1, 100, 103, 450]
    assert [chunk.attempt for chunk in await store.output(record.id, None, OutputPosition(), 100)] == [1, 100, 103, 450]
    found = (await store.search_output(OutputSearch(words="something"))).items
    assert sorted((hit.task, hit.attempt) for hit in found) == sorted(
        [*((record.id, number) for number in (1, 100, 103, 450)), (other.id, 101)]
    )
    assert (await store.search_output(OutputSearch(words="attempt102"))).items == []

    await store.keep_output([chunks[3]])  # a machine that was away ships it late
    await run(store, worker, 1, record)
    assert [output.attempt for output in await store.kept_output(record.id)] == [1, 100, 450]


async def test_attempts_are_read_in_pages(store: Store, worker: Worker) -> None:
    record = await add(store)
    await run(store, worker, 7, record)
    whole = await store.attempts(record.id)
    pages = [await store.attempts(record.id, after=after, limit=3) for after in (0, 3, 6, 7)]
    assert list(itertools.chain(*pages)) == whole
    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert await store.attempts(record.id, after=2) == whole[2:]
    await worker.take_one()
    assert [attempt.attempt for attempt in await store.attempts(record.id, after=6, limit=2)] == [7, 8]
    assert await store.attempts(record.id, after=2**40) == []
