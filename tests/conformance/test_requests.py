"""Requests with a name of the caller's own: the row that is written before the task, and holds its id."""

from __future__ import annotations

import asyncio

from duetime.clock import ManualClock
from duetime.ids import new_id
from duetime.store import Store
from duetime.store.requests import NamedRequest
from tests.conformance.conftest import Another


def request(key: str = "k", caller: str = "ann", digest: str = "d") -> NamedRequest:
    return NamedRequest(caller, key, digest, new_id())


async def test_the_first_request_under_a_key_is_stored_and_every_repeat_returns_it(store: Store) -> None:
    first = request()
    assert await store.note_requests([first]) == [first]
    assert await store.note_requests([first]) == [first]
    assert await store.note_requests([request()]) == [first]
    assert await store.note_requests([request(digest="another body")]) == [first]


async def test_keys_are_each_callers_own(store: Store) -> None:
    requests = [request(), request("K"), request(caller="bob"), request("")]
    assert await store.note_requests(requests) == requests


async def test_a_batch_is_answered_in_its_order_and_the_first_of_two_wins(store: Store) -> None:
    known = request("known")
    await store.note_requests([known])
    new, twice = request("new"), request("new")
    assert await store.note_requests([new, request("known"), twice]) == [new, known, new]
    assert await store.note_requests([]) == []


async def test_of_many_that_come_at_once_one_wins(store: Store, another: Another) -> None:
    stores = [store, await another(), await another()]
    answers = await asyncio.gather(*(stores[number % 3].note_requests([request()]) for number in range(12)))
    assert len({answer.task for [answer] in answers}) == 1


async def test_old_requests_are_pruned_a_batch_at_a_time(store: Store, clock: ManualClock) -> None:
    old = [request(f"old {number}") for number in range(3)]
    for each in old:
        await store.note_requests([each])
        clock.advance(1)
    young = request("young")
    await store.note_requests([young])
    assert await store.prune_requests(clock.now(), 2) == 2
    assert await store.prune_requests(clock.now(), 2) == 1
    assert await store.prune_requests(clock.now(), 2) == 0
    again = request("old 0")
    assert await store.note_requests([again, request("young")]) == [again, young]
