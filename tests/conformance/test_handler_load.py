"""What of a handler is due: a bounded count, for people who ask why a task waits."""

from __future__ import annotations

from duetime.clock import SECOND, ManualClock
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import MOST_COUNTED, HandlerLoad
from tests.conformance.build import Worker, add, needs, new_task


async def test_a_handler_that_nobody_knows_has_nothing_to_do(store: Store) -> None:
    assert await store.handler_load("nobody") == HandlerLoad(due=0, more=False, oldest_due_at=None)


async def test_what_is_due_of_a_handler_is_counted(store: Store, worker: Worker, clock: ManualClock) -> None:
    began_at = clock.now()
    parent = await add(store, "work", delay=60 * SECOND)
    await store.add([new_task("work", collection=collection, priority=priority) for collection in ("eu", None) for priority in (1, 5, 9)])
    await store.add([new_task("other") for _ in range(5)])
    await store.add([new_task("work", edges=(needs(parent),)), new_task("work", delay=2 * SECOND)])
    taken = await worker.take(wants={"work": 2, "other": 3})
    assert await store.handler_load("work") == HandlerLoad(due=4, more=False, oldest_due_at=began_at)
    assert await store.handler_load("other") == HandlerLoad(due=2, more=False, oldest_due_at=began_at)
    clock.advance(2)
    for task in taken:
        await worker.end(task, State.SUCCEEDED)
    await worker.take(wants={"work": 4})
    assert await store.handler_load("work") == HandlerLoad(due=1, more=False, oldest_due_at=began_at)
    assert await store.handler_load("other") == HandlerLoad(due=2, more=False, oldest_due_at=began_at)


async def test_no_more_than_a_thousand_are_counted(store: Store, clock: ManualClock) -> None:
    half = MOST_COUNTED // 2
    await store.add([new_task("work", priority=1) for _ in range(half)] + [new_task("work", priority=9) for _ in range(half)])
    assert await store.handler_load("work") == HandlerLoad(due=MOST_COUNTED, more=False, oldest_due_at=clock.now())
    await add(store, "work")
    assert await store.handler_load("work") == HandlerLoad(due=MOST_COUNTED, more=True, oldest_due_at=clock.now())


async def test_what_comes_next_of_a_handler_is_told_in_the_order_in_which_it_is_due(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    delays = ((9, "eu"), (3, None), (6, "us"), (12, "eu"))
    later = [await add(store, "work", delay=delay * SECOND, collection=name) for delay, name in delays]
    await add(store, "work")
    retried = await worker.run(State.PENDING, "work", due_at=clock.now() + 7 * SECOND)
    await add(store, "other")
    await store.add([new_task("work", edges=(needs(later[0]),))])
    due = await add(store, "work", priority=0)
    wanted = [due.id, later[1].id, later[2].id, retried.id, later[0].id, later[3].id]
    assert [task.id for task in await store.upcoming("work", 100)] == wanted
    assert [task.id for task in await store.upcoming("work", 2)] == wanted[:2]
    await worker.take("work")
    assert [task.id for task in await store.upcoming("work", 2)] == wanted[1:3]
    assert await store.upcoming("nobody", 2) == []
