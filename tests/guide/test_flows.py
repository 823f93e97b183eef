"""Flows as users write them: chains, groups, branches, stops and retries, in the testing kit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import duetime.testing
from duetime import (
    App,
    CancelVerdict,
    Conflict,
    Context,
    DuplicateKey,
    Fatal,
    FlowFailed,
    FlowHandler,
    FlowNotFound,
    Handlers,
    InvalidHandler,
    InvalidPayload,
    InvalidValue,
    Node,
    Plan,
    RetryLater,
    TaskFailed,
    TaskNotFound,
    any_of,
    at_least,
)
from duetime.ids import new_id

log: list[str] = []


def shop() -> App:
    app = App("sqlite:///:memory:")
    log.clear()

    @app.task
    async def step(ctx: Context, name: str) -> str:
        log.append(name)
        return name

    @app.task
    async def double(number: int) -> int:
        log.append(f"double {number}")
        return 2 * number

    return app


async def test_a_chain_of_three_tasks() -> None:
    app = shop()
    step = app.handler("step")
    async with duetime.testing.using(app):
        flow = await app.chain(*(step.new(name=name) for name in "abc"))
        assert [node.name for node in flow.nodes] == ["step", "step-2", "step-3"]
        assert await app.result(flow) == "c"
    assert log == ["a", "b", "c"]


async def test_the_results_of_many_tasks_and_flows() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")
    async with duetime.testing.using(app) as t:
        t.fail_next(step, Fatal("no"))
        lost = await step.now(name="lost")
        tasks = [await double.now(number=number) for number in range(3)]
        flow = await app.chain(double.new(number=5))
        assert await app.results([*tasks, flow, tasks[0].id]) == [0, 2, 4, 10, 0]
        assert await app.results([]) == []
        with pytest.raises(TaskFailed, match="no"):
            await app.results([tasks[0], lost])
        unknown, later = new_id(), await step.after(60, name="later")
        found = await app.results([tasks[1], lost, unknown, later], timeout=0, return_exceptions=True)
        assert [each if isinstance(each, int) else type(each) for each in found] == [2, TaskFailed, TaskNotFound, TimeoutError]


async def test_a_group_and_what_follows_when_all_have_ended() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")
    async with duetime.testing.using(app) as t:
        tasks = [double.new(number=number) for number in range(3)]
        good, bad, any_way = (step.new(name=how) for how in ("succeeded", "failed", "ended"))
        flow = await app.group(tasks, name="newsletter", succeeded=good, failed=bad, ended=any_way)
        await t.drain()
        found = await app.flows.get(flow)
        assert found.state == "succeeded"
        assert found.node("tasks").ended == 3
        assert found.node("failed").state == "skipped"
        assert "cannot be any more: tasks failed" in found.node("failed").why
    assert sorted(log[:3]) == ["double 0", "double 1", "double 2"]
    assert sorted(log[3:]) == ["ended", "succeeded"]


async def test_a_group_that_fails_is_handled_and_then_retried() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")
    async with duetime.testing.using(app, raise_errors=False) as t:
        t.fail_next(double, Fatal("bad number"))
        flow = await app.group([double.new(number=number) for number in range(3)], succeeded=step.new(name="good"))
        await t.drain()
        found = await app.flows.get(flow)
        assert found.state == "failed"
        assert found.node("succeeded").state == "skipped"
        with pytest.raises(FlowFailed, match="1 without success") as failed:
            await app.result(flow)
        assert failed.value.nodes == ["tasks"]
        again = await app.retry(flow)
        assert again.state == "running"
        assert await app.result(flow) == "good"
        with pytest.raises(Conflict, match="succeeded and cannot be retried"):
            await app.retry(flow)
        assert await app.cancel(flow) is CancelVerdict.FINISHED


def ordering(app: App | Handlers, **options: object) -> object:
    """Declare a flow that branches."""

    def order(plan: Plan, amount: int, note: str = "") -> Node[str]:
        step = app._handlers["step"]
        decide = plan.add(app._handlers["decide"].new(amount=amount), name="decide")
        plan.add(step.new(name="refund"), name="refund", needs=[decide.returned("refund")])
        ship = plan.add(step.new(name="ship"), name="ship", needs=[decide.returned("ship")])
        plan.add(step.new(name="tell").after(60), name="tell", needs=[ship])
        return plan.add(step.new(name="close"), name="close", needs=[ship.ended])

    return app.flow(**options)(order)  # type: ignore[call-overload]


def branching(registry: App | Handlers) -> None:
    @registry.task
    async def step(name: str) -> str:
        log.append(name)
        return name

    @registry.task
    async def decide(amount: int) -> str:
        return "ship" if amount > 0 else "refund"


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_declared_flow_branches_by_what_a_node_returned(grouped: bool) -> None:
    log.clear()
    app = App("sqlite:///:memory:")
    registry: App | Handlers = Handlers() if grouped else app
    branching(registry)
    order = ordering(registry)
    if isinstance(registry, Handlers):
        app.include(registry)
    async with duetime.testing.using(app) as t:
        flow = await order.now(amount=5)  # type: ignore[attr-defined]
        await t.drain()
        found = await app.flows.get(flow)
        assert {node.name: node.state for node in found.nodes} == {
            "decide": "succeeded",
            "refund": "skipped",
            "ship": "succeeded",
            "tell": "running",
            "close": "succeeded",
        }
        await t.advance(seconds=60)  # the delay counts from when the node is free
        assert await app.result(flow) == "close"
        assert log == ["ship", "close", "tell"]


async def test_by_its_name_a_flow_is_built_in_a_worker_under_the_id_of_the_task() -> None:
    log.clear()
    app = App("sqlite:///:memory:")
    branching(app)
    ordering(app, deadline=timedelta(hours=1))
    async with duetime.testing.using(app) as t:
        task = await app.handler("order").now(amount=0)
        with pytest.raises(FlowNotFound):
            await app.flows.get(task.id)
        await t.drain()
        found = await app.flows.get(task.id)
        assert found.state == "succeeded"
        assert found.deadline_at is not None
        assert log == ["refund", "close"]
        assert (await app.result(task)) == {"flow": task.id}


async def test_a_schedule_of_a_flow() -> None:
    log.clear()
    app = App("sqlite:///:memory:")
    branching(app)
    ordering(app)
    async with duetime.testing.using(app) as t:
        await app.schedules.put(duetime.Schedule("nightly", "order", duetime.Every(3600), payload={"amount": 0}))
        await t.advance(hours=2)
        assert len((await app.flows.list(name="order")).items) >= 1
    assert "refund" in log


async def test_a_flow_that_starts_later() -> None:
    log.clear()
    app = App("sqlite:///:memory:")
    branching(app)
    order = ordering(app)
    async with duetime.testing.using(app) as t:
        flow = await order.after(60, amount=0)  # type: ignore[attr-defined]
        assert await t.drain() == []
        await t.advance(seconds=60)
        assert await app.result(flow) == "close"


async def test_a_cancel_and_a_deadline_stop_a_flow_as_one() -> None:
    app = shop()
    step = app.handler("step")

    @app.flow(deadline=60)
    def slow(plan: Plan) -> None:
        first = plan.add(step.new(name="first").after(3600))
        plan.add(step.new(name="second"), needs=[first])

    async with duetime.testing.using(app) as t:
        cancelled, late = await slow.now(), await slow.now()
        assert await app.cancel(cancelled) is CancelVerdict.CANCELLED
        await t.advance(seconds=61)
        assert [(await app.flows.get(each)).state for each in (cancelled, late)] == ["cancelled", "failed"]
        assert (await app.flows.get(late)).stopping == "deadline"
        await t.advance(hours=2)
        assert log == []
        with pytest.raises(FlowFailed, match="is cancelled"):
            await app.result(cancelled)


async def test_any_of_and_at_least_and_a_stop_at_the_first_failure() -> None:
    app = shop()
    step = app.handler("step")

    @app.flow(on_failure="stop")
    def votes(plan: Plan) -> None:
        a, b, c = (plan.add(step.new(name=name), name=name) for name in "abc")
        plan.add(step.new(name="two"), name="two", needs=[at_least(2, a, b, c)])
        plan.add(step.new(name="alarm"), name="alarm", needs=[any_of(a.failed, b.failed, c.failed)])

    assert "n0 -->|succeeded| n3" in votes.plan().mermaid()
    async with duetime.testing.using(app, raise_errors=False) as t:
        t.fail_next(step, Fatal("no"))
        flow = await votes.now()
        await t.drain()
        found = await app.flows.get(flow)
        assert found.state == "failed"
        assert found.stopping == "failure"
        assert found.node("two").state == "skipped"
        assert found.node("alarm").state == "succeeded"
    assert log == ["alarm"]


async def test_members_are_tasks_like_all_others() -> None:
    app = shop()
    double = app.handler("double")
    async with duetime.testing.using(app) as t:
        flow = await app.group([double.new(number=number) for number in range(3)])
        members = await app.flows.members(flow, "tasks", limit=2)
        assert [each.position for each in members] == [0, 1]
        task = await app.get(members[0].task)
        assert task.meta == {"flow": flow.id, "node": "tasks"}
        await t.drain()
        with pytest.raises(InvalidValue, match="has no node 'other'"):
            await app.flows.members(flow, "other")


async def test_what_a_node_returns_is_an_argument_of_another() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")
    sums: list[tuple[list[int], dict[str, str], int]] = []

    @app.task
    async def add_up(numbers: list[int], more: dict[str, str], bonus: int = 0) -> int:
        sums.append((numbers, more, bonus))
        return sum(numbers) + bonus

    @app.task
    async def details(name: str) -> dict[str, list[int]]:
        return {name: [7, 8]}

    @app.flow
    def adding(plan: Plan) -> Node[int]:
        known = plan.add(details.new(name="order"), name="known")
        parts = plan.group([double.new(number=number) for number in (1, 2, 3)], name="parts", tolerate=1)
        said = plan.add(step.new(name="hello"), name="said")
        return plan.add(
            add_up.new(numbers=parts.values, more={"said": said.value}, bonus=known.value["order"][1]), name="sum", needs=[parts.ended]
        )

    async with duetime.testing.using(app, raise_errors=False) as t:
        t.fail_next(double, Fatal("no"))
        flow = await adding.now()
        assert (await app.flows.get(flow)).node("sum").needs == ["parts ended", "said succeeded", "known succeeded"]
        result = await app.result(flow)
        [(numbers, more, bonus)] = sums
        assert result == sum(numbers) + 8
        assert len(numbers) == 2
        assert (more, bonus) == ({"said": "hello"}, 8)


async def test_a_value_that_is_not_there_fails_the_node_and_can_be_handled() -> None:
    app = shop()
    step = app.handler("step")

    @app.flow
    def broken(plan: Plan) -> None:
        first = plan.add(step.new(name="text"), name="first")
        second = plan.add(step.new(name=first.value["no"]), name="second")
        plan.add(step.new(name="sorry"), name="sorry", needs=[second.failed])

    async with duetime.testing.using(app) as t:
        flow = await broken.now()
        await t.drain()
        found = await app.flows.get(flow)
        assert found.state == "succeeded"
        assert found.node("second").why == "InvalidPayload: what first returned has no 'no'"
    assert log == ["text", "sorry"]


async def test_a_value_is_not_known_while_a_flow_is_planned() -> None:
    app = shop()
    step = app.handler("step")
    plan = Plan("p")
    value = plan.add(step.new(name="a"), name="a").value
    uses: list[Callable[[Any], object]] = [bool, len, list, hash, str, lambda value: value == 1, lambda value: f"{value}"]
    for use in uses:
        with pytest.raises(TypeError, match="known only when the flow runs"):
            use(value)
    with pytest.raises(InvalidPayload, match="wrong is no parameter"):
        step.new(wrong=value)
    with pytest.raises(InvalidPayload, match="must be named"):
        step.new(value)
    with pytest.raises(InvalidPayload):
        await step.now(name=value)
    with pytest.raises(InvalidValue, match="is a group"):
        plan.group([step.new(name="a")]).value  # noqa: B018


def shrinking(app: App) -> FlowHandler[..., int]:
    """Declare a flow that maps over what a node returns."""

    @app.task
    async def paths(number: int) -> list[dict[str, int]]:
        return [{"width": width} for width in range(number)]

    @app.task
    async def resize(width: int, scale: int) -> int:
        log.append(f"resize {width}")
        return width * scale

    @app.task
    async def scale() -> int:
        return 10

    @app.task
    async def total(sizes: list[int]) -> int:
        return sum(sizes)

    @app.flow
    def thumbnails(plan: Plan, number: int) -> Node[int]:
        found = plan.add(paths.new(number=number), name="paths")
        by = plan.add(scale.new(), name="scale")
        sizes = plan.map(found.value, lambda each: resize.new(width=each["width"], scale=by.value), name="sizes", tolerate=1)
        return plan.add(total.new(sizes=sizes.values), name="total")

    return thumbnails


async def test_a_flow_that_maps_over_itself_follows_all_that_it_finds() -> None:
    app = App("sqlite:///:memory:")
    visited: list[int] = []

    @app.task
    async def links(page: int) -> list[int]:
        visited.append(page)
        return [child for child in (2 * page, 2 * page + 1) if child < 32]

    @app.task
    async def add_up(below: list[int]) -> int:
        return 1 + sum(below)

    @app.flow
    def crawl(plan: Plan, page: int) -> Node[int]:
        found = plan.add(links.new(page=page), name="links")
        below = plan.map(found.value, lambda link: crawl.new(page=link), name="below")
        return plan.add(add_up.new(below=below.values), name="count")

    async with duetime.testing.using(app) as t:
        flow = await crawl.now(page=1)
        await t.drain()
        assert await app.result(flow) == 31
        assert sorted(visited) == list(range(1, 32)), "each page once"
        assert {each.state for each in (await app.flows.list(limit=100)).items} == {"succeeded"}


@pytest.mark.covers("AIR.1", "AIR.5")
async def test_a_map_makes_a_task_for_each_item_that_a_node_returns() -> None:
    app = shop()
    thumbnails = shrinking(app)
    assert '["sizes × …"]' in thumbnails.plan(number=3).mermaid()
    async with duetime.testing.using(app, raise_errors=False) as t:
        flow = await thumbnails.now(number=4)
        assert flow.node("sizes").members == 0
        assert await app.result(flow) == 60
        found = await app.flows.get(flow)
        assert (found.node("sizes").members, found.node("sizes").why) == (4, "4 of 4 tasks ended")
        [first, *_] = await app.flows.members(flow, "sizes")
        assert (await app.get(first.task)).meta["takes"] == "paths, scale"
        assert await app.result(await thumbnails.now(number=0)) == 0
        t.fail_next("resize", Fatal("broken"))
        tolerated = await thumbnails.now(number=3)
        assert await app.result(tolerated) in (10, 20, 30)
        assert "1 without success (1 are tolerated)" in (await app.flows.get(tolerated)).node("sizes").why


async def test_what_cannot_be_mapped_is_refused() -> None:
    app = shop()
    step = app.handler("step")
    plan = Plan("p")
    first = plan.add(step.new(name="a"), name="first")
    with pytest.raises(InvalidValue, match="takes what another node returns"):
        plan.map(["a", "b"], lambda name: step.new(name=name))
    made: list[Any] = []
    mapped: Any = plan.map(first.value, lambda name: made.append(step.new(name=name)) or made[0], name="mapped")  # type: ignore[func-returns-value]
    with pytest.raises(InvalidValue, match="takes the item of a map, but is in none"):
        plan.add(made[0])
    with pytest.raises(TypeError, match="known only when the flow runs"):
        plan.map(first.value, lambda name: step.new(name=f"{name}.png"))
    plan.add(step.new(name="sorry"), name="sorry", needs=[mapped.failed])
    async with duetime.testing.using(app) as t:
        flow = await app.submit_flow(plan.new_flow())
        await t.drain()
        found = await app.flows.get(flow)
        assert found.node("mapped").why == "InvalidPayload: a map takes a list, and the value of first is of type str"
        assert (found.state, log) == ("succeeded", ["a", "sorry"])


@pytest.mark.covers("AIR.2")
async def test_a_schedule_submits_a_flow_that_knows_its_interval() -> None:
    app = shop()
    step = app.handler("step")

    @app.schedule(cron="0 3 * * *", tz="Europe/Berlin", meta={"team": "reports"})
    @app.flow
    def nightly(plan: Plan) -> Node[Any]:
        assert plan.occurrence is not None
        start, end = plan.occurrence.interval
        assert plan.meta == {"team": "reports"}
        loaded = plan.add(step.new(name=f"{start:%d. %H:%M}"))
        return plan.add(step.new(name=f"{end:%d. %H:%M}"), needs=[loaded])

    assert isinstance(nightly, FlowHandler)
    async with duetime.testing.using(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as t:
        await t.advance(days=1, hours=12)
        [flow, _] = (await app.flows.list(name="nightly")).items
        assert await app.result(flow) == "02. 03:00"
        assert log == ["31. 03:00", "01. 03:00", "01. 03:00", "02. 03:00"]
        [member] = await app.flows.members(flow, "step")
        meta = (await app.get(member.task)).meta
        assert (meta["team"], meta["flow"], meta["node"], len(meta)) == ("reports", flow.id, "step", 3)


@pytest.mark.each_store
@pytest.mark.covers("AIR.10")
async def test_a_node_runs_again_with_what_follows_from_it(store_url: str) -> None:
    app = shop()
    thumbnails = shrinking(app)
    async with duetime.testing.using(app, url=store_url) as t:
        flow = await thumbnails.now(number=2)
        with pytest.raises(Conflict, match="did not run"):
            await app.flows.rerun(flow, "sizes")
        await t.drain()
        log.clear()
        again = await app.flows.rerun(flow, "sizes")
        assert (again.state, [node.round for node in again.nodes]) == ("running", [1, 1, 2, 2])
        with pytest.raises(Conflict, match="are live"):
            await app.flows.rerun(flow, "scale")
        assert await app.result(flow) == 10
        assert log == ["resize 0", "resize 1"]
        with pytest.raises(InvalidValue, match="has no node 'other'"):
            await app.flows.rerun(flow, "other")


async def test_a_value_that_does_not_fit_fails_its_task() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")

    @app.flow
    def broken(plan: Plan) -> None:
        text = plan.add(step.new(name="text"), name="text")
        plan.add(double.new(number=text.value), name="double")

    async with duetime.testing.using(app, raise_errors=False) as t:
        flow = await broken.now()
        await t.drain()
        found = await app.flows.get(flow)
        assert (found.state, found.node("double").state) == ("failed", "failed")
        [member] = await app.flows.members(flow, "double")
        task = await app.get(member.task)
        assert task.error is not None
        assert (task.state, task.error.type) == ("failed", "InvalidPayload")
        assert "what it takes from text does not fit: double: number: Expected `int`, got `str`" in task.error.message


async def test_one_live_flow_has_a_key() -> None:
    app = shop()
    thumbnails = shrinking(app)
    async with duetime.testing.using(app) as t:
        first = await thumbnails.options(key="7").now(number=1)
        assert first.key == "7"
        with pytest.raises(DuplicateKey, match="a live flow of thumbnails has the key '7'"):
            await thumbnails.options(key="7").now(number=1)
        assert (await thumbnails.options(key="7", if_exists="keep").now(number=1)).id == first.id
        with pytest.raises(InvalidValue, match="a flow is not replaced"):
            thumbnails.options(key="7", if_exists="replace")  # type: ignore[arg-type]
        await t.drain()
        second = await thumbnails.options(key="7").now(number=1)
        with pytest.raises(Conflict, match="another live flow of thumbnails has its key"):
            await app.flows.rerun(first, "paths")
        await app.cancel(second)


def sagas(app: App) -> FlowHandler[[int], str]:
    @app.task
    async def charge(order_id: int) -> dict[str, str]:
        return {"id": f"charge {order_id}"}

    @app.task
    async def refund(charge_id: str) -> None:
        log.append(f"refund {charge_id}")

    @app.task
    async def ship() -> str:
        return "sent"

    @app.flow
    def buy(plan: Plan, order_id: int) -> Node[str]:
        step = app._handlers["step"]
        held = plan.add(step.new(name="reserve"), name="reserve", undo=step.new(name="release"))
        paid = plan.add(charge.new(order_id=order_id), needs=[held], undo=lambda paid: refund.new(charge_id=paid["id"]))
        return plan.add(ship.new(), needs=[paid])

    return buy


async def test_an_order_saga_is_undone_backwards_when_it_fails() -> None:
    app = shop()
    buy = sagas(app)
    assert "n0 -.->|undone by| n1" in buy.plan(7).mermaid()
    async with duetime.testing.using(app, raise_errors=False) as t:
        flow = await buy.now(7)
        assert flow.node("undo-charge").why == "it undoes charge, if the flow fails or is cancelled"
        assert (flow.node("undo-charge").undoes, flow.node("undo-charge").after) == ("charge", ["charge"])
        assert await app.result(flow) == "sent"
        assert (await app.flows.get(flow)).node("undo-charge").why == "it was skipped because nothing had to be undone of charge"
        log.clear()
        failing = await buy.now(8)
        t.fail_next("ship", Fatal("no such street"))
        t.fail_next("refund", Fatal("the bank sleeps"))
        with pytest.raises(FlowFailed) as failed:
            await app.result(failing)
        assert failed.value.nodes == ["ship", "undo-charge"]
        assert log == ["reserve", "release"]
        assert (await app.retry(failing)).state == "running"
        assert (await app.flows.why(failing))[0].text.startswith("it is undone, because ship failed")
        await t.drain()
        assert log == ["reserve", "release", "refund charge 8"]
        assert (await app.flows.get(failing)).state == "failed"
        with pytest.raises(Conflict, match="it was undone, so submit it again"):
            await app.retry(failing)
        with pytest.raises(Conflict, match="it was undone: only"):
            await app.flows.rerun(failing, "charge")
        early = await buy.now(9)
        t.fail_next("charge", RetryLater(60))
        await t.drain()
        await app.cancel(early)
        await t.drain()
        found = await app.flows.get(early)
        assert (found.state, found.node("undo-charge").why) == (
            "cancelled",
            "it was skipped because charge, which it undoes, did not succeed",
        )
        assert log[-1] == "release"


def nesting(app: App) -> FlowHandler[[int], str]:
    """Declare flows three deep."""
    step = app._handlers["step"]

    @app.task
    async def flaky(name: str) -> str:
        log.append(name)
        return name

    @app.flow
    def inner(plan: Plan, number: int) -> Node[str]:
        return plan.add(flaky.new(name=f"inner {number}"))

    @app.flow
    def middle(plan: Plan, number: int) -> Node[str]:
        plan.group([step.new(name="beside")])
        return plan.add(inner.new(number), name="inner")

    @app.flow
    def outer(plan: Plan, number: int) -> Node[str]:
        nested = plan.add(middle.new(number), name="middle")
        return plan.add(step.new(name=nested.value), name="after")

    return outer


@pytest.mark.covers("HF.6")
async def test_flows_inside_of_flows_end_with_them_and_hand_their_results_on() -> None:
    app = shop()
    outer = nesting(app)
    async with duetime.testing.using(app, raise_errors=False) as t:
        flow = await outer.now(7)
        assert await app.result(flow) == "inner 7"
        assert log == ["beside", "inner 7", "inner 7"]
        [member] = await app.flows.members(flow, "middle")
        assert (await app.flows.get(member.task)).name == "middle", "the flow has the id of its task"
        t.fail_next("flaky", Fatal("no"))
        failing = await outer.now(8)
        with pytest.raises(FlowFailed, match="middle"):
            await app.result(failing)
        [member] = await app.flows.members(failing, "middle")
        assert "inner" in str((await app.get(member.task)).error)
        log.clear()
        await app.retry(failing)
        assert await app.result(failing) == "inner 8"
        assert log == ["inner 8", "inner 8"], "what had succeeded inside was not run again"


@pytest.mark.covers("HF.6")
async def test_a_cancel_reaches_flows_inside_of_flows() -> None:
    app = shop()
    outer = nesting(app)
    async with duetime.testing.using(app) as t:
        t.fail_next("flaky", RetryLater(60))
        flow = await outer.now(7)
        await t.drain()
        [member] = await app.flows.members(flow, "middle")
        task = await app.get(member.task)
        assert (task.state, (await app.flows.get(member.task)).state) == ("blocked", "running")
        [innermost] = await app.flows.members(member.task, "inner")
        await app.cancel(flow)
        assert [(await app.flows.get(each)).state for each in (flow, member.task, innermost.task)] == ["cancelled"] * 3
        await t.advance(minutes=2)
    assert log == ["beside"]


async def test_a_step_calls_a_flow_and_takes_it_with_it() -> None:
    app = shop()
    outer = nesting(app)

    @app.task
    async def calling(ctx: Context, number: int) -> str:
        return await ctx.call("flow", outer.new(number))

    async with duetime.testing.using(app) as t:
        assert await app.result(await calling.now(3)) == "inner 3"
        t.fail_next("flaky", RetryLater(60))
        task = await calling.now(4)
        await t.drain()
        await app.cancel(task)
        await t.advance(minutes=2)
        assert {flow.state for flow in (await app.flows.list()).items} == {"succeeded", "cancelled"}
    assert "inner 4" not in log
    with pytest.raises(InvalidValue, match="has no key and no connection"):
        outer.options(key="7").new(1)


async def test_why_a_flow_is_where_it_is() -> None:
    app = shop()
    step, double = app.handler("step"), app.handler("double")
    async with duetime.testing.using(app, raise_errors=False) as t:
        flow = await app.chain(step.new(name="a").after(60), step.new(name="b"))
        [overall, running, waiting] = [reason.text for reason in await app.flows.why(flow)]
        assert overall == "it goes on; 0 of 2 known tasks ended"
        assert running.startswith("node step: 0 of 1 task ended; of these task ")
        assert "it is due in" in running
        assert waiting == "node step-2: it waits until step succeeded"
        t.fail_next(double, Fatal("no"))
        failed = await app.group([double.new(number=1)], succeeded=step.new(name="good"))
        await t.drain()
        texts = [reason.text for reason in await app.flows.why(failed)]
        assert texts[0] == "it is failed: tasks failed; 1 of 2 known tasks ended"
        assert texts[2].startswith("node succeeded: it was skipped because")
        await app.cancel(flow)
        cancelled, *_ = await app.flows.why(flow)
        assert cancelled.text == "it is cancelled, because it was cancelled; 1 of 2 known tasks ended"


async def test_what_is_refused() -> None:
    app = shop()
    step = app.handler("step")
    plan = Plan("p")
    node = plan.add(step.new(name="a"), name="a")
    with pytest.raises(InvalidValue, match="two nodes are named 'a'"):
        plan.add(step.new(name="a"), name="a")
    with pytest.raises(InvalidValue, match="has no key"):
        plan.add(step.options(key="k").new(name="a"))
    with pytest.raises(InvalidValue, match="needs is a list"):
        plan.add(step.new(name="a"), needs=node)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="no node of this plan"):
        Plan("other").add(step.new(name="a"), needs=[node])
    with pytest.raises(InvalidValue, match="1 to 1, got 2"):
        at_least(2, node)
    with pytest.raises(TypeError, match="what another node may need"):
        bool(node.failed)
    with pytest.raises(InvalidValue, match="group, which returns no single value"):
        plan.result(plan.group([step.new(name="a")]))
    with pytest.raises(InvalidValue, match="at least one task"):
        await app.chain()
    with pytest.raises(InvalidHandler, match="first parameter of a flow is its plan"):
        app.flow(name="other")(lambda number: None)
    async with duetime.testing.using(app):
        with pytest.raises(FlowNotFound):
            await app.flows.get(new_id())
