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
from tests.conformance.build import Worker, add, new_task, task_in, wait_until
from tests.conformance.conftest import Another


class HintRecorder:
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
async def recorder(store: Store) -> AsyncIterator[HintRecorder]:
    recorder = HintRecorder()
    listener = store.listen(recorder)
    yield recorder
    listener.close()


async def test_adding_wakes(store: Store, recorder: HintRecorder) -> None:
    await recorder.quiet()
    await add(store)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that a task is due")


async def test_a_hint_of_due_tasks_names_the_earliest_position(store: Store, recorder: HintRecorder, clock: ManualClock) -> None:
    await recorder.quiet()
    await store.add([new_task(delay=50 * SECOND), new_task(delay=5 * SECOND), new_task(delay=500 * SECOND)])
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that tasks will be due")
    for hint in recorder.hints:
        if hint.kind is HintKind.DUE and hint.at is not None:
            assert hint.at <= clock.now() + 5 * SECOND


async def test_the_end_of_a_task_wakes(store: Store, worker: Worker, recorder: HintRecorder) -> None:
    await add(store)
    task = await worker.take_one()
    await recorder.quiet()
    await worker.end(task, State.SUCCEEDED)
    await wait_until(lambda: recorder.heard(HintKind.DONE), "a hint that a task is done")


async def test_a_retry_wakes(store: Store, worker: Worker, recorder: HintRecorder) -> None:
    await add(store)
    task = await worker.take_one()
    await recorder.quiet()
    await worker.end(task, State.PENDING)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that a retry is due")


async def test_closing_and_opening_a_gate_wakes(store: Store, recorder: HintRecorder) -> None:
    await recorder.quiet()
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await wait_until(lambda: recorder.heard(HintKind.GATES), "a hint that a gate closed")
    await recorder.quiet()
    await store.remove_gate("work", None)
    await wait_until(lambda: recorder.heard(HintKind.GATES), "a hint that a gate opened")


async def test_cancelling_a_running_task_wakes(store: Store, worker: Worker, recorder: HintRecorder) -> None:
    record = await task_in(store, worker, State.RUNNING)
    await recorder.quiet()
    await store.cancel([record.id])
    await wait_until(lambda: recorder.heard(HintKind.CANCEL), "a hint that an attempt is to stop")


async def test_an_operators_retry_and_an_edit_wake(store: Store, worker: Worker, recorder: HintRecorder) -> None:
    record = await task_in(store, worker, State.FAILED)
    await recorder.quiet()
    await store.retry([record.id])
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that a retried task is due")
    await recorder.quiet()
    await store.edit([Edit(id=record.id, due_at=store.now() + SECOND)])
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that an edited task is due")


async def test_a_freed_child_wakes(store: Store, worker: Worker, recorder: HintRecorder) -> None:
    await task_in(store, worker, State.BLOCKED)
    task = await worker.take_one("parent")
    await recorder.quiet()
    await worker.end(task, State.SUCCEEDED)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint that a child is due")


async def test_hints_are_heard_in_the_event_loop(store: Store, recorder: HintRecorder) -> None:
    await add(store)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint")
    assert recorder.threads == {threading.get_ident()}


async def test_every_listener_is_woken(store: Store, recorder: HintRecorder) -> None:
    second = HintRecorder()
    listener = store.listen(second)
    await add(store)
    await wait_until(lambda: recorder.heard(HintKind.DUE) and second.heard(HintKind.DUE), "a hint for both")
    listener.close()


async def test_a_closed_listener_hears_nothing(store: Store, recorder: HintRecorder) -> None:
    closed = HintRecorder()
    listener = store.listen(closed)
    listener.close()
    listener.close()
    await add(store)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint for the one that is open")
    assert closed.hints == []


async def test_a_listener_that_raises_does_not_stop_the_others(store: Store) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def broken(hint: Hint) -> None:
        raise RuntimeError("a broken listener")

    first = store.listen(broken)
    recorder = HintRecorder()
    second = store.listen(recorder)
    await add(store)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint beside a broken listener")
    first.close()
    second.close()
    await add(store)


async def test_what_another_store_object_writes_wakes_too(store: Store, another: Another, worker: Worker, recorder: HintRecorder) -> None:
    other = await another()
    await recorder.quiet()
    record = await add(other)
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint from the other")
    await worker.take()
    await recorder.quiet()
    await other.cancel([record.id])
    await wait_until(lambda: recorder.heard(HintKind.CANCEL), "a hint that an attempt is to stop")
    await recorder.quiet()
    await other.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await wait_until(lambda: recorder.heard(HintKind.GATES), "a hint that a gate closed")
