"""What App answers about stored tasks, and what it changes, without a worker."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import (
    App,
    CancelVerdict,
    Conflict,
    DuplicateKey,
    Handler,
    InvalidValue,
    State,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
)
from duetime.model.gate import GateAction
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import ErrorInfo
from duetime.model.why import ReasonKind
from duetime.store.values import NewWorker
from tests.integration.reached import WAYS, reached

UNKNOWN_ID = "01a1e112-c0d3-7403-88d7-6b1eec5cb647"


@pytest.fixture(params=[*WAYS, "server on postgres"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    way, _, on_postgres = request.param.partition(" on ")
    url = request.getfixturevalue("postgres_url") if on_postgres else "sqlite:///:memory:"
    async with reached(way, url, user="anna@shop") as app:
        yield app


@pytest.fixture
def order(app: App) -> Handler[..., Any, Any]:
    @app.task
    async def order(number: int = 0) -> int:
        return number

    return app.handler("order")


async def end(app: App, state: State, result: bytes | None = None) -> None:
    """End the one due task as a worker would."""
    await app.store.register(NewWorker(id="w", host="h", pid=1, slots={"order": 1}))
    [claimed] = (await app.store.claim("w", 1, {"order": 1}, 1)).tasks
    error = ErrorInfo("ValueError", "no") if state is State.FAILED else None
    outcome = {State.SUCCEEDED: Outcome.SUCCEEDED, State.CANCELLED: Outcome.CANCELLED}.get(state, Outcome.FATAL)
    now = app.store.now()
    settlement = Settlement(
        id=claimed.id,
        attempt=claimed.attempt,
        outcome=outcome,
        state=state,
        tries=0,
        crashes=0,
        started_at=now,
        finished_at=now,
        result=result,
        error=error,
    )
    await app.store.settle("w", [settlement])
    await app.store.unregister("w")


# ---- unknown and malformed ids ----


@pytest.mark.parametrize("task_id", [UNKNOWN_ID, "7", "", UNKNOWN_ID.upper()])
async def test_every_verb_says_when_there_is_no_such_task(app: App, task_id: str) -> None:
    for call in (app.get, app.result, app.cancel, app.retry, app.why, app.attempts):
        with pytest.raises(TaskNotFound, match=r"no task|not a task id"):
            await call(task_id)
    with pytest.raises(TaskNotFound):
        await app.reschedule(task_id, delay=5)


async def test_something_else_than_a_task_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="expected a task or its id, got int"):
        await app.get(7)  # type: ignore[call-overload]


# ---- finding ----


async def test_a_task_is_found_by_its_key(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.options(key="a").after(60)
    assert await app.find("order", "a") == task
    assert await app.find(order, "a") == task
    await app.cancel(task)
    assert (await app.find(order, "a")).state is State.CANCELLED
    with pytest.raises(TaskNotFound, match="order has no task with the key 'b'"):
        await app.find(order, "b")


async def test_tasks_are_filtered(app: App, order: Handler[..., Any, Any]) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    a = await order.options(collection="eu").at(moment)
    b = await order.options(key="k").at(moment + timedelta(days=1))

    async def found(**filters: Any) -> list[str]:
        return [task.id async for task in app.tasks(**filters)]

    assert await found() == [b.id, a.id]
    assert await found(collection="eu") == [a.id]
    assert await found(key="k", handler=order) == [b.id]
    assert await found(due_after=moment + timedelta(hours=1)) == [b.id]
    assert await found(due_before=moment + timedelta(hours=1), state="pending") == [a.id]
    assert await found(state=State.FAILED) == []
    assert await found(handler="other") == []


async def test_tasks_of_many_pages_are_all_given_once(app: App, order: Handler[..., Any, Any]) -> None:
    submitted = await app.submit_many([order.new(number=number).after(60) for number in range(250)])
    assert [task.id async for task in app.tasks(handler="order")] == [task.id for task in reversed(submitted)]


@pytest.mark.parametrize("filters", [{"state": "done"}, {"due_after": datetime(2030, 1, 1)}, {"due_after": "now"}, {"status": "failed"}])
async def test_wrong_filters_are_refused(app: App, filters: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        await anext(app.tasks(**filters))
    with pytest.raises(InvalidValue):
        await app.cancel_many(**filters)


# ---- waiting ----


async def test_a_result_is_given_in_the_type_of_the_handler(app: App) -> None:
    @app.task(name="order")
    async def order() -> datetime:
        return datetime.now(UTC)

    task = await order.now()
    await end(app, State.SUCCEEDED, b'"2030-01-01T00:00:00Z"')
    assert await app.result(task) == datetime(2030, 1, 1, tzinfo=UTC)
    assert (await app.get(task)).result == "2030-01-01T00:00:00Z"


async def test_no_result_raises_what_happened(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.now()
    with pytest.raises(TimeoutError, match=f"task {task.id} of order is still pending after 0.05 seconds"):
        await app.result(task, timeout=0.05)
    await end(app, State.FAILED)
    with pytest.raises(TaskFailed, match="ended failed: ValueError: no") as failed:
        await app.result(task)
    assert (failed.value.task_id, failed.value.state, failed.value.error_type) == (task.id, "failed", "ValueError")
    other = await order.after(60)
    await app.cancel(other)
    with pytest.raises(TaskCancelled, match="was cancelled"):
        await app.result(other.id)
    with pytest.raises(InvalidValue, match="timeout must not be negative"):
        await app.result(task, timeout=-1)


# ---- changing ----


async def test_cancelling_by_task_id_and_key(app: App, order: Handler[..., Any, Any]) -> None:
    first, second, third = [await order.options(key=key).after(60) for key in "abc"]
    assert await app.cancel(first) is CancelVerdict.CANCELLED
    assert await app.cancel(second.id) == "cancelled"
    assert await app.cancel(handler="order", key="c") == "cancelled"
    assert await app.cancel(third) == "finished"
    assert await app.cancel(handler=order, key="zzz") == "unknown"
    with pytest.raises(TaskNotFound):
        await app.cancel("01900000-0000-7000-8000-000000000000")


async def test_cancelling_nothing_or_two_things_is_refused(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.after(60)
    for wrong in ({}, {"handler": "order"}, {"key": "a"}):
        with pytest.raises(InvalidValue):
            await app.cancel(**wrong)
    with pytest.raises(InvalidValue, match="not both"):
        await app.cancel(task, key="a", handler="order")


async def test_retrying(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.options(key="a").now()
    with pytest.raises(Conflict, match="is pending and cannot be retried"):
        await app.retry(task)
    await end(app, State.FAILED)
    again = await app.retry(task)
    assert (again.id, again.state, again.attempt) == (task.id, State.PENDING, 1)
    await app.cancel(again)
    live = await order.options(key="a").after(60)
    with pytest.raises(DuplicateKey, match=f"task {live.id} holds the key 'a'") as refused:
        await app.retry(task)
    assert refused.value.task_id == live.id


async def test_rescheduling_and_editing(app: App, order: Handler[..., Any, Any]) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    task = await order.after(60)
    assert (await app.reschedule(task, due_at=moment)).due_at == moment
    sooner = await app.reschedule(task.id, delay=timedelta(hours=1))
    assert timedelta(minutes=59) < sooner.due_at - datetime.now(UTC) <= timedelta(hours=1)
    edited = await app.edit(task, priority=9, collection="eu")
    assert (edited.priority, edited.collection) == (9, "eu")
    for wrong in ({}, {"due_at": moment, "delay": 5}, {"delay": -1}, {"due_at": datetime(2030, 1, 1)}):
        with pytest.raises(InvalidValue):
            await app.reschedule(task, **wrong)
    with pytest.raises(InvalidValue):
        await app.edit(task, priority=10)
    await app.cancel(task)
    with pytest.raises(Conflict, match="is cancelled and cannot be changed"):
        await app.reschedule(task, delay=5)


async def test_deleting(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.options(key="a").after(60)
    await app.delete(task)
    for gone in (app.get(task), app.delete(task.id), app.find(order, "a"), app.result(task, timeout=1)):
        with pytest.raises(TaskNotFound):
            await gone
    ended = await order.now()
    await end(app, State.FAILED)
    await app.delete(ended.id)
    assert [each async for each in app.tasks()] == []


# ---- many at once ----


async def test_a_dry_run_counts_and_changes_nothing(app: App, order: Handler[..., Any, Any]) -> None:
    await app.submit_many([order.new().after(60) for _ in range(5)])
    counted = await app.cancel_many(handler="order", dry_run=True)
    assert (counted.matched, counted.answers) == (5, {})
    assert len([task async for task in app.tasks(state="pending")]) == 5


async def test_cancelling_and_retrying_what_matches(app: App, order: Handler[..., Any, Any]) -> None:
    await app.submit_many([order.options(collection=name).new().after(60) for name in ("eu", "us", "eu")])
    done = await app.cancel_many(collection="eu")
    assert (done.matched, done.answers) == (2, {"cancelled": 2})
    assert (await app.cancel_many(collection="eu")).matched == 0
    assert (await app.retry_many(handler="order")).matched == 0
    again = await app.retry_many(handler="order", state="cancelled")
    assert (again.matched, again.answers) == (2, {"changed": 2})


async def test_more_than_a_page_is_cancelled(app: App, order: Handler[..., Any, Any]) -> None:
    await app.submit_many([order.new().after(60) for _ in range(2_500)])
    assert (await app.cancel_many(state="pending")).answers == {"cancelled": 2_500}


async def test_a_verb_on_everything_or_on_an_impossible_state_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="at least one filter"):
        await app.cancel_many()
    with pytest.raises(InvalidValue, match="succeeded"):
        await app.cancel_many(state="succeeded")
    with pytest.raises(InvalidValue, match="pending"):
        await app.retry_many(state="pending")


# ---- gates ----


async def test_gates_are_set_listed_and_opened(app: App, order: Handler[..., Any, Any]) -> None:
    set_ = await app.gates.pause("order", collection="eu", lasting=600, note="stock down")
    assert (set_.in_force, str(set_), set_.waiting) == (True, "in force", [])
    await app.gates.drop(order)
    whole, part = await app.gates.list()
    assert (whole.action, whole.collection, whole.until_at) == (GateAction.DROP, None, None)
    assert (part.action, part.collection, part.note, part.set_by) == (GateAction.PAUSE, "eu", "stock down", "anna@shop")
    assert part.until_at is not None
    assert part.until_at - part.set_at == timedelta(minutes=10)
    assert await app.gates.open("order", collection="eu")
    assert not await app.gates.open("order", collection="eu")
    assert [gate.collection for gate in await app.gates.list()] == [None]


async def test_a_gate_that_a_worker_has_not_confirmed_says_so(app: App, order: Handler[..., Any, Any]) -> None:
    await app.store.register(NewWorker(id="slow", host="h", pid=1, slots={"order": 1}))
    answer = await app.gates.pause("order", timeout=0.05)
    assert (answer.in_force, answer.waiting, str(answer)) == (False, ["slow"], "in force on 0 of 1 workers")


async def test_wrong_gates_are_refused(app: App, order: Handler[..., Any, Any]) -> None:
    with pytest.raises(UnknownHandler, match="did you mean order"):
        await app.gates.pause("ordr")
    assert (await app.gates.pause("ordr", allow_unknown=True)).in_force
    for wrong in ({"lasting": 0}, {"lasting": -5}, {"collection": ""}, {"note": "x" * 1_001}):
        with pytest.raises(InvalidValue):
            await app.gates.pause("order", **wrong)


# ---- insight ----


async def test_why_gathers_its_facts(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.options(collection="eu").after(3600)
    await app.gates.pause("order", note="down")
    assert [reason.kind for reason in await app.why(task)] == [ReasonKind.LATER, ReasonKind.GATE, ReasonKind.NO_WORKER]
    await app.gates.open("order")
    await app.store.register(NewWorker(id="w", host="h", pid=1, slots={"order": 1}))
    due = await order.now()
    assert [reason.kind for reason in await app.why(due)] == [ReasonKind.READY]
    await app.store.claim("w", 1, {"order": 1}, 1)
    assert [reason.kind for reason in await app.why(due)] == [ReasonKind.RUNNING]
    waiting = await order.now()
    assert [reason.kind for reason in await app.why(waiting)] == [ReasonKind.SLOTS_FULL]


async def test_overviews(app: App, order: Handler[..., Any, Any]) -> None:
    await app.submit_many([order.new().after(60), order.new()])
    await app.cancel(await order.after(60))
    [handler] = await app.handlers()
    assert (handler.name, handler.states[State.PENDING], handler.states[State.CANCELLED], handler.workers) == ("order", 2, 1, 0)
    assert handler.schema["properties"] == {"number": {"type": "integer", "default": 0}}
    stats = await app.stats()
    assert (stats.states[State.PENDING], stats.states[State.CANCELLED], stats.workers) == (2, 1, 0)
    [counts] = stats.handlers
    assert (counts.due, counts.later, counts.oldest_due_at is not None) == (1, 1, True)
    await app.store.register(NewWorker(id="w", host="h", pid=1, slots={"order": 3}))
    [worker] = await app.workers()
    assert (worker.id, worker.slots) == ("w", {"order": 3})
    assert (await app.handlers())[0].slots == 3


async def test_attempts_are_told(app: App, order: Handler[..., Any, Any]) -> None:
    task = await order.now()
    assert await app.attempts(task) == []
    await end(app, State.FAILED)
    [attempt] = await app.attempts(task)
    assert (attempt.attempt, attempt.outcome, attempt.error) == (1, Outcome.FATAL, ErrorInfo("ValueError", "no"))
