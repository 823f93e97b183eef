"""Declaring handlers and submitting tasks through App."""

import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import (
    App,
    Context,
    DuplicateKey,
    DuplicateKeys,
    Fatal,
    Handlers,
    InvalidHandler,
    InvalidPayload,
    InvalidValue,
    NewTask,
    PayloadTooLarge,
    RetryPolicy,
    State,
    UnknownHandler,
)
from tests.integration.reached import WAYS, own_meta, reached

FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(params=WAYS)
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    async with reached(request.param, "sqlite:///:memory:", user="anna@shop") as app:
        yield app


async def expire_order(ctx: Context, order_id: int, note: str = "") -> str:
    raise Fatal("never run here")


# ---- declaring ----


async def test_a_name_twice_is_refused(app: App) -> None:
    app.task(expire_order)
    with pytest.raises(InvalidHandler, match=r"expire_order is already declared by .*test_app_submit\.expire_order"):
        app.task(expire_order)
    with pytest.raises(InvalidHandler, match="expire_order is already declared"):
        app.task(name="other", aliases=["expire_order"])(expire_order)
    group = Handlers()
    group.task(expire_order)
    with pytest.raises(InvalidHandler, match="expire_order is already declared"):
        app.include(group)


async def test_a_group_has_a_prefix_and_belongs_to_one_app(app: App) -> None:
    shop = Handlers(prefix="shop.")
    handler = shop.task(expire_order)
    assert handler.name == "shop.expire_order"
    with pytest.raises(InvalidHandler, match=r"shop\.expire_order belongs to Handlers that no App includes yet"):
        await handler.now(order_id=1)
    app.include(shop)
    assert (await handler.now(order_id=1)).handler == "shop.expire_order"
    later = shop.task(name="later")(expire_order)
    assert (await later.now(order_id=1)).handler == "shop.later"
    with pytest.raises(InvalidHandler, match="already included"):
        App("sqlite:///:memory:").include(shop)
    with pytest.raises(InvalidHandler, match=r"shop\.later is already declared"):
        app.task(name="shop.later")(expire_order)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": "x"},
        {"retry": 3},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"priority": 10},
        {"priority": -1},
        {"isolation": "container"},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 201},
        {"aliases": "old"},
    ],
)
def test_wrong_options_of_a_handler_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        App("sqlite:///:memory:").task(**options)(expire_order)


def test_an_async_handler_cannot_ask_for_a_thread() -> None:
    with pytest.raises(InvalidHandler, match="runs on the event loop"):
        App("sqlite:///:memory:").task(isolation="thread")(expire_order)


def test_middleware_and_hooks_of_the_wrong_kind_are_refused() -> None:
    app = App("sqlite:///:memory:")

    def not_async(ctx: Context, call_next: object) -> object:
        return None

    async def is_async(task: NewTask[Any]) -> None: ...

    with pytest.raises(InvalidHandler, match="async def"):
        app.middleware(not_async)  # type: ignore[type-var]
    with pytest.raises(InvalidHandler, match="plain `def`"):
        app.on_submit(is_async)  # type: ignore[type-var]


async def test_a_handler_is_still_the_function_that_it_was(app: App) -> None:
    @app.task
    def halve(number: float) -> float:
        """Halve it."""
        return number / 2

    assert halve(3) == 1.5
    assert (inspect.unwrap(halve).__name__, halve.__doc__) == ("halve", "Halve it.")
    with pytest.raises(InvalidHandler, match="known by name only"):
        app.handler("elsewhere")(3)


async def test_methods_and_callable_objects_are_handlers(app: App) -> None:
    class Billing:
        async def charge(self, cents: int) -> int:
            return cents

        def __init__(self) -> None:
            self.name = self.spec = self._home = "its own attributes do not become the handler's"

        def __call__(self, cents: int) -> int:
            return cents

    assert (await app.task(Billing().charge).now(cents=5)).handler == "charge"
    assert (await app.task(Billing()).now(5)).payload == {"cents": 5}


# ---- submitting ----


async def test_a_submitted_task_tells_all_that_was_asked(app: App) -> None:
    handler = app.task(priority=7)(expire_order)
    task = await handler.options(
        key="order-7",
        collection="eu",
        timeout=timedelta(seconds=5),
        retry=RetryPolicy(tries=2),
        expires=3600,
        meta={"tenant": "a"},
    ).at(FAR, order_id=7)
    assert (task.handler, task.state, task.payload) == ("expire_order", State.PENDING, {"order_id": 7})
    assert (task.key, task.collection, task.priority, task.timeout) == ("order-7", "eu", 7, 5.0)
    assert (task.due_at, task.expires_at) == (FAR, FAR + timedelta(hours=1))
    assert (own_meta(task.meta), task.submitted_by) == ({"tenant": "a"}, "anna@shop")
    assert task.retry is not None
    assert task.retry["tries"] == 2
    assert await app.get(task) == task


