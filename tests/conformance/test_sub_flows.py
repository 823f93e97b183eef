"""Flows for whose end a task waits: it is told in the transaction that ends them, and a flow does not outlive its task."""

from __future__ import annotations

import msgspec
import pytest

from duetime.model.flow import ENDED
from duetime.model.task import State
from duetime.store import Store
from duetime.store.flows import NewFlow
from duetime.store.values import ChangeVerdict, ClaimedTask
from tests.conformance.build import Worker, new_task, state_of
from tests.conformance.test_flows import end, flow, node, on, read, states, tasks_of
from tests.conformance.test_steps import suspended


async def waiting(store: Store, worker: Worker, *, stored: bool = True) -> tuple[NewFlow, ClaimedTask]:
    """Store a flow of two nodes, and a task of its id that waits for its end."""
    inner = flow(node("a"), node("b", on("a")))
    inner = msgspec.structs.replace(inner, graph=msgspec.structs.replace(inner.graph, awaited=True))
    task = await suspended(store, worker, f"{ENDED}{inner.id}", msgspec.structs.replace(new_task(), id=inner.id))
    if stored:
        await store.add_flow(inner)
    return inner, task


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
async def test_the_end_of_a_flow_wakes_the_task_that_waits_for_it(store: Store, worker: Worker, state: State) -> None:
    _, task = await waiting(store, worker)
    await end(worker, "a")
    assert await state_of(store, task) is State.BLOCKED
    await end(worker, "b", state)
    assert await state_of(store, task) is State.PENDING
    [kept] = await store.signals()
    assert kept.task == task.id


async def test_if_nobody_looks_a_duty_wakes_it(store: Store, worker: Worker) -> None:
    async def nothing(*_: object) -> None:
        return

    store._look_for_waits = nothing  # type: ignore[attr-defined]
    _, task = await waiting(store, worker)
    await end(worker, "a")
    await end(worker, "b")
    assert await state_of(store, task) is State.BLOCKED
    del store._look_for_waits  # type: ignore[attr-defined]
    assert (await store.look_at_waits()).woken == 1
    assert await state_of(store, task) is State.PENDING


async def test_a_flow_ends_when_its_task_is_cancelled(store: Store, worker: Worker) -> None:
    inner, task = await waiting(store, worker)
    assert await store.advance_flows() == 0
    await store.cancel([task.id])
    assert await store.advance_flows() == 1
    assert (await states(store, inner))[""] == "cancelled"
    assert await store.steps(task.id) == [], "nobody waits any more"
    assert await store.advance_flows() == 0


async def test_a_task_that_ends_before_it_has_stored_its_flow_leaves_nothing(store: Store, worker: Worker) -> None:
    _, task = await waiting(store, worker, stored=False)
    await store.cancel([task.id])
    assert await store.advance_flows() == 1
    assert await store.advance_flows() == 0


async def test_a_cancel_of_the_outer_flow_is_acknowledged_when_nothing_inside_starts_any_more(store: Store, worker: Worker) -> None:
    inner = flow(node("a"), node("b", on("a")))
    outer = flow(node("nested"), node("after", on("nested")))
    await store.add_flow(outer)
    [task] = await tasks_of(store, outer, "nested")
    await store.add_flow(msgspec.structs.replace(inner, id=task, graph=msgspec.structs.replace(inner.graph, awaited=True)))
    await store.stop_flow(outer.id, "cancel")
    assert await worker.take("a", "b", "nested") == []
    assert [(await read(store, each)).state for each in (outer, msgspec.structs.replace(inner, id=task))] == ["cancelled"] * 2


async def test_a_task_that_is_retried_waits_anew(store: Store, worker: Worker) -> None:
    inner, task = await waiting(store, worker)
    await store.cancel([task.id])
    assert await store.retry([task.id]) == [ChangeVerdict.CHANGED]
    assert await store.advance_flows() == 0, "its task lives again"
    assert (await states(store, inner))[""] == "running"
