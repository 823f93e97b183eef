"""A shard that fails at any one of the calls that reach it: before it does anything, or after it has done it and the answer is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest

from duetime.clock import ManualClock
from duetime.errors import StoreUnavailable
from duetime.ids import new_id
from duetime.model.sharding import ShardEntry, new_map
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.requests import NamedRequest
from duetime.store.sharded.store import ShardedStore
from duetime.store.values import Added, AddVerdict, NewWorker
from tests.conformance.build import Worker, ended, new_task

MEMORY = "sqlite:///:memory:"
NAMES = ("a", "b", "c")
VERBS = ("add", "get", "find", "claim", "settle", "cancel")
Kind = Literal["before", "after"]


class Failing:
    """Lets the n-th call of a verb that reaches any shard fail, once: as if the shard were away, or its answer lost."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.kind: Kind = "before"
        self.calls = 0

    def wrap(self, store: Store) -> Store:
        for verb in VERBS:
            setattr(store, verb, self._failing(getattr(store, verb)))
        return store

    def _failing(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def failing(*args: Any, **options: Any) -> Any:
            self.calls += 1
            fails = self.calls == self.at
            if fails and self.kind == "before":
                raise StoreUnavailable("the shard is away")
            answer = await call(*args, **options)
            if fails:
                raise StoreUnavailable("the answer is lost")
            return answer

        return failing


@asynccontextmanager
async def sharded(failing: Failing) -> AsyncIterator[ShardedStore]:
    clock = ManualClock()
    entries = [ShardEntry(name=name, url=MEMORY) for name in NAMES]
    control = store_from_url(MEMORY, clock=clock)
    store = ShardedStore(control, lambda url: failing.wrap(store_from_url(url, clock=clock)), new_map("failing", entries))
    await store.open()
    try:
        yield store
    finally:
        failing.at = None
        assert await store.inspect(repair=False) == []
        await store.close()


async def at_every_call(story: Callable[[ShardedStore, Failing], Awaitable[None]], kind: Kind) -> int:
    """Tell a story again and again, with a failure at the first call, the second, and so on, until it ends before one."""
    number = 0
    while True:
        number += 1
        failing = Failing()
        failing.kind = kind
        async with sharded(failing) as store:
            failing.at, failing.calls = number, 0
            await story(store, failing)
            if failing.calls < number:
                return number


async def until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call as its callers do: with the same arguments, after an outage."""
    for _ in range(3):
        try:
            return await call()
        except StoreUnavailable:
            pass
    raise AssertionError("it failed although the shard is back")


def many(count: int = 6) -> list[NewTask[object]]:
    """Return tasks of many cells, some of them keyed."""
    tasks = [new_task(id=new_id(number * 682)) for number in range(count)]
    return [*tasks, *(new_task(key=f"k{number}") for number in range(count // 2))]


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_a_repeat_stores_the_rest_of_a_call_once(kind: Kind) -> None:
    async def story(store: ShardedStore, failing: Failing) -> None:
        tasks = many()
        added: list[Added] = await until_done(lambda: store.add(tasks))
        assert [each.record.id for each in added] == [task.id for task in tasks]
        assert {each.verdict for each in added} <= {AddVerdict.ADDED, AddVerdict.REPEATED}
        counts = await until_done(store.counts)
        assert sum(lane.due for lane in counts.lanes) == len(tasks)

    assert await at_every_call(story, kind) > 2


async def twice(store: ShardedStore, key: str | None) -> None:
    """Submit with a named request, and again: a client that repeats it gets another id each time, but the name makes it one task."""

    async def submit() -> Any:
        task = new_task(key=key)
        return await store.add_requested([(task, NamedRequest("me", f"name-{key}", "digest", task.id))])

    [first] = await until_done(submit)
    [again] = await until_done(submit)
    assert isinstance(first, Added)
    assert isinstance(again, Added)
    assert first.record.id == again.record.id


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_a_named_request_has_one_task_whatever_fails(kind: Kind) -> None:
    async def story(store: ShardedStore, failing: Failing) -> None:
        await twice(store, None)
        await twice(store, "k")
        assert sum(lane.due for lane in (await store.counts()).lanes) == 2

    assert await at_every_call(story, kind) > 2


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_every_task_runs_once_whatever_claim_or_settle_fails(kind: Kind) -> None:
    async def story(store: ShardedStore, failing: Failing) -> None:
        worker = await store.register(new_worker := NewWorker(id=new_id(), host="here", pid=1, slots={"work": 100}))
        tasks = many()
        await until_done(lambda: store.add(tasks))
        started: list[str] = []
        for number in range(1, 7):
            claim = await until_done(partial(store.claim, new_worker.id, number, {"work": 5}, 5))
            started += [task.id for task in claim.tasks]
            # what was claimed and never arrived is given back, as a worker's renewals find it
            await until_done(partial(store.settle, new_worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in claim.tasks]))
        lost = {attempt.id for attempt in await store.attempts_of(new_worker.id)}
        assert len(started) == len(set(started))
        assert set(started) | lost == {task.id for task in tasks}
        records = await until_done(lambda: store.get([task.id for task in tasks]))
        assert {record.id for record in records if record.state is State.SUCCEEDED} == set(started)
        worker.close()
        await store.unregister(new_worker.id)
        back = await store.counts()
        assert sum(lane.due for lane in back.lanes) == len(lost)

    assert await at_every_call(story, kind) > 5


async def test_one_shard_that_is_away_holds_up_no_claims_of_the_others() -> None:
    failing = Failing()
    async with sharded(failing) as store:
        lease = await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 100}))
        worker = Worker(store, "w", lease)
        tasks = many()
        await store.add(tasks)
        away = store._shards["b"]
        whole, away._store = away._store, failing_store(away._store)
        taken = await worker.take()
        await worker.take()
        away._store = whole
        others = {task.id for task in tasks if store.shard_of(task.id) != "b"}
        assert {task.id for task in taken} == others
        assert {task.id for task in await worker.take()} == {task.id for task in tasks} - others
        lease.close()
        await store.unregister("w")


def failing_store(store: Store | None) -> Any:
    class Away:
        def __getattr__(self, name: str) -> Any:
            raise StoreUnavailable("nobody answers")

    assert store is not None
    return Away()