async def test_when_a_task_is_due(app: App) -> None:
    handler = app.task(expire_order)
    before = datetime.now(UTC)
    now, soon, long_ago = (
        await handler.now(1),
        await handler.after(timedelta(hours=1), 1),
        await handler.at(datetime(1970, 1, 2, tzinfo=UTC), 1),
    )
    assert before <= now.due_at <= datetime.now(UTC)
    assert soon.due_at - soon.submitted_at == timedelta(hours=1)
    assert long_ago.due_at == datetime(1970, 1, 2, tzinfo=UTC)


async def test_options_add_up(app: App) -> None:
    handler = app.task(expire_order).options(key="a", priority=9).options(collection="eu", meta={"a": "1"}).options(meta={"b": "2"})
    task = await handler.now(order_id=1)
    assert (task.key, task.priority, task.collection, own_meta(task.meta)) == ("a", 9, "eu", {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 7},
        {"key": "x" * 201},
        {"if_exists": "ignore"},
        {"collection": " "},
        {"priority": 12},
        {"priority": True},
        {"priority": 5.0},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("inf")},
        {"retry": 3},
        {"retry": RetryPolicy(only=(ValueError,))},
        {"expires": -1},
        {"expires": datetime(2030, 1, 1)},
        {"meta": {"a": 1}},
        {"meta": {"a": "x" * 9_000}},
    ],
)
def test_wrong_options_of_a_call_are_refused(options: dict[str, Any]) -> None:
    handler = App("sqlite:///:memory:").task(expire_order)
    with pytest.raises(InvalidValue, match="|".join([next(iter(options)), "exception types"])):
        handler.options(**options)


@pytest.mark.parametrize(
    "call",
    [
        lambda handler: handler.at(datetime(2030, 1, 1), order_id=7),
        lambda handler: handler.at("2030-01-01", order_id=7),
        lambda handler: handler.after(-1, order_id=7),
        lambda handler: handler.after(float("nan"), order_id=7),
        lambda handler: handler.after("1", order_id=7),
        lambda handler: handler.after(1e12, order_id=7),
        lambda handler: handler.new(order_id=7).after(-1),
        lambda handler: handler.new(order_id=7).at(datetime(2030, 1, 1)),
        lambda handler: handler.options(connection=object()).new(order_id=7),
    ],
)
def test_wrong_times_are_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidValue):
        call(App("sqlite:///:memory:").task(expire_order))


async def test_the_last_second_of_the_calendar_is_a_due_time(app: App) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert (await app.task(expire_order).at(last, order_id=7)).due_at == last


async def test_wrong_arguments_are_refused_and_nothing_is_stored(app: App) -> None:
    handler: Any = app.task(expire_order)
    for wrong in ({}, {"order_id": "x"}, {"order_id": 1, "ctx": None}, {"order_id": 1, "nte": "x"}):
        with pytest.raises(InvalidPayload):
            await handler.now(**wrong)
    with pytest.raises(PayloadTooLarge):
        await handler.now(order_id=1, note="x" * 1_000_000)
    assert [task async for task in app.tasks()] == []


# ---- keys ----


async def test_a_key_that_is_taken_is_told_with_its_task(app: App) -> None:
    handler = app.task(expire_order).options(key="order-7")
    first = await handler.after(60, order_id=7)
    with pytest.raises(DuplicateKey, match=f"key 'order-7' of expire_order is held by task {first.id}") as refused:
        await handler.now(order_id=8)
    assert refused.value.task_id == first.id
    assert (await handler.options(if_exists="keep").now(order_id=9)) == first
    replaced = await handler.options(if_exists="replace").after(120, order_id=10)
    assert (replaced.id, replaced.payload) == (first.id, {"order_id": 10})


async def test_a_duplicate_among_many_does_not_stop_the_rest(app: App) -> None:
    handler = app.task(expire_order)
    live = await handler.options(key="b").after(60, order_id=1)
    with pytest.raises(DuplicateKeys, match="1 of 3 tasks were not stored") as refused:
        await app.submit_many([handler.options(key=key).new(order_id=2).after(60) for key in "abc"])
    assert refused.value.duplicates == {1: live.id}
    assert [None if task is None else task.key for task in refused.value.tasks] == ["a", None, "c"]
    assert {task.key async for task in app.tasks()} == {"a", "b", "c"}


# ---- many ----


async def test_many_tasks_are_answered_in_order(app: App) -> None:
    handler = app.task(expire_order)
    tasks = await app.submit_many(handler.new(order_id=number).after(number + 60) for number in range(500))
    assert [task.payload["order_id"] for task in tasks] == list(range(500))
    assert len({task.id for task in tasks}) == 500
    assert await app.submit_many([]) == []


async def test_the_same_new_task_twice_is_one_task(app: App) -> None:
    new_task = app.task(expire_order).new(order_id=1)
    assert (await app.submit(new_task)).id == (await app.submit(new_task)).id
    assert len([task async for task in app.tasks()]) == 1


