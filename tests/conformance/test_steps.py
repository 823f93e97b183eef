"""Steps that are saved, waits, and signals that end them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.duties.waits import Waits
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.steps import NewSignal, NewStep, StepKind, Suspension
from duetime.model.task import NewTask, State
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.steps import Looked
from duetime.store.values import CancelVerdict, ChangeVerdict, ClaimedTask, Edit
from tests.conformance.build import Worker, add, get, new_task, state_of
from tests.conformance.connections import Connection


def step(task: ClaimedTask, name: str = "one", **facts: object) -> NewStep:
    return msgspec.convert({"task": task.id, "attempt": task.attempt, "name": name, "kind": "value", **facts}, NewStep)


def wait(task: ClaimedTask, signal: str = "go", name: str = "wait", wake_at: int | None = None) -> NewStep:
    return NewStep(task=task.id, attempt=task.attempt, name=name, kind=StepKind.SIGNAL, done=False, signal=signal, wake_at=wake_at)


def signal(name: str = "go", id: str = "a", data: bytes = b"1", keep: float = 3_600.0) -> NewSignal:
    return NewSignal(name=name, id=id, data=data, sent_by="somebody", keep=keep)


async def suspend(worker: Worker, task: ClaimedTask, name: str = "wait", *children: str) -> SettleVerdict:
    suspension = Suspension(name, children=tuple(children))
    return await worker.end(task, State.BLOCKED, outcome=Outcome.SUSPENDED, suspension=suspension)


async def suspended(store: Store, worker: Worker, name: str = "go", task: NewTask[object] | None = None) -> ClaimedTask:
    """Bring a task to wait for a signal."""
    await store.add([task or new_task()])
    claimed = await worker.take_one()
    await store.save_steps(worker.id, [wait(claimed, name)])
    assert await suspend(worker, claimed) is SettleVerdict.ACCEPTED
    assert await state_of(store, claimed) is State.BLOCKED
    return claimed


async def test_steps_are_saved_in_order_and_read_by_later_attempts(store: Store, worker: Worker) -> None:
    task = await add(store)
    first = await worker.take_one()
    assert await store.steps(task.id) == []
    saved = await store.save_steps(worker.id, [step(first, "b", data=b'{"n":1}'), step(first, "a", data=b'"\\u00e9"')])
    assert [(each.name, each.data, each.attempt, each.done) for each in saved if each] == [
        ("b", b'{"n":1}', 1, True),
        ("a", b'"\\u00e9"', 1, True),
    ]
    await worker.end(first, State.PENDING)
    second = await worker.take_one()
    assert [each.name for each in await store.steps(task.id)] == ["b", "a"]
    await store.save_steps(worker.id, [step(second, "c")])
    await worker.end(second, State.FAILED)
    await store.retry([task.id])
    assert [(each.name, each.attempt) for each in await store.steps(task.id)] == [("b", 1), ("a", 1), ("c", 2)]


async def test_only_the_attempt_that_runs_can_save_steps(store: Store, worker: Worker) -> None:
    task = await add(store)
    first = await worker.take_one()
    await store.save_steps(worker.id, [step(first, data=b"1")])
    await worker.end(first, State.PENDING)
    assert await store.save_steps(worker.id, [step(first, data=b"2"), step(first, "two")]) == [None, None]
    second = await worker.take_one()
    assert await store.save_steps(worker.id, [step(first, data=b"3")]) == [None]
    assert await store.save_steps("another", [step(second, data=b"4")]) == [None]
    assert [(each.name, each.data) for each in await store.steps(task.id)] == [("one", b"1")]
    assert await store.save_steps(worker.id, []) == []


async def test_a_repeat_of_a_save_changes_nothing_else(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    [saved] = await store.save_steps(worker.id, [step(task, data=b"1")])
    assert await store.save_steps(worker.id, [step(task, data=b"1")]) == [saved]
    assert len(await store.steps(task.id)) == 1


async def test_a_signal_wakes_who_waits_for_it(store: Store, worker: Worker) -> None:
    task = await suspended(store, worker)
    assert await worker.take() == []
    assert await store.send_signals([signal(data=b'{"amount":5}')]) == [True]
    again = await worker.take_one()
    assert (again.id, again.attempt, again.tries) == (task.id, 2, 0)
    [saved] = await store.steps(task.id)
    assert (saved.done, saved.late, saved.data) == (True, False, b'{"amount":5}')
    [kept] = await store.signals()
    assert (kept.name, kept.id, kept.task, kept.sent_by) == ("go", "a", task.id, "somebody")
    [_, ended] = await store.attempts(task.id)
    assert ended.outcome is None


async def test_a_signal_that_was_sent_before_is_found(store: Store, worker: Worker) -> None:
    await store.send_signals([signal(id="a", data=b"1"), signal(id="b", data=b"2")])
    await add(store)
    task = await worker.take_one()
    [saved] = await store.save_steps(worker.id, [wait(task)])
    assert saved is not None
    assert (saved.done, saved.data) == (True, b"1")
    [saved] = await store.save_steps(worker.id, [wait(task)])
    assert saved is not None
    assert saved.data == b"1", "a repeat takes no second one"


async def test_a_wait_that_is_stored_after_its_time_takes_a_signal_that_is_kept(store: Store, worker: Worker, clock: ManualClock) -> None:
    """The answer of a slow store, or a store that was away, may come later than the time-out of the wait."""
    await store.send_signals([signal()])
    await add(store)
    task = await worker.take_one()
    [saved] = await store.save_steps(worker.id, [wait(task, wake_at=clock.now() - SECOND)])
    assert saved is not None
    assert (saved.done, saved.late, saved.data) == (True, False, b"1")


async def test_a_signal_between_the_wait_and_its_suspension_is_not_missed(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    await store.save_steps(worker.id, [wait(task)])
    await store.send_signals([signal()])
    assert await state_of(store, task) is State.RUNNING
    await suspend(worker, task)
    assert (await worker.take_one()).id == task.id


async def test_each_signal_reaches_one_wait_and_who_waits_longest_first(store: Store, worker: Worker) -> None:
    first, second = await suspended(store, worker), await suspended(store, worker)
    await store.send_signals([signal(id="a", data=b"1")])
    assert [task.id for task in await worker.take()] == [first.id]
    await store.send_signals([signal(id="b", data=b"2"), signal("other", id="b")])
    assert [task.id for task in await worker.take()] == [second.id]
    assert [each.data for task in (first, second) for each in await store.steps(task.id)] == [b"1", b"2"]


async def test_the_same_signal_twice_is_one(store: Store, worker: Worker) -> None:
    first, second = await suspended(store, worker), await suspended(store, worker)
    assert await store.send_signals([signal(), signal()]) == [True, False]
    assert await store.send_signals([signal(data=b"2")]) == [False]
    assert [task.id for task in await worker.take()] == [first.id]
    assert await state_of(store, second) is State.BLOCKED


async def test_signals_are_listed_and_deleted(store: Store, clock: ManualClock) -> None:
    await store.send_signals([signal("b", "1"), signal("a", "2"), signal("b", "3", keep=5)])
    assert [(each.name, each.id) for each in await store.signals()] == [("b", "1"), ("a", "2"), ("b", "3")]
    [one] = await store.signals("b", limit=1)
    assert [each.id for each in await store.signals("b", after=one.number)] == ["3"]
    assert await store.delete_signals("b", "1") == 1
    assert await store.delete_signals("b", "1") == 0
    clock.advance(6)
    assert [each.id for each in await store.signals()] == ["2"]
    assert await store.delete_signals("a") == 1
    assert await store.signals() == []


async def test_a_signal_is_kept_for_a_time(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.send_signals([signal(keep=10)])
    clock.advance(11)
    await store.look_at_waits()
    task = await suspended(store, worker)
    assert await store.send_signals([signal()]) == [True], "its id may be used again"
    assert (await worker.take_one()).id == task.id


async def test_a_wait_ends_by_its_time_and_takes_no_signal_then(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    task = await worker.take_one()
    await store.save_steps(worker.id, [wait(task, wake_at=clock.now() + 60 * SECOND)])
    await suspend(worker, task)
    clock.advance(61)
    await store.send_signals([signal()])
    assert await state_of(store, task) is State.BLOCKED
    assert (await store.look_at_waits()).woken == 1
    again = await worker.take_one()
    [saved] = await store.save_steps(worker.id, [wait(again)])
    assert saved is not None
    assert (saved.done, saved.late, saved.data) == (True, True, None)
    assert [each.task for each in await store.signals()] == [None]


async def test_the_duty_alone_suffices(store: Store, worker: Worker, connection: Connection) -> None:
    """A signal that was sent in a transaction of the caller's is looked at by nobody else."""
    task = await suspended(store, worker)
    connection.begin()
    assert await store.send_signals_on(connection.own, [signal(), signal()]) == [True, False]
    connection.commit()
    assert await state_of(store, task) is State.BLOCKED
    duty = Waits(store, Alarms())
    assert await duty.look() == 1
    assert (await worker.take_one()).id == task.id
    assert await duty.look() == 0


