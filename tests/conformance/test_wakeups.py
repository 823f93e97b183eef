"""Wake-ups: whoever listens is told that there may be news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import Edit, Hint, HintKind
from tests.conformance.build import Worker, add, task_in, wait_until, wish
from tests.conformance.conftest import Another


class Ear:
    """Hears hints and remembers in which thread."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self.threads: set[int] = set()

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)
        self.threads.add(threading.get_ident())

    def heard(self, *kinds: HintKind) -> bool:
        return any(hint.kind in (*kinds, HintKind.ANY) for hint in self.hints)

    async def quiet(self) -> None:
        """Let hints of what was done before pass by, as far as they come at all."""
        await asyncio.sleep(0.1)
        self.hints.clear()


@pytest.fixture
async def ear(store: Store) -> AsyncIterator[Ear]:
    ear = Ear()
    listener = store.listen(ear)
    yield ear
    listener.close()


async def test_adding_wakes(store: Store, ear: Ear) -> None:
    await ear.quiet()
    await add(store)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that a task is due")


async def test_a_hint_of_due_tasks_names_the_earliest_position(store: Store, ear: Ear, clock: ManualClock) -> None:
    await ear.quiet()
    await store.add([wish(delay=50 * SECOND), wish(delay=5 * SECOND), wish(delay=500 * SECOND)])
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that tasks will be due")
    for hint in ear.hints:
        if hint.kind is HintKind.DUE and hint.at is not None:
            assert hint.at <= clock.now() + 5 * SECOND


async def test_the_end_of_a_task_wakes(store: Store, worker: Worker, ear: Ear) -> None:
    await add(store)
    task = await worker.take_one()
    await ear.quiet()
    await worker.end(task, State.SUCCEEDED)
    await wait_until(lambda: ear.heard(HintKind.DONE), "a hint that a task is done")


async def test_a_retry_wakes(store: Store, worker: Worker, ear: Ear) -> None:
    await add(store)
    task = await worker.take_one()
    await ear.quiet()
    await worker.end(task, State.PENDING)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that a retry is due")


async def test_closing_and_opening_a_gate_wakes(store: Store, ear: Ear) -> None:
    await ear.quiet()
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await wait_until(lambda: ear.heard(HintKind.GATES), "a hint that a gate closed")
    await ear.quiet()
    await store.remove_gate("work", None)
    await wait_until(lambda: ear.heard(HintKind.GATES), "a hint that a gate opened")


async def test_cancelling_a_running_task_wakes(store: Store, worker: Worker, ear: Ear) -> None:
    record = await task_in(store, worker, State.RUNNING)
    await ear.quiet()
    await store.cancel([record.id])
    await wait_until(lambda: ear.heard(HintKind.CANCEL), "a hint that an attempt is to stop")


async def test_an_operators_retry_and_an_edit_wake(store: Store, worker: Worker, ear: Ear) -> None:
    record = await task_in(store, worker, State.FAILED)
    await ear.quiet()
    await store.retry([record.id])
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that a retried task is due")
    await ear.quiet()
    await store.edit([Edit(id=record.id, due_at=store.now() + SECOND)])
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that an edited task is due")


async def test_a_freed_child_wakes(store: Store, worker: Worker, ear: Ear) -> None:
    await task_in(store, worker, State.BLOCKED)
    task = await worker.take_one("parent")
    await ear.quiet()
    await worker.end(task, State.SUCCEEDED)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint that a child is due")


async def test_hints_are_heard_in_the_event_loop(store: Store, ear: Ear) -> None:
    await add(store)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint")
    assert ear.threads == {threading.get_ident()}


async def test_every_listener_is_woken(store: Store, ear: Ear) -> None:
    second = Ear()
    listener = store.listen(second)
    await add(store)
    await wait_until(lambda: ear.heard(HintKind.DUE) and second.heard(HintKind.DUE), "a hint for both")
    listener.close()


async def test_a_closed_listener_hears_nothing(store: Store, ear: Ear) -> None:
    closed = Ear()
    listener = store.listen(closed)
    listener.close()
    listener.close()
    await add(store)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint for the one that is open")
    assert closed.hints == []


async def test_a_listener_that_raises_does_not_stop_the_others(store: Store) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def broken(hint: Hint) -> None:
        raise RuntimeError("a broken listener")

    first = store.listen(broken)
    ear = Ear()
    second = store.listen(ear)
    await add(store)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint beside a broken listener")
    first.close()
    second.close()
    await add(store)


async def test_what_another_store_object_writes_wakes_too(store: Store, another: Another, worker: Worker, ear: Ear) -> None:
    other = await another()
    await ear.quiet()
    record = await add(other)
    await wait_until(lambda: ear.heard(HintKind.DUE), "a hint from the other")
    await worker.take()
    await ear.quiet()
    await other.cancel([record.id])
    await wait_until(lambda: ear.heard(HintKind.CANCEL), "a hint that an attempt is to stop")
    await ear.quiet()
    await other.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await wait_until(lambda: ear.heard(HintKind.GATES), "a hint that a gate closed")
