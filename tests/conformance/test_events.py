"""Events: what happens is written while somebody follows, in order, and nothing is written otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import Edge, State
from duetime.store import Store
from duetime.store.values import ChangeVerdict, Edit
from tests.conformance.build import Worker, add, new_task
from tests.conformance.conftest import Another, Dead, Hire
from tests.conformance.connections import Connection


async def told(store: Store, after: str | None = None) -> list[tuple[str, str]]:
    """Return the names and subjects of all events."""
    found: list[tuple[str, str]] = []
    cursor = after
    while True:
        page = await store.events(cursor, 3)
        cursor = page.next
        if not page.items:
            return found
        found += [(event.name, event.subject) for event in page.items]


async def names_of(store: Store, task: str) -> list[str]:
    return [name for name, subject in await told(store) if subject == task]


async def added(store: Store, handler: str = "work", **options: Any) -> str:
    return (await add(store, handler, **options)).id


async def test_nothing_is_written_while_nobody_follows(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.run(State.SUCCEEDED)
    await store.follow_events("late", 60)
    assert await told(store) == []


@pytest.mark.parametrize("options", [{}, {"key": "order-7"}, {"meta": {"tenant": "a"}}], ids=["plain", "keyed", "rich"])
async def test_a_task_is_told_from_submit_to_success(store: Store, worker: Worker, options: dict[str, Any]) -> None:
    await store.follow_events("test", 60)
    task = await added(store, **options)
    await worker.run(State.SUCCEEDED)
    assert await names_of(store, task) == ["task.submitted", "task.started", "task.succeeded"]


async def test_an_event_says_what_happened(store: Store, worker: Worker) -> None:
    await store.follow_events("test", 60)
    await add(store, collection="eu")
    await worker.run(State.FAILED)
    page = await store.events(None, 10)
    last = page.items[-1]
    assert (last.name, last.handler, last.collection, last.attempt, last.outcome) == ("task.failed", "work", "eu", 1, "fatal")
    assert last.worker == worker.id
    assert page.next == last.cursor


async def test_retries_and_ends_are_told_apart(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    task = await added(store)
    for outcome in (Outcome.FAILED, Outcome.RETRY_LATER, Outcome.RELEASED):
        await worker.run(State.PENDING, outcome=outcome)
    await worker.run(State.FAILED)
    assert await store.retry([task]) == [ChangeVerdict.CHANGED]
    await store.cancel([task])
    again = ["task.retrying", "task.started", "task.retrying", "task.started", "task.released", "task.started"]
    assert await names_of(store, task) == ["task.submitted", "task.started", *again, "task.failed", "task.retried", "task.cancelled"]


async def test_ends_without_a_run_are_told(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    expiring = await added(store, handler="later", expires_at=clock.now() + SECOND)
    parent = await added(store, handler="later")
    child = await added(store, edges=(Edge(parent, "success"),))
    dropped = await added(store, handler="unwanted")
    await store.put_gate(Gate(handler="unwanted", action=GateAction.DROP, set_by="me", set_at=clock.now()))
    await store.drop(10)
    clock.advance(2)
    await store.expire(10)
    await store.cancel([parent])
    assert await names_of(store, expiring) == ["task.submitted", "task.expired"]
    assert await names_of(store, child) == ["task.submitted", "task.cancelled"]
    assert await names_of(store, dropped) == ["task.submitted", "task.dropped"]


async def test_a_freed_child_and_an_edited_task_are_submitted_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    parent = await added(store)
    child = await added(store, edges=(Edge(parent, "success"),))
    await store.edit([Edit(id=parent, due_at=clock.now())])
    await worker.run(State.SUCCEEDED)
    freed = await worker.take_one()
    assert freed.id == child
    assert await names_of(store, child) == ["task.submitted", "task.started"]
    assert await names_of(store, parent) == ["task.submitted", "task.started", "task.succeeded"]


async def test_a_dead_worker_and_its_tasks_are_told(store: Store, dead_worker: Dead, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    task = await added(store)
    dead = await dead_worker(holding=1)
    beat = next(each.beat for each in await store.workers() if each.id == dead)
    assert await store.reap(dead, beat) == 1
    assert await names_of(store, task) == ["task.submitted", "task.started", "task.lost"]
    assert await names_of(store, dead) == ["worker.started", "worker.lost"]


async def test_a_quarantined_task_has_failed_too(store: Store, dead_worker: Dead, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    task = await added(store)
    while (record := (await store.get([task]))[0]) is not None and record.state is not State.FAILED:
        clock.advance(3_600)
        dead = await dead_worker(holding=1)
        beat = next(each.beat for each in await store.workers() if each.id == dead)
        await store.reap(dead, beat)
    assert (await names_of(store, task))[-2:] == ["task.quarantined", "task.failed"]


async def test_workers_and_gates_are_told(store: Store, hire: Hire, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    worker = await hire()
    await store.unregister(worker.id)
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE, set_by="ann", set_at=clock.now(), note="stock is down"))
    await store.remove_gate("work", None)
    assert await names_of(store, worker.id) == ["worker.started", "worker.stopped"]
    assert await names_of(store, "work") == ["gate.paused", "gate.opened"]
    paused = next(event for event in (await store.events(None, 10)).items if event.name == "gate.paused")
    assert (paused.by, paused.note, paused.handler) == ("ann", "stock is down", "work")


async def test_tasks_of_a_callers_transaction_are_told_when_it_commits(store: Store, connection: Connection) -> None:
    await store.follow_events("test", 60)
    tasks = [new_task()]
    await store.prepare(tasks)
    connection.begin()
    await store.add_on(connection.own, tasks)
    assert await told(store) == []
    connection.commit()
    assert [name for name, _ in await told(store)] == ["task.submitted"]


async def test_a_cursor_goes_on_where_it_was(store: Store, another: Another) -> None:
    start = await store.follow_events("test", 60)
    for _ in range(5):
        await add(store)
    page = await store.events(start, 2)
    rest = await told(await another(), page.items[0].cursor)
    assert [subject for _, subject in rest] == [subject for _, subject in await told(store)][1:]
    assert await told(store, page.next) == rest[1:]


async def test_a_cursor_that_is_none_is_refused(store: Store) -> None:
    for cursor in ("x", "1-2-3-4", "-", "9" * 30):
        with pytest.raises(InvalidValue, match="is not a cursor"):
            await store.events(cursor, 10)


async def test_a_remembered_follower_goes_on_where_it_was(store: Store, another: Another) -> None:
    start = await store.follow_events("hook", 60, remember=True)
    task = await added(store)
    page = await store.events(start, 10)
    assert [event.subject for event in page.items] == [task]
    assert await store.pass_events("hook", start, page.next)
    assert not await store.pass_events("hook", start, page.next), "somebody else has moved it"
    assert await (await another()).follow_events("hook", 60, remember=True) == page.next


async def test_what_a_remembered_follower_has_not_passed_stays(store: Store, clock: ManualClock) -> None:
    start = await store.follow_events("hook", 3_600, remember=True)
    task = await added(store)
    clock.advance(100)
    await store.prune_events(clock.now(), 0, 100)
    assert await names_of(store, task) == ["task.submitted"]
    page = await store.events(start, 10)
    assert await store.pass_events("hook", start, (await store.events(page.next, 10)).next)
    await store.prune_events(clock.now(), 0, 100)
    assert await told(store) == []


async def test_what_is_too_old_is_removed_although_somebody_has_not_passed_it(store: Store, clock: ManualClock) -> None:
    await store.follow_events("hook", 3_600, remember=True)
    await add(store)
    clock.advance(100)
    await store.prune_events(clock.now(), clock.now(), 100)
    assert await told(store) == []


async def test_when_nobody_follows_any_more_nothing_is_written(store: Store, clock: ManualClock) -> None:
    await store.follow_events("test", 60)
    await add(store)
    clock.advance(61)
    await store.prune_events(clock.now(), 0, 100)
    await add(store)
    assert await store.followers() == []
    assert await told(store) == []


async def test_who_leaves_is_forgotten(store: Store) -> None:
    await store.follow_events("test", 60)
    assert [each.name for each in await store.followers()] == ["test"]
    assert await store.leave_events("test")
    assert not await store.leave_events("test")
    await store.prune_events(0, 0, 100)
    await add(store)
    assert await told(store) == []
