"""Handlers that keep finished tasks for a time of their own: shorter or longer than the others, and nothing of theirs is lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from duetime.clock import DAY, SECOND, ManualClock
from duetime.duties.pruner import LOOK_EVERY, PAUSE, RENEW_EVERY, Pruner
from duetime.model.query import Query
from duetime.model.task import FINAL, State, TaskRecord
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.output import OutputChunk, OutputPosition
from duetime.store.values import ChangeVerdict, Declaration
from tests.conformance.build import PLENTY, Worker, add, get, put, state_of, task_in
from tests.conformance.conftest import Another

MONTH = 30 * DAY
FINALS = sorted(FINAL)
GLOBALLY = {state: timedelta(days=7) for state in FINAL}


def later(clock: ManualClock, micros: int) -> None:
    clock.advance(micros / SECOND)


async def finished(store: Store, worker: Worker, handler: str, count: int, state: State = State.SUCCEEDED) -> list[TaskRecord]:
    return [await task_in(store, worker, state, handler=handler) for _ in range(count)]


async def there(store: Store, tasks: Sequence[TaskRecord]) -> int:
    """Return how many of some tasks the store has, and check that it lists and counts the same."""
    found = [task for task in await store.get([task.id for task in tasks]) if task is not None]
    handler, state = tasks[0].handler, tasks[0].state
    listed = [each for each in (await store.page(Query(handler=handler, state=state))).items if each.handler == handler]
    counted = sum(each.count for each in (await store.counts()).finals if (each.handler, each.state) == (handler, state))
    assert {each.id for each in listed} >= {each.id for each in found}
    assert counted == len(listed)
    return len(found)


async def prune_all(
    store: Store, state: State, before: int, *, limit: int = 2, only: Sequence[str] | None = None, but: Sequence[str] = ()
) -> None:
    """Prune until nothing is left, and once more: a store drops tables that have become empty."""
    for _ in range(2):
        while await store.prune(state, before, limit, only=only, but=but):
            pass


@pytest.mark.parametrize("state", FINALS)
async def test_only_the_tasks_of_some_handlers_are_removed(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    noisy, quiet = await finished(store, worker, "noisy", 3, state), await finished(store, worker, "quiet", 3, state)
    clock.advance(10)
    young = await finished(store, worker, "noisy", 1, state)
    batches = [await store.prune(state, clock.now(), 2, only=["noisy", "unknown"]) for _ in range(3)]
    assert [len(batch) for batch in batches] == [2, 1, 0]
    assert {each.id for batch in batches for each in batch} == {task.id for task in noisy}
    assert [await there(store, noisy + young), await there(store, quiet)] == [1, 3]
    assert await store.prune(state, clock.now(), PLENTY, only=["noisy", "quiet"], but=["quiet"]) == []
    assert await store.prune(state, clock.now(), PLENTY, only=[]) == []
    assert await store.prune(state, clock.now(), 0, only=["quiet"]) == await store.prune(state, clock.now(), 0, but=["noisy"]) == []
    assert await there(store, quiet) == 3


@pytest.mark.parametrize("state", FINALS)
async def test_the_tasks_of_some_handlers_outlive_all_others(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    audit, usual = await finished(store, worker, "audit", 5, state), await finished(store, worker, "usual", 5, state)
    later(clock, MONTH)
    await prune_all(store, state, clock.now() - 15 * DAY, but=["audit"])
    assert [await there(store, audit), await there(store, usual)] == [5, 0]
    assert await store.get([task.id for task in audit]) == audit
    later(clock, MONTH)
    await prune_all(store, state, clock.now() - 15 * DAY, but=["audit"])
    assert await store.get([task.id for task in audit]) == audit
    await prune_all(store, state, clock.now() - 45 * DAY, only=["audit"])
    assert await there(store, audit) == 0


async def test_what_outlives_others_keeps_attempts_output_and_key(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, "audit", key="k")
    for state in (State.PENDING, State.FAILED):
        await worker.end(await worker.take_one("audit"), state)
        clock.advance(1)
    chunk = OutputChunk(task=record.id, attempt=1, start=0, text="one word\n", last=True)
    await store.keep_output([chunk])
    before = await store.attempts(record.id)
    assert len(before) == 2
    others = await finished(store, worker, "usual", 5, State.FAILED)
    later(clock, 10 * MONTH)
    await prune_all(store, State.FAILED, clock.now() - MONTH, but=["audit"])
    assert await there(store, others) == 0
    assert await store.attempts(record.id) == before
    assert [each.text for each in await store.output(record.id, None, OutputPosition(), 10)] == ["one word\n"]
    assert await store.find("audit", "k") == await get(store, record)
    await prune_all(store, State.FAILED, clock.now(), only=["audit"])
    assert await store.get([record.id]) == [None]
    assert (await store.attempts(record.id), await store.kept_output(record.id)) == ([], [])
    assert (await put(store, "audit", key="k")).record.attempt == 0


async def test_what_outlives_others_can_be_retried_and_deleted(store: Store, worker: Worker, clock: ManualClock) -> None:
    again, gone = await finished(store, worker, "audit", 2, State.FAILED)
    await finished(store, worker, "usual", 5, State.FAILED)
    later(clock, MONTH)
    await prune_all(store, State.FAILED, clock.now() - 15 * DAY, but=["audit"])
    assert await store.retry([again.id]) == [ChangeVerdict.CHANGED]
    await store.delete([gone.id])
    task = await worker.take_one("audit")
    assert (task.id, task.attempt) == (again.id, 2)
    await worker.end(task, State.SUCCEEDED)
    assert [each.attempt for each in await store.attempts(again.id)] == [1, 2]
    assert await store.get([gone.id]) == [None]
    await finished(store, worker, "usual", 5)
    later(clock, MONTH)
    await prune_all(store, State.SUCCEEDED, clock.now() - 15 * DAY)
    assert await store.get([again.id]) == [None]


@pytest.mark.parametrize("others", [(), ("another",)])
async def test_a_handler_that_keeps_no_longer_loses_what_it_kept(
    store: Store, worker: Worker, clock: ManualClock, others: Sequence[str]
) -> None:
    kept, stays = await finished(store, worker, "audit", 5), await finished(store, worker, "another", 5)
    later(clock, MONTH)
    await prune_all(store, State.SUCCEEDED, clock.now() - 15 * DAY, but=["audit", "another"])
    assert [await there(store, kept), await there(store, stays)] == [5, 5]
    await prune_all(store, State.SUCCEEDED, clock.now() - 15 * DAY, but=others)
    assert [await there(store, kept), await there(store, stays)] == [0, 5 * len(others)]


async def test_a_handler_that_joins_others_is_looked_for_from_the_beginning(store: Store, worker: Worker, clock: ManualClock) -> None:
    first, second = await finished(store, worker, "first", 3), await finished(store, worker, "second", 3)
    clock.advance(1)
    await prune_all(store, State.SUCCEEDED, clock.now(), only=["first"])
    assert [await there(store, first), await there(store, second)] == [0, 3]
    await prune_all(store, State.SUCCEEDED, clock.now(), only=["first", "second"])
    assert await there(store, second) == 0


async def test_what_is_written_behind_a_walk_is_found_a_day_later(store: Store, worker: Worker, clock: ManualClock) -> None:
    await finished(store, worker, "noisy", 2)
    await finished(store, worker, "usual", 2)
    clock.advance(10)
    await finished(store, worker, "noisy", 2)
    await prune_all(store, State.SUCCEEDED, clock.now() + 1, only=["noisy"])
    clock.set(clock.now() - 5 * SECOND)
    [late] = await finished(store, worker, "noisy", 1)
    later(clock, DAY + 10 * SECOND)
    await prune_all(store, State.SUCCEEDED, clock.now(), only=["noisy"])
    assert await store.get([late.id]) == [None]


async def test_walks_pass_many_tasks_of_others(store: Store, worker: Worker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sqlite.upkeep", "postgres.retention", "redis.upkeep"):
        monkeypatch.setattr(f"duetime.store.{module}.WALKED_AT_ONCE", 3)
    tasks: dict[str, list[TaskRecord]] = {"noisy": [], "usual": []}
    for handler in ("noisy", *["usual"] * 8, "noisy", "noisy", "noisy", "usual", "noisy"):
        tasks[handler] += await finished(store, worker, handler, 1)
    clock.advance(1)
    assert [len(await store.prune(State.SUCCEEDED, clock.now(), 2, only=["noisy"])) for _ in range(5)] in (
        [1, 2, 1, 1, 0],
        [1, 2, 2, 0, 0],
        [2, 2, 1, 0, 0],
    )
    assert [await there(store, each) for each in tasks.values()] == [0, 9]
    await prune_all(store, State.SUCCEEDED, clock.now(), but=["noisy"])
    assert await there(store, tasks["usual"]) == 0


# ---- the pruner ----


async def test_the_pruner_keeps_what_handlers_declare(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.declare(
        [
            Declaration(name="audit", keep={State.SUCCEEDED: 365 * 86_400.0}, aliases=("ledger",)),
            Declaration(name="noisy", keep={State.SUCCEEDED: 3_600.0, State.FAILED: 0.0}),
            Declaration(name="usual"),
        ]
    )
    names = ("audit", "ledger", "noisy", "usual")
    succeeded = {name: await finished(store, worker, name, 5) for name in names}
    failed = {name: await finished(store, worker, name, 1, State.FAILED) for name in names}
    pruner = Pruner(store, Alarms(), GLOBALLY)

    async def left() -> dict[str, tuple[int, int]]:
        while await pruner.prune():
            pass
        return {name: (await there(store, succeeded[name]), await there(store, failed[name])) for name in names}

    clock.advance(1)
    assert await left() == {"audit": (5, 1), "ledger": (5, 1), "noisy": (5, 0), "usual": (5, 1)}
    clock.advance(3_600)
    assert await left() == {"audit": (5, 1), "ledger": (5, 1), "noisy": (0, 0), "usual": (5, 1)}
    later(clock, MONTH)
    assert await left() == {"audit": (5, 0), "ledger": (5, 0), "noisy": (0, 0), "usual": (0, 0)}
    await store.declare([Declaration(name="ledger", keep={State.SUCCEEDED: 0.0}, doc="old code, which still runs somewhere")])
    assert await left() == {"audit": (5, 0), "ledger": (5, 0), "noisy": (0, 0), "usual": (0, 0)}
    later(clock, 365 * DAY)
    assert await left() == dict.fromkeys(names, (0, 0))


async def test_a_declaration_without_retention_falls_back_to_the_settings(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.declare([Declaration(name="audit", keep={State.SUCCEEDED: 365 * 86_400.0})])
    tasks = await finished(store, worker, "audit", 5)
    pruner = Pruner(store, Alarms(), GLOBALLY)
    later(clock, MONTH)
    while await pruner.prune():
        pass
    assert await there(store, tasks) == 5
    await store.declare([Declaration(name="audit")])
    while await pruner.prune():
        pass
    assert await there(store, tasks) == 0


async def test_one_process_walks_for_all(store: Store, worker: Worker, clock: ManualClock, another: Another) -> None:
    await store.declare([Declaration(name="work", keep={State.SUCCEEDED: 10.0})])
    first, second = Pruner(store, Alarms(), GLOBALLY), Pruner(await another(), Alarms(), GLOBALLY)
    assert await first.run_once() == RENEW_EVERY
    task = await task_in(store, worker, State.SUCCEEDED)
    clock.advance(20)
    assert await second.run_once() == LOOK_EVERY, "the first one has the lease"
    assert await state_of(store, task) is State.SUCCEEDED
    assert [await first.run_once() for _ in range(2)] == [PAUSE, RENEW_EVERY]
    assert await store.get([task.id]) == [None]
    task = await task_in(store, worker, State.SUCCEEDED)
    clock.advance(20)
    await first.stop()
    assert [await second.run_once() for _ in range(2)] == [PAUSE, RENEW_EVERY]
    assert await store.get([task.id]) == [None]


async def test_without_a_handler_that_says_otherwise_nobody_takes_the_lease(store: Store) -> None:
    await store.declare([Declaration(name="work")])
    assert await Pruner(store, Alarms(), GLOBALLY).run_once() == LOOK_EVERY
    assert "pruner" not in await store.duties()
