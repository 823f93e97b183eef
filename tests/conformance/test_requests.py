"""Requests with a name of the caller's own: the row that no task of theirs is stored without, and that holds its id."""

from __future__ import annotations

import asyncio

from duetime.clock import ManualClock
from duetime.model.task import NewTask, State, TaskRecord
from duetime.store import Store
from duetime.store.requests import NamedRequest, Requested
from duetime.store.values import Added, AddVerdict
from tests.conformance.build import Worker, new_task
from tests.conformance.conftest import Another


def asked(key: str = "k", caller: str = "ann", digest: str = "d", task: NewTask[object] | None = None) -> Requested:
    task = new_task() if task is None else task
    return task, NamedRequest(caller, key, digest, task.id)


async def verdicts(store: Store, *requested: Requested) -> list[tuple[AddVerdict, str]]:
    answers = await store.add_requested(requested)
    return [(answer.verdict, answer.record.id) for answer in answers if isinstance(answer, Added)]


async def all_tasks(store: Store, *requested: Requested) -> list[TaskRecord | None]:
    return await store.get([task.id for task, _ in requested])


async def test_a_repeat_is_answered_with_the_task_of_the_first_request(store: Store) -> None:
    first, second = asked(), asked()
    id = first[0].id
    assert await verdicts(store, first) == [(AddVerdict.ADDED, id)]
    assert await verdicts(store, first) == [(AddVerdict.REPEATED, id)]
    assert await verdicts(store, second) == [(AddVerdict.REPEATED, id)]
    assert await all_tasks(store, second) == [None]


async def test_a_request_with_another_digest_adds_nothing_and_is_answered_with_the_stored_one(store: Store) -> None:
    first, other = asked(), asked(digest="another body")
    await store.add_requested([first])
    assert await store.add_requested([other]) == [first[1]]
    assert await all_tasks(store, other) == [None]


async def test_keys_are_each_callers_own(store: Store) -> None:
    requested = [asked(), asked("K"), asked(caller="bob"), asked("")]
    assert await verdicts(store, *requested) == [(AddVerdict.ADDED, task.id) for task, _ in requested]


async def test_a_batch_is_answered_in_its_order_and_the_first_of_two_wins(store: Store) -> None:
    known, new, twice, other = asked("known"), asked("new"), asked("new"), asked("new", digest="another body")
    unnamed = new_task()
    await store.add_requested([known])
    answers = await store.add_requested([new, (unnamed, None), asked("known"), other, twice])
    assert answers[3] == new[1]
    assert [(answer.verdict, answer.record.id) for answer in answers if isinstance(answer, Added)] == [
        (AddVerdict.ADDED, new[0].id),
        (AddVerdict.ADDED, unnamed.id),
        (AddVerdict.REPEATED, known[0].id),
        (AddVerdict.REPEATED, new[0].id),
    ]
    assert await store.add_requested([]) == []


async def test_of_many_that_come_at_once_one_wins(store: Store, another: Another) -> None:
    stores = [store, await another(), await another()]
    answers = await asyncio.gather(*(verdicts(stores[number % 3], asked()) for number in range(12)))
    assert len({id for [(_, id)] in answers}) == 1
    assert [verdict for [(verdict, _)] in answers].count(AddVerdict.ADDED) == 1


async def test_a_repeat_is_known_wherever_its_task_is(store: Store, worker: Worker) -> None:
    first = asked()
    await store.add_requested([first])
    await worker.take_one()
    assert await verdicts(store, asked()) == [(AddVerdict.REPEATED, first[0].id)]
    cancelled = asked("cancelled")
    await store.add_requested([cancelled])
    await store.cancel([cancelled[0].id])
    assert await verdicts(store, asked("cancelled")) == [(AddVerdict.REPEATED, cancelled[0].id)]


