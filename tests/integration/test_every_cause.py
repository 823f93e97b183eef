"""`why` names every cause, alone and in pairs: each is made real with workers, on both stores."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from duetime import App, State, Task
from duetime.clock import SECOND, ManualClock, SystemClock
from duetime.ids import new_id
from duetime.model.outcome import Acceptance
from duetime.model.task import Edge
from duetime.model.why import ReasonKind
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker
from tests.conformance.build import new_task
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.conformance.stores import die_in_another_process
from tests.integration.callers import bare
from tests.integration.reached import over_server
from tests.integration.scene import HOUR, SHARED, WHOLE, Scene

LATER, RETRY, GATE, NO_WORKER = ReasonKind.LATER, ReasonKind.RETRY, ReasonKind.GATE, ReasonKind.NO_WORKER
SLOTS_FULL, WORKER_FULL, BLOCKED, PARKED = ReasonKind.SLOTS_FULL, ReasonKind.WORKER_FULL, ReasonKind.BLOCKED, ReasonKind.PARKED
READY, RUNNING, FINISHED, REQUESTED = ReasonKind.READY, ReasonKind.RUNNING, ReasonKind.FINISHED, ReasonKind.REQUESTED


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture
async def scene(url: str) -> AsyncIterator[Scene]:
    async with Scene(url) as scene:
        yield scene


# ---- causes, one each ----


async def due_later(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.app.handler("job").after(HOUR)


async def back_off(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.until(await scene.submit("unlucky"), lambda task: task.tries == 1)


async def suspended(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.until(await scene.submit("patient"), lambda task: task.state is State.BLOCKED)


async def asked_for_later(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.until(await scene.submit("asks_for_later"), lambda task: task.attempt == 1 and task.state is State.PENDING)


async def paused_handler(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.app.gates.pause("job", note="stock service down")
    return await scene.submit("job")


async def paused_collection(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.app.gates.pause("job", collection="eu", lasting=HOUR)
    return await scene.submit("job", collection="eu")


async def dropping_handler(scene: Scene) -> Task[Any]:
    """Nothing is dropped yet, because no worker looks."""
    await scene.app.gates.drop("job")
    return await scene.submit("job")


async def dropping_collection(scene: Scene) -> Task[Any]:
    await scene.app.gates.drop("job", collection="eu")
    return await scene.submit("job", collection="eu")


async def nobody(scene: Scene) -> Task[Any]:
    return await scene.submit("job")


async def cancel_committed(scene: Scene) -> Task[Any]:
    task = await scene.submit("job")
    caller: Connection
    if scene.url.startswith("sqlite"):
        caller = SqliteConnection(Path(scene.url.removeprefix("sqlite:///")))
    else:
        caller = PsycopgConnection(bare(scene.url), "callers_of_causes")
    caller.begin()
    await scene.app.cancel(task, connection=caller.own)
    caller.commit()
    caller.close()
    return task


async def accepted_elsewhere(scene: Scene) -> Task[Any]:
    task, store, sender = await scene.submit("job"), scene.app.store, new_id()
    lease = await store.register(NewWorker(id=sender, host="here", pid=os.getpid(), slots={"job": 1}))
    [claimed] = (await store.claim(sender, 1, {"job": 1}, 1)).tasks
    await store.accept(sender, [Acceptance(claimed.id, claimed.attempt, store.now() + 3600 * SECOND)])
    lease.close()
    await store.unregister(sender)
    return task


async def worker_of_others(scene: Scene) -> Task[Any]:
    await scene.hire("other")
    return await scene.submit("job")


async def draining_worker(scene: Scene) -> Task[Any]:
    worker = await scene.hire("job")
    await scene.app.drain_worker(worker.id)
    return await scene.submit("job")


async def limit_reached(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.run("limited")
    return await scene.submit("limited")


async def handler_full(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.run("job", WHOLE)
    return await scene.submit("job")


async def worker_full(scene: Scene) -> Task[Any]:
    await scene.hire(concurrency=2)
    await scene.run("other", 2)
    return await scene.submit("job")


async def worker_full_of_the_same(scene: Scene) -> Task[Any]:
    """The handler has free slots, but the process has none for them."""
    await scene.hire(concurrency=1)
    await scene.run("other")
    return await scene.submit("other")


async def blocked(scene: Scene) -> Task[Any]:
    await scene.hire()
    [parent] = await scene.run("job")
    return await follow(scene, parent)


async def follow(scene: Scene, parent: Task[Any]) -> Task[Any]:
    child = new_task("job", edges=(Edge(parent.id, "success"),))
    await scene.app.store.add([child])
    return await scene.app.get(child.id)


async def parked(scene: Scene) -> Task[Any]:
    """The task was accepted by newer code, and the worker has the older."""
    newer = App(scene.app.config.url)

    @newer.task
    async def changed(number: int, note: str) -> None: ...

    await scene.hire()
    async with newer:
        task = await changed.now(number=1, note="new")
    return await scene.until(task, lambda task: task.parked)


async def ready(scene: Scene) -> Task[Any]:
    """A worker has registered and not looked yet."""
    await scene.app.store.register(NewWorker(id=new_id(), host="here", pid=1, slots={"job": 1}))
    return await scene.submit("job")


async def running(scene: Scene) -> Task[Any]:
    await scene.hire()
    [task] = await scene.run("job")
    return task


async def cancelling(scene: Scene) -> Task[Any]:
    await scene.hire()
    [task] = await scene.run("stubborn")
    await scene.app.cancel(task)
    await scene.told_to_stop.wait()
    return task


async def lost_worker(scene: Scene) -> Task[Any]:
    """A worker was killed a minute ago, and nobody has looked since."""
    url, then = scene.app.config.url, SystemClock().now() - 60 * SECOND
    past = store_from_url(url, clock=ManualClock(then))
    await past.open()
    [added] = await past.add([new_task("job")])
    await past.close()
    assert die_in_another_process(url, then, new_id(), {"job": 1}) == 1
    assert added.record is not None
    return await scene.app.get(added.record.id)


async def succeeded(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.finished("quick")


async def failed(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.finished("hopeless")


async def cancelled(scene: Scene) -> Task[Any]:
    task = await scene.submit("job")
    await scene.app.cancel(task)
    return task


async def dropped(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.app.gates.drop("job")
    return await scene.finished("job")


async def expired(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.app.gates.pause("job")
    return await scene.finished("job", expires=0.001)


async def quarantined(scene: Scene) -> Task[Any]:
    await scene.hire()
    return await scene.finished("die")


# ---- pairs ----


async def gate_and_later(scene: Scene) -> Task[Any]:
    await scene.app.gates.pause("job")
    return await due_later(scene)


async def gate_and_nobody(scene: Scene) -> Task[Any]:
    await scene.app.gates.pause("job")
    return await nobody(scene)


async def both_gates(scene: Scene) -> Task[Any]:
    await scene.app.gates.pause("job", note="whole")
    return await paused_collection(scene)


async def gate_and_handler_full(scene: Scene) -> Task[Any]:
    task = await handler_full(scene)
    await scene.app.gates.pause("job")
    return task


async def gate_and_worker_full(scene: Scene) -> Task[Any]:
    task = await worker_full(scene)
    await scene.app.gates.pause("job")
    return task


async def handler_and_worker_full(scene: Scene) -> Task[Any]:
    await scene.hire(concurrency=WHOLE + 1)
    await scene.run("job", WHOLE)
    await scene.run("other")
    return await scene.submit("job")


async def full_in_two_workers(scene: Scene) -> Task[Any]:
    """One worker has no slot of the handler left, the other none at all."""
    await scene.hire("job")
    await scene.run("job", WHOLE)
    await scene.hire("job", "other", concurrency=2)
    await scene.run("other", 2)
    return await scene.submit("job")


async def retry_and_gate(scene: Scene) -> Task[Any]:
    task = await back_off(scene)
    await scene.app.gates.pause("unlucky")
    return task


async def retry_and_nobody(scene: Scene) -> Task[Any]:
    task = await back_off(scene)
    await scene.stack.aclose()
    await scene.stack.enter_async_context(scene.app)
    return task


async def later_and_nobody(scene: Scene) -> Task[Any]:
    return await scene.app.handler("job").after(HOUR)


async def later_and_worker_of_others(scene: Scene) -> Task[Any]:
    await scene.hire("other")
    return await scene.app.handler("job").after(HOUR)


async def parked_and_gate(scene: Scene) -> Task[Any]:
    task = await parked(scene)
    await scene.app.gates.pause("changed")
    return task


async def parked_and_nobody(scene: Scene) -> Task[Any]:
    task = await parked(scene)
    await scene.stack.aclose()
    await scene.stack.enter_async_context(scene.app)
    return task


async def blocked_and_gate(scene: Scene) -> Task[Any]:
    task = await blocked(scene)
    await scene.app.gates.pause("job")
    return task


async def blocked_and_nobody(scene: Scene) -> Task[Any]:
    return await follow(scene, await scene.submit("job"))


async def blocked_and_worker_full(scene: Scene) -> Task[Any]:
    await scene.hire(concurrency=1)
    [parent] = await scene.run("other")
    return await follow(scene, parent)


async def gate_and_expiry(scene: Scene) -> Task[Any]:
    await scene.hire()
    await scene.app.gates.pause("job")
    return await scene.submit("job", expires=HOUR)


class Cause(NamedTuple):
    """What makes a task wait or end, the reasons that `why` must give in this order, and words of each of them."""

    make: Callable[[Scene], Awaitable[Task[Any]]]
    kinds: list[ReasonKind]
    words: list[str]


ALONE = [
    Cause(due_later, [LATER], ["it is due in "]),
    Cause(back_off, [RETRY], ["try 1 of 3 failed (ValueError: no stock, at "]),
    Cause(asked_for_later, [RETRY], ["its handler asked to run later: again in "]),
    Cause(paused_handler, [GATE], ["a gate pauses job until it is opened; set by anna: stock service down"]),
    Cause(paused_collection, [GATE], ["a gate pauses job, collection eu until 2"]),
    Cause(dropping_handler, [GATE, NO_WORKER], ["a gate drops job until it is opened", "there is no worker at all"]),
    Cause(dropping_collection, [GATE, NO_WORKER], ["a gate drops job, collection eu until", "there is no worker at all"]),
    Cause(nobody, [NO_WORKER], ["no live worker runs job; there is no worker at all"]),
    Cause(
        cancel_committed,
        [REQUESTED, NO_WORKER],
        ["a cancel of it was committed in a caller's transaction and is not carried out yet", "there is no worker at all"],
    ),
    Cause(accepted_elsewhere, [ReasonKind.ACCEPTED], ["somebody outside works on attempt 1"]),
    Cause(worker_of_others, [NO_WORKER], ["no live worker runs job; there is 1 worker of other handlers"]),
    Cause(draining_worker, [NO_WORKER], ["the only live worker that runs job drains: nothing more starts there"]),
    Cause(limit_reached, [ReasonKind.LIMIT], ["the limit erp is reached: 1 of 1"]),
    Cause(handler_full, [SLOTS_FULL], [f"all slots of job are taken: {WHOLE} run in {WHOLE} slots"]),
    Cause(worker_full, [WORKER_FULL], ["all slots over all handlers are taken: 2 run in 2 slots (2 of other)"]),
    Cause(worker_full_of_the_same, [WORKER_FULL], ["all slots over all handlers are taken: 1 run in 1 slot (1 of other)"]),
    Cause(blocked, [BLOCKED], ["it waits for task "]),
    Cause(suspended, [ReasonKind.SUSPENDED], ["nobody-says-it"]),
    Cause(parked, [PARKED], ["1 live worker of changed now"]),
    Cause(ready, [READY], ["1 slot of job is free"]),
    Cause(running, [RUNNING], ["attempt 1 has been running"]),
    Cause(cancelling, [RUNNING], ["a cancel has been asked for"]),
    Cause(lost_worker, [RUNNING], ["; but that worker has "]),
    Cause(succeeded, [FINISHED], ["it succeeded"]),
    Cause(failed, [FINISHED], ["it failed"]),
    Cause(cancelled, [FINISHED], ["it was cancelled"]),
    Cause(dropped, [FINISHED], ["under a gate that drops job"]),
    Cause(expired, [FINISHED], ["it expired"]),
    Cause(quarantined, [FINISHED], ["it was quarantined"]),
]

PAIRS = [
    Cause(gate_and_later, [LATER, GATE], ["it is due", "a gate pauses job"]),
    Cause(gate_and_nobody, [GATE, NO_WORKER], ["a gate pauses job", "no live worker"]),
    Cause(
        both_gates, [GATE, GATE], ["a gate pauses job, collection eu until 2", "a gate pauses job until it is opened; set by anna: whole"]
    ),
    Cause(gate_and_handler_full, [GATE, SLOTS_FULL], ["a gate pauses job", f"{WHOLE} run in {WHOLE} slots"]),
    Cause(gate_and_worker_full, [GATE, WORKER_FULL], ["a gate pauses job", "2 run in 2 slots (2 of other)"]),
    Cause(
        handler_and_worker_full,
        [SLOTS_FULL, WORKER_FULL],
        [f"{WHOLE} run in {WHOLE} slots", f"{WHOLE + 1} run in {WHOLE + 1} slots ({WHOLE} of job, 1 of other)"],
    ),
    Cause(
        full_in_two_workers, [SLOTS_FULL, WORKER_FULL], ["slots of job in 1 of 2 workers", "in 1 of 2 workers are taken: 2 run in 2 slots"]
    ),
    Cause(retry_and_gate, [RETRY, GATE], ["try 1 of 3 failed", "a gate pauses unlucky"]),
    Cause(retry_and_nobody, [RETRY, NO_WORKER], ["try 1 of 3 failed", "no live worker runs unlucky"]),
    Cause(later_and_nobody, [LATER, NO_WORKER], ["it is due", "there is no worker at all"]),
    Cause(later_and_worker_of_others, [LATER, NO_WORKER], ["it is due", "1 worker of other handlers"]),
    Cause(parked_and_gate, [PARKED, GATE], ["it is parked", "a gate pauses changed"]),
    Cause(parked_and_nobody, [PARKED, NO_WORKER], ["0 live workers of changed now", "no live worker runs changed"]),
    Cause(blocked_and_gate, [BLOCKED, GATE], ["it waits for task ", "a gate pauses job"]),
    Cause(blocked_and_nobody, [BLOCKED, NO_WORKER], ["it waits for task ", "no live worker runs job"]),
    Cause(blocked_and_worker_full, [BLOCKED, WORKER_FULL], ["it waits for task ", "1 run in 1 slot (1 of other)"]),
    Cause(gate_and_expiry, [GATE], ["; if it does not start before, it expires in "]),
]


@pytest.mark.slow
@pytest.mark.parametrize("cause", [pytest.param(cause, id=cause.make.__name__) for cause in [*ALONE, *PAIRS]])
async def test_why_names_all_that_holds_a_task_what_decides_first(scene: Scene, cause: Cause) -> None:
    task = await cause.make(scene)
    reasons = await scene.app.why(task)
    assert [reason.kind for reason in reasons] == cause.kinds
    assert [words in reason.text for words, reason in zip(cause.words, reasons, strict=True)] == [True] * len(reasons), reasons


def test_every_kind_of_reason_is_made_real() -> None:
    assert {kind for cause in ALONE for kind in cause.kinds} == set(ReasonKind)


def test_the_documentation_lists_every_kind() -> None:
    table = (Path(__file__).parents[2] / "docs" / "cli.md").read_text().partition("### `duetime why`")[2].partition("\n### ")[0]
    assert [kind for kind in ReasonKind if f"\n| `{kind}` | " not in table] == []


async def test_a_free_slot_of_the_worker_lets_the_next_task_start(scene: Scene) -> None:
    """What `why` said was the cause: without it the task runs."""
    task = await worker_full(scene)
    scene.end.set()
    assert (await scene.until(task, lambda found: found.state is State.SUCCEEDED)).attempt == 1


@pytest.mark.parametrize("way", ["store", "server"])
async def test_no_handler_is_shown_with_more_slots_than_its_workers_have_in_all(scene: Scene, way: str) -> None:
    await scene.hire("job", "other", concurrency=1)
    await scene.hire("other")
    if way == "server":
        scene.app = await scene.stack.enter_async_context(over_server(scene.app))
    slots = {handler.name: handler.slots for handler in await scene.app.handlers()}
    assert (slots["job"], slots["other"], slots["quick"]) == (1, 1 + SHARED, 0)
    first, second = await scene.app.workers()
    assert (first.slots, first.concurrency) == ({"job": 1, "other": 1}, 1)
    assert (second.slots, second.concurrency) == ({"other": SHARED}, SHARED)