async def test_of_many_tasks_none_is_stored_when_one_is_wrong(app: App) -> None:
    handler = app.task(expire_order)
    new_tasks: list[Any] = [handler.new(order_id=1), app.handler("unheard_of").new(order_id=1)]
    with pytest.raises(UnknownHandler):
        await app.submit_many(new_tasks)
    with pytest.raises(InvalidValue, match="only new tasks can be submitted"):
        await app.submit_many([*new_tasks[:1], "x"])  # type: ignore[list-item]
    assert [task async for task in app.tasks()] == []


# ---- by name ----


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/duetime.db"


@pytest.fixture(params=WAYS)
async def stranger(request: pytest.FixtureRequest, url: str) -> AsyncIterator[App]:
    """An app without handlers on a store where another process has declared one."""
    async with App(url) as owner:
        owner.task(priority=8)(expire_order)
        await owner.open()
    async with reached(request.param, url) as app:
        yield app


async def test_a_handler_can_be_used_by_name_without_its_code(stranger: App) -> None:
    task = await stranger.handler("expire_order").after(60, order_id=7)
    assert (task.handler, task.payload, task.priority) == ("expire_order", {"order_id": 7}, 8)
    assert (await stranger.handler("expire_order").options(priority=2).now(order_id=7)).priority == 2
    assert (await stranger.submit(stranger.handler("expire_order").new(order_id=7))).priority == 8


@pytest.mark.parametrize(
    ("payload", "field"),
    [({}, "order_id"), ({"order_id": "x"}, "order_id"), ({"order_id": 1, "nte": "x"}, "nte"), ({"order_id": 1, "note": 5}, "note")],
)
async def test_arguments_by_name_are_checked_against_the_declared_schema(stranger: App, payload: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPayload, match=f"expire_order: {field}") as refused:
        await stranger.handler("expire_order").now(**payload)
    assert refused.value.field == field


async def test_arguments_by_name_must_have_names(stranger: App) -> None:
    with pytest.raises(InvalidPayload, match="must be named too"):
        stranger.handler("expire_order").new(7)


async def test_an_unknown_handler_is_refused_with_the_name_that_was_meant(stranger: App) -> None:
    with pytest.raises(UnknownHandler, match=r"did you mean expire_order\?"):
        await stranger.handler("expire_ordr").now(order_id=7)
    with pytest.raises(UnknownHandler, match="allow_unknown=True" if stranger.has_store else "start a worker that declares it"):
        await stranger.handler("zzz").now(order_id=7)


async def test_a_store_takes_tasks_of_an_unknown_handler_where_that_is_allowed_and_a_server_does_not(stranger: App) -> None:
    unknown = stranger.handler("zzz").options(allow_unknown=True)
    if stranger.has_store:
        assert (await unknown.now(order_id=7)).handler == "zzz"
        return
    with pytest.raises(UnknownHandler, match="a server takes tasks of declared handlers only"):
        await unknown.now(order_id=7)
    with pytest.raises(UnknownHandler, match="a server takes tasks of declared handlers only"):
        await stranger.submit_many([stranger.handler("zzz").new(order_id=7)], allow_unknown=True)
    assert [task async for task in stranger.tasks()] == []


async def test_a_handler_declared_meanwhile_is_found(stranger: App, url: str) -> None:
    with pytest.raises(UnknownHandler):
        await stranger.handler("fresh").now()
    async with App(url) as other:

        @other.task
        def fresh(number: int = 1) -> None: ...

        await other.open()
    assert (await stranger.handler("fresh").now(number=2)).handler == "fresh"


async def test_a_handler_declared_anew_with_other_parameters_is_noticed(stranger: App, url: str) -> None:
    await stranger.handler("expire_order").now(order_id=7)
    async with App(url) as other:

        @other.task(name="expire_order")
        def changed(number: str) -> None: ...

        await other.open()
    assert (await stranger.handler("expire_order").now(number="x")).payload == {"number": "x"}


async def test_a_former_name_leads_to_the_handler(app: App) -> None:
    handler = app.task(name="expire", aliases=["expire_order"])(expire_order)
    assert app.handler("expire_order") is handler
    assert (await app.handler("expire_order").now(order_id=1)).handler == "expire"


# ---- hooks ----


async def test_hooks_see_each_task_and_add_to_its_meta(app: App) -> None:
    handler = app.task(expire_order)
    seen = []

    @app.on_submit
    def trace(task: NewTask[Any]) -> dict[str, str]:
        seen.append(task.handler)
        return {"trace": "t1"}

    @app.on_submit
    def watch(task: NewTask[Any]) -> None: ...

    task = await handler.options(meta={"tenant": "a"}).now(order_id=1)
    assert own_meta(task.meta) == {"tenant": "a", "trace": "t1"}
    await app.submit_many([handler.new(order_id=1), handler.new(order_id=2)])
    assert seen == ["expire_order"] * 3


async def test_a_hook_that_fails_stores_nothing(app: App) -> None:
    handler = app.task(expire_order)

    @app.on_submit
    def wrong(task: NewTask[Any]) -> dict[str, str]:
        return {"a": 1}  # type: ignore[dict-item]

    with pytest.raises(InvalidValue, match="meta must map text to text"):
        await handler.now(order_id=1)
    assert [task async for task in app.tasks()] == []
