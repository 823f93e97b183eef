"""How many collections a handler may have, however many a batch brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from duetime.client.batching import add_each
from duetime.errors import InvalidValue
from duetime.model.task import NewTask
from duetime.store import Store
from duetime.store.values import MAX_COLLECTIONS, Added, AddVerdict, TooManyCollections
from tests.conformance.build import new_task

pytestmark = pytest.mark.slow


def tasks_of(numbers: range, **fields: Any) -> list[NewTask[object]]:
    return [new_task(collection=f"c{number:05}", **fields) for number in numbers]


async def fill(store: Store, number: int) -> None:
    added = await store.add(tasks_of(range(number)))
    assert [each.verdict for each in added] == [AddVerdict.ADDED] * number


async def test_a_batch_may_bring_all_that_a_handler_may_have_and_no_more(store: Store) -> None:
    await fill(store, MAX_COLLECTIONS)
    with pytest.raises(TooManyCollections, match=r"has 10,000 collections already and 'c10000' would be one more"):
        await store.add(tasks_of(range(MAX_COLLECTIONS, MAX_COLLECTIONS + 1)))
    # what is known stays usable, with other priorities and without a collection too, and other handlers have their own
    await store.add([*tasks_of(range(5)), *tasks_of(range(5), priority=9), new_task(), new_task(handler="other", collection="one more")])


async def test_a_batch_that_goes_beyond_is_refused_as_a_whole_and_told_all_that_are_too_many(store: Store) -> None:
    await fill(store, MAX_COLLECTIONS - 2)
    batch = tasks_of(range(MAX_COLLECTIONS - 4, MAX_COLLECTIONS + 3))
    with pytest.raises(TooManyCollections) as refused:
        await store.add(batch)
    assert refused.value.refused == {"c10000", "c10001", "c10002"}
    assert await store.get([task.id for task in batch]) == [None] * len(batch)


async def test_a_batch_of_thousands_too_many_takes_two_calls_and_no_bisection(store: Store) -> None:
    await fill(store, MAX_COLLECTIONS - 2)
    calls: list[int] = []

    async def add(tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        calls.append(len(tasks))
        return await store.add(tasks)

    batch = tasks_of(range(MAX_COLLECTIONS - 4, MAX_COLLECTIONS + 3_000))
    answers = await add_each(add, batch)
    assert calls == [3_004, 4]
    assert [isinstance(each, Added) for each in answers] == [True] * 4 + [False] * 3_000
    last = answers[-1]
    assert isinstance(last, InvalidValue)
    assert "'c12999' would be one more" in str(last)