async def test_a_request_that_was_answered_with_another_task_stands_for_that_one(store: Store) -> None:
    for if_exists, verdict in (("keep", AddVerdict.KEPT), ("replace", AddVerdict.REPLACED)):
        holder = new_task(key=if_exists)
        await store.add([holder])

        def again(policy: str = if_exists) -> Requested:
            return asked(policy, task=new_task(key=policy, if_exists=policy))

        assert await verdicts(store, again()) == [(verdict, holder.id)]
        assert await verdicts(store, again()) == [(AddVerdict.REPEATED, holder.id)]
        await store.cancel([holder.id])
        late = again()
        assert await verdicts(store, late) == [(AddVerdict.REPEATED, holder.id)], "a repeat began a second task"
        assert await all_tasks(store, late) == [None]


async def test_a_request_whose_tasks_key_is_held_is_forgotten(store: Store) -> None:
    holder = new_task(key="order-7")
    await store.add([holder])
    refused = asked(task=new_task(key="order-7"))
    assert await verdicts(store, refused) == [(AddVerdict.DUPLICATE, holder.id)]
    corrected = asked(digest="another body", task=new_task(key="order-8"))
    assert await verdicts(store, corrected) == [(AddVerdict.ADDED, corrected[0].id)]


async def test_old_requests_are_pruned_a_batch_at_a_time(store: Store, clock: ManualClock) -> None:
    old = [asked(f"old {number}") for number in range(3)]
    for each in old:
        await store.add_requested([each])
        clock.advance(1)
    young = asked("young")
    await store.add_requested([young])
    assert await store.prune_requests(clock.now(), 2) == 2
    assert await store.prune_requests(clock.now(), 2) == 1
    assert await store.prune_requests(clock.now(), 2) == 0
    again = asked("old 0")
    assert await verdicts(store, again, asked("young")) == [(AddVerdict.ADDED, again[0].id), (AddVerdict.REPEATED, young[0].id)]
    [record] = await all_tasks(store, again)
    assert record is not None
    assert record.state is State.PENDING


async def test_repeats_survive_pruning_at_the_same_time(store: Store, another: Another, clock: ManualClock) -> None:
    other = await another()

    async def prune() -> None:
        for _ in range(30):
            await other.prune_requests(clock.now() + 1, 10)

    async def repeat() -> None:
        for _ in range(30):
            assert len(await verdicts(store, asked())) == 1

    await asyncio.gather(prune(), repeat(), repeat())


async def test_repeats_in_one_call_are_answered_with_the_task_that_the_first_one_met(store: Store) -> None:
    for if_exists, verdict in (("keep", AddVerdict.KEPT), ("replace", AddVerdict.REPLACED)):
        holder = new_task(key=if_exists)
        await store.add([holder])
        batch = [asked(if_exists, task=new_task(key=if_exists, if_exists=if_exists)) for _ in range(3)]
        repeated = (AddVerdict.REPEATED, holder.id)
        assert await verdicts(store, *batch) == [(verdict, holder.id), repeated, repeated]
    refused = [asked("refused", task=new_task(key="keep")) for _ in range(2)]
    assert [verdict for verdict, _ in await verdicts(store, *refused)] == [AddVerdict.DUPLICATE] * 2


async def test_a_repeat_knows_whether_the_first_one_met_a_task(store: Store) -> None:
    holder = new_task(key="order-7")
    await store.add([holder])

    async def met(name: str, key: str, number: int) -> list[bool]:
        batch = [asked(name, task=new_task(key=key, if_exists="keep")) for _ in range(number)]
        return [answer.met for answer in await store.add_requested(batch) if isinstance(answer, Added)]

    assert await met("kept", "order-7", 2) == [False, True]
    assert await met("kept", "order-7", 2) == [True, True]
    assert await met("new", "order-8", 2) == [False, False]
    assert await met("new", "order-8", 1) == [False]


async def test_the_same_task_twice_in_one_call_meets_the_holder_of_its_key_twice(store: Store) -> None:
    await store.add([new_task(key="order-7")])
    for if_exists, verdict in (("keep", AddVerdict.KEPT), ("replace", AddVerdict.REPLACED), ("error", AddVerdict.DUPLICATE)):
        same = new_task(key="order-7", if_exists=if_exists)
        assert [added.verdict for added in await store.add([same, same])] == [verdict] * 2
