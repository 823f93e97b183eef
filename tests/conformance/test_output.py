"""The output of attempts: appended exactly once, read from any place, found by its words, gone with its task."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import DAY, ManualClock
from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.model.query import Query
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.output import CHUNK, KeptOutput, OutputChunk, OutputHit, OutputPosition, OutputSearch
from tests.conformance.build import PLENTY, Worker, add, get, task_in
from tests.conformance.conftest import Another

HOSTILE = "'); drop table duetime_output; -- \" \\ {} %s $1 ' & | ! <-> :* NEAR(a b) a:b ^a -a +a"
BEGINNING = OutputPosition()


async def keep(store: Store, task: TaskRecord, text: str, *, attempt: int = 1, start: int = 0, last: bool = False) -> int | None:
    [size] = await store.keep_output([OutputChunk(task.id, attempt, start, text, last)])
    return size


async def text_of(store: Store, task: TaskRecord, attempt: int | None = None) -> str:
    return "".join(chunk.text for chunk in await store.output(task.id, attempt, BEGINNING, PLENTY))


async def found(store: Store, words: str, **filters: object) -> list[str]:
    """Give the tasks of the hits; those of the filter `logs` must be the same."""
    hits = await store.search_output(OutputSearch(words=words, **filters))  # type: ignore[arg-type]
    if not filters:
        page = await store.page(Query(logs=words))
        assert {record.id for record in page.items} == {hit.task for hit in hits.items}
    return [hit.task for hit in hits.items]


# ---- keeping ----


async def test_chunks_are_appended_and_read_in_order(store: Store) -> None:
    task = await add(store)
    assert await store.keep_output([OutputChunk(task.id, 1, 0, "one\n"), OutputChunk(task.id, 1, 4, "zwei ✓\n")]) == [13, 13]
    assert await keep(store, task, "three\n", start=13, last=True) == 19
    assert await keep(store, task, "again\n", attempt=2) == 6
    assert await store.output(task.id, None, BEGINNING, PLENTY) == [
        OutputChunk(task.id, 1, 0, "one\n"),
        OutputChunk(task.id, 1, 4, "zwei ✓\n"),
        OutputChunk(task.id, 1, 13, "three\n", last=True),
        OutputChunk(task.id, 2, 0, "again\n"),
    ]
    assert await text_of(store, task, 2) == "again\n"
    assert await store.kept_output(task.id) == [KeptOutput(1, 19, True, store.now()), KeptOutput(2, 6, False, store.now())]


async def test_reading_goes_on_after_a_position(store: Store) -> None:
    task = await add(store)
    await store.keep_output([OutputChunk(task.id, attempt, 4 * n, f"{attempt}.{n}\n") for attempt in (1, 2) for n in range(3)])
    for attempt, offset, expected in (
        (1, 4, ["1.1\n", "1.2\n", "2.0\n"]),
        (1, 5, ["1.1\n", "1.2\n", "2.0\n"]),
        (1, 12, ["2.0\n", "2.1\n", "2.2\n"]),
    ):
        assert [chunk.text for chunk in await store.output(task.id, None, OutputPosition(attempt, offset), 3)] == expected
    assert [chunk.text for chunk in await store.output(task.id, 1, OutputPosition(1, 8), 3)] == ["1.2\n"]
    assert await store.output(task.id, None, OutputPosition(2, 12), 3) == []


async def test_a_repeat_and_a_gap_change_nothing_and_are_told_where_to_go_on(store: Store) -> None:
    task = await add(store)
    assert [await keep(store, task, "one\n") for _ in range(2)] == [4, 4]
    assert await keep(store, task, "one\ntwo\n") == 4, "begins before the end of what is kept"
    assert await keep(store, task, "three\n", start=8) == 4, "would leave a gap"
    assert await keep(store, task, "two\n", start=4, last=True) == 8
    assert await keep(store, task, "three\n", start=8) == 8, "nothing comes after the last"
    assert await text_of(store, task) == "one\ntwo\n"


async def test_an_empty_last_chunk_ends_the_output_where_it_is(store: Store) -> None:
    task = await add(store)
    await keep(store, task, "one\n")
    assert await keep(store, task, "", start=4, last=True) == 4
    assert await store.output(task.id, 1, BEGINNING, 1) == [OutputChunk(task.id, 1, 0, "one\n", last=True)]
    assert await keep(store, task, "", attempt=2, last=True) == 0
    assert [(kept.attempt, kept.size, kept.whole) for kept in await store.kept_output(task.id)] == [(1, 4, True), (2, 0, True)]


async def test_an_empty_last_chunk_ends_the_output_although_what_lies_before_it_is_a_repeat(store: Store) -> None:
    task = await add(store)
    await keep(store, task, "one\n")
    assert await store.keep_output([OutputChunk(task.id, 1, 0, "one\n"), OutputChunk(task.id, 1, 4, "", last=True)]) == [4, 4]
    assert await store.output(task.id, 1, BEGINNING, PLENTY) == [OutputChunk(task.id, 1, 0, "one\n", last=True)]


async def test_output_of_a_task_that_is_not_there_is_not_kept(store: Store) -> None:
    task = await add(store)
    unknown, odd = new_id(), "no id"
    chunks = [OutputChunk(unknown, 1, 0, "a"), OutputChunk(task.id, 1, 0, "b"), OutputChunk(odd, 1, 0, "c")]
    assert await store.keep_output(chunks) == [None, 1, None]
    assert await store.keep_output([]) == []
    for nobody in (unknown, odd):
        assert await store.output(nobody, None, BEGINNING, 10) == []
        assert await store.kept_output(nobody) == []


@pytest.mark.parametrize("state", State)
async def test_output_can_come_whatever_the_state_of_its_task(store: Store, worker: Worker, state: State) -> None:
    task = await task_in(store, worker, state)
    assert await keep(store, task, "late\n", last=True) == 5
    assert await text_of(store, await get(store, task)) == "late\n"
    assert await found(store, "late") == [task.id]


async def test_any_text_is_given_back_as_it_was(store: Store) -> None:
    task = await add(store)
    text = HOSTILE + "\r\n\x01\x1b[31m\ufffd\U0001f600 日本語 \u202e\n" + "x" * 3_000
    texts = [text, "\U0001f600" * (CHUNK // 4), "a " * (CHUNK // 2), "".join(f"{n:04x} " for n in range(CHUNK // 5))]
    start = 0
    for each in texts:
        start = await keep(store, task, each, start=start) or 0
    assert start == len("".join(texts).encode())
    assert await text_of(store, task) == "".join(texts)


async def test_of_many_that_append_at_once_one_wins(store: Store, another: Another) -> None:
    stores = [store, await another()]
    tasks = [await add(store) for _ in range(5)]
    batches = [[OutputChunk(task.id, 1, 0, f"{n:04}\n") for task in tasks] for n in range(8)]
    answers = await asyncio.gather(*(stores[n % 2].keep_output(batch if n % 3 else batch[::-1]) for n, batch in enumerate(batches)))
    assert answers == [[5] * 5] * 8
    assert all([len(await text_of(store, task)) == 5 for task in tasks])


# ---- searching ----


async def test_output_is_found_by_all_of_its_words(store: Store, clock: ManualClock) -> None:
    first, second, third = [await add(store) for _ in range(3)]
    await keep(store, first, "connecting to the stock service\n")
    clock.advance(1)
    await keep(store, second, "the stock of order_7 is empty: /var/log/shop.log, host db1.example.com\n")
    clock.advance(1)
    await keep(store, third, "nothing of interest\n")
    await keep(store, first, "timeout after 30.5s\n", start=32)
    assert await found(store, "stock") == [second.id, first.id]
    assert await found(store, "stock timeout") == [first.id], "the words may lie in different chunks"
    assert await found(store, "stock nothing") == []
    for words in ("order_7", "order 7", "shop.log", "example", "DB1", '"/var/log"', "30.5s", "var/log/shop"):
        assert len(await found(store, words)) == 1, words
    assert await found(store, "int*") == [third.id]
    assert await found(store, "int") == []
    assert await found(store, '"stock service"') == [first.id]
    assert await found(store, '"service stock"') == []
    assert await found(store, '"the sto"*') == [second.id, first.id]


async def test_case_and_diacritics_make_no_difference(store: Store) -> None:
    task = await add(store)
    await keep(store, task, "Überfällige Rechnung für Café Šárka, 日本語テスト, Ω\n")
    for words in ("uberfallige", "ÜBERFÄLLIGE", "rechnung", "cafe", "CAFÉ", "šarka", "日本語テスト", "日本*", "ω"):
        assert await found(store, words) == [task.id], words


async def test_a_hit_shows_a_passage_around_the_first_word(store: Store) -> None:
    task = await add(store)
    await keep(store, task, "before " * 100 + "the Stock\nservice is   down " + "after " * 100)
    [hit] = (await store.search_output(OutputSearch(words="down stock"))).items
    assert hit == OutputHit(task.id, 1, store.now(), hit.passage)
    assert hit.passage.startswith("… before before")
    assert "before the Stock service is down after" in hit.passage
    assert hit.passage.endswith("after …")
    assert len(hit.passage) < 300


@pytest.mark.parametrize(
    "words",
    [HOSTILE, 'a"b', '"a', "a*b", "NOT a", "a OR b", "text:a", "{a b}: c", "a AND (b", "a'b''c", "\\a", "a\0b", "\uff41", "x" * 5_000],
)
async def test_nothing_that_somebody_types_is_an_error_of_the_engine(store: Store, words: str) -> None:
    task = await add(store)
    await keep(store, task, f"{words.replace(chr(0), ' ')}\n")
    assert await found(store, words) == [task.id]


@pytest.mark.parametrize("words", ["", " ", "***", '""', "- . !", '"', "\\", "\0", " ".join(str(n) for n in range(30))])
async def test_what_cannot_be_searched_for_is_refused(store: Store, words: str) -> None:
    with pytest.raises(InvalidValue, match="search"):
        await store.search_output(OutputSearch(words=words))
    with pytest.raises(InvalidValue, match="search"):
        await store.page(Query(logs=words))


async def test_hits_are_filtered_and_paged_the_latest_first(store: Store, clock: ManualClock) -> None:
    tasks = []
    for number in range(7):
        tasks.append(await add(store, "even" if number % 2 == 0 else "odd", collection="eu" if number < 3 else None))
        await keep(store, tasks[-1], f"number {number}\n", attempt=1 + number)
        clock.advance(number % 3)
    ids = [task.id for task in tasks]
    assert await found(store, "number", handler="odd") == [ids[5], ids[3], ids[1]]
    assert await found(store, "number", handler="even", collection="eu") == [ids[2], ids[0]]
    assert await found(store, "number", handler="nobody") == []
    [_, middle, *_] = sorted({hit.kept_at for hit in (await store.search_output(OutputSearch(words="number"))).items})
    before, after = await found(store, "number", before=middle), await found(store, "number", after=middle)
    assert before
    assert after
    assert sorted(before + after) == sorted(ids)
    visited, cursor = [], None
    while True:
        page = await store.search_output(OutputSearch(words="number", limit=2, cursor=cursor))
        visited += [hit.task for hit in page.items]
        assert len(page.items) <= 2
        if page.next is None:
            break
        await keep(store, await add(store), "number of a later one\n")
        cursor = page.next
    assert visited[0] == ids[6]
    assert sorted(visited) == sorted(ids)
    for cursor in ("rubbish", "WyJ4Il0"):
        with pytest.raises(InvalidValue, match="cursor"):
            await store.search_output(OutputSearch(words="number", cursor=cursor))


async def test_tasks_are_listed_by_words_of_their_output_and_other_filters(store: Store, worker: Worker) -> None:
    done, failed, waiting = await task_in(store, worker, State.SUCCEEDED), await task_in(store, worker, State.FAILED), await add(store)
    silent = await add(store)
    for task in (done, failed, waiting):
        await keep(store, task, "charging card\n")
    await keep(store, failed, "refused\n", attempt=2)
    pages = {
        frozenset({done.id, failed.id, waiting.id}): Query(logs="charging"),
        frozenset({failed.id}): Query(logs='"charging card" refused'),
        frozenset({done.id}): Query(logs="card", state=State.SUCCEEDED),
        frozenset({waiting.id}): Query(logs="card", state=State.PENDING, handler="work"),
    }
    for expected, query in pages.items():
        assert {record.id for record in (await store.page(query)).items} == expected, query
    assert silent.id not in {record.id for record in (await store.page(Query(logs="card"))).items}


async def test_nothing_is_found_before_there_is_any_output(store: Store) -> None:
    await add(store)
    assert await found(store, "anything") == []


# ---- removing ----


async def test_output_goes_with_its_task(store: Store, worker: Worker, clock: ManualClock) -> None:
    old = await task_in(store, worker, State.SUCCEEDED)
    kept = await task_in(store, worker, State.FAILED)
    for task in (old, kept):
        await keep(store, task, "one word\n", last=True)
    clock.advance(30 * DAY // 1_000_000)
    [pruned] = await store.prune(State.SUCCEEDED, store.now(), PLENTY)
    assert pruned.id == old.id
    assert await store.kept_output(old.id) == []
    assert await store.output(old.id, None, BEGINNING, 10) == []
    assert await found(store, "word") == [kept.id]
    assert await keep(store, old, "too late\n", start=9) is None


async def test_output_goes_with_many_tasks_that_are_removed_at_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    tasks = [await add(store) for _ in range(5)]
    for task in tasks:
        await keep(store, task, "one word\n")
    for claimed in await worker.take():
        await worker.end(claimed, State.SUCCEEDED)
    stays = await add(store)
    await keep(store, stays, "another word\n")
    clock.advance(30 * DAY // 1_000_000)
    for _ in range(10):  # a store may remove them in any number of turns
        await store.prune(State.SUCCEEDED, store.now() - 20 * DAY, 2)
    assert await store.get([task.id for task in tasks]) == [None] * 5
    assert await found(store, "word") == [stays.id]
    assert [await store.kept_output(task.id) for task in tasks] == [[]] * 5