async def test_a_signal_of_a_transaction_that_is_rolled_back_was_never_sent(store: Store, worker: Worker, connection: Connection) -> None:
    task = await suspended(store, worker)
    connection.begin()
    await store.send_signals_on(connection.own, [signal()])
    connection.rollback()
    assert await store.look_at_waits() == Looked()
    assert await state_of(store, task) is State.BLOCKED
    assert await store.signals() == []


async def test_children_wake_their_parent_when_all_have_ended(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    children = [new_task("child") for _ in range(3)]
    ids = [each.id for each in children]
    call = NewStep(task=task.id, attempt=1, name="wait", kind=StepKind.CALL, done=False, children=tuple(ids))
    [saved] = await store.save_steps(worker.id, [call])
    assert saved is not None
    assert list(saved.children) == ids
    await store.add(children)
    await worker.run(State.SUCCEEDED, "child")
    assert await suspend(worker, task, "wait", *ids) is SettleVerdict.ACCEPTED
    assert [edge.parent for edge in await store.unmet_edges(task.id)] == sorted(ids)[1:]
    await worker.run(State.FAILED, "child")
    assert await worker.take() == []
    assert await store.inspect(repair=False) == []
    await worker.run(State.SUCCEEDED, "child")
    again = await worker.take_one()
    assert (again.id, again.attempt) == (task.id, 2)


async def test_children_that_have_all_ended_before_it_suspends_do_not_hold_it(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    child = await add(store, "child")
    await worker.run(State.SUCCEEDED, "child")
    await suspend(worker, task, "wait", child.id)
    assert (await worker.take_one()).id == task.id


async def test_the_children_of_a_parent_that_has_ended_are_named_as_long_as_they_live(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    child = await add(store, "child")
    call = NewStep(task=task.id, attempt=1, name="wait", kind=StepKind.CALL, done=False, children=(child.id,))
    await store.save_steps(worker.id, [call])
    await suspend(worker, task, "wait", child.id)
    assert (await store.look_at_waits()).orphans == ()
    assert await store.cancel([task.id]) == [CancelVerdict.CANCELLED]
    assert (await store.look_at_waits()).orphans == (child.id,), "who learned it may die before it does anything"
    await Waits(store, Alarms()).look()
    assert await state_of(store, child) is State.CANCELLED
    assert (await store.look_at_waits()).orphans == ()


async def test_under_a_cancel_mark_a_suspension_ends_cancelled(store: Store, worker: Worker) -> None:
    await add(store)
    task = await worker.take_one()
    await store.save_steps(worker.id, [wait(task)])
    assert await store.cancel([task.id]) == [CancelVerdict.CANCELLING]
    assert await suspend(worker, task) is SettleVerdict.ACCEPTED
    assert await state_of(store, task) is State.CANCELLED
    await store.send_signals([signal()])
    assert await worker.take() == []
    assert [each.task for each in await store.signals()] == [None], "nobody has got it"


async def test_a_suspension_that_is_told_again_is_known(store: Store, worker: Worker) -> None:
    task = await suspended(store, worker)
    assert await suspend(worker, task) is SettleVerdict.ALREADY
    await store.send_signals([signal()])
    again = await worker.take_one()
    assert await suspend(worker, task) is SettleVerdict.ALREADY
    assert (await get(store, task)).attempt == again.attempt


async def test_a_pause_is_a_due_time(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    task = await worker.take_one()
    wake_at = clock.now() + 60 * SECOND
    pause = NewStep(task=task.id, attempt=1, name="nap", kind=StepKind.SLEEP, done=False, wake_at=wake_at)
    await store.save_steps(worker.id, [pause])
    facts = {"outcome": Outcome.SUSPENDED, "suspension": Suspension("nap", wake_at), "due_at": wake_at}
    await worker.end(task, State.PENDING, **facts)
    assert await worker.take() == []
    clock.advance(60)
    again = await worker.take_one()
    later = msgspec.structs.replace(pause, attempt=2, wake_at=clock.now() + 99 * SECOND)
    [saved] = await store.save_steps(worker.id, [later])
    assert saved is not None
    assert saved.wake_at == wake_at, "a pause that has begun keeps its end"
    assert again.tries == 0


async def test_a_task_with_steps_is_not_replaced(store: Store, worker: Worker) -> None:
    """Part of its work is done: another payload would go on in the middle."""
    await store.add([new_task(key="k")])
    task = await worker.take_one()
    await store.save_steps(worker.id, [step(task)])
    await worker.end(task, State.PENDING)
    [added] = await store.add([new_task(key="k", if_exists="replace", payload=b'{"n": 2}')])
    assert (added.verdict, added.record.id) == ("duplicate", task.id)


async def test_steps_go_with_their_task(store: Store, worker: Worker) -> None:
    task = await suspended(store, worker)
    await store.delete([task.id])
    await store.tidy()
    assert await store.steps(task.id) == []
    assert await store.inspect(repair=False) == []


async def test_a_priority_can_be_changed_while_it_waits(store: Store, worker: Worker) -> None:
    task = await suspended(store, worker)
    assert await store.edit([Edit(id=task.id, priority=9)]) == [ChangeVerdict.CHANGED]
    await store.send_signals([signal()])
    assert (await worker.take_one()).priority == 9


@pytest.mark.slow
async def test_senders_and_waits_at_the_same_instant_always_meet(store: Store, worker: Worker) -> None:
    """Nobody waits although its signal is there, with the looks alone: the duty is off."""
    for number in range(30):
        await add(store)
        task = await worker.take_one()
        name = f"go-{number}"

        async def wait_for_it(task: ClaimedTask = task, name: str = name) -> None:
            [saved] = await store.save_steps(worker.id, [wait(task, name)])
            assert saved is not None
            if not saved.done:
                await suspend(worker, task)
            else:
                await worker.end(task, State.PENDING)

        await asyncio.gather(wait_for_it(), store.send_signals([signal(name)]))
        again = await worker.take_one()
        assert again.id == task.id
        await worker.end(again, State.SUCCEEDED)
