"""Results that are read as a stream, and handlers that yield: more than an argument or a result can hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

import duetime
from duetime import App, Context, Fatal, InvalidHandler, InvalidPayload, Node, PayloadTooLarge, Plan, Results, TaskFailed
from duetime.testing import using

LONG = "x" * 2_000  # 600 of these are more than a payload holds


class Size(msgspec.Struct):
    name: str
    width: int


def reading(app: App) -> Any:
    """Declare a flow whose many long results one task reads."""

    @app.task
    async def measure(number: int) -> Size:
        if number == 3:
            raise Fatal("no file")
        return Size(f"{number}{LONG}", number)

    @app.task
    async def total(sizes: Results[Size], more: int = 0) -> int:
        return sum([size.width async for size in sizes]) + more

    @app.task
    def total_in_a_thread(sizes: Results[Size]) -> int:
        widths = [size.width for size in sizes]
        assert widths == sorted(widths)
        assert widths == [size.width for size in sizes]  # as often as one likes
        return sum(widths)

    @app.flow
    def measuring(plan: Plan, many: int, *, threads: bool = False) -> Node[int]:
        sizes = plan.group([measure.new(number=number) for number in range(many)], name="sizes", tolerate=1)
        task = total_in_a_thread.new(sizes=sizes.stream) if threads else total.new(sizes=sizes.stream, more=1)
        return plan.add(task, name="total")

    return measuring


@pytest.mark.parametrize("threads", [False, True])
async def test_a_task_reads_the_results_of_a_group_as_a_stream(threads: bool) -> None:
    app = App("sqlite:///:memory:")
    measuring = reading(app)
    async with using(app, raise_errors=False) as t:
        flow = await measuring.now(many=600, threads=threads)
        await t.drain()
        assert await app.result(flow) == sum(range(600)) - 3 + (0 if threads else 1)
        [member] = await app.flows.members(flow, "total")
        task = await app.get(member.task)
        assert task.payload["sizes"] == {"$results": {"node": "sizes", "number": 0, "group": True}}
        names = [each["width"] async for each in app.flows.results(flow, "sizes")]
        assert names == [number for number in range(600) if number != 3]


async def test_as_an_argument_so_much_is_refused_and_the_message_names_the_stream() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def measure(number: int) -> str:
        return LONG

    @app.task
    async def total(sizes: list[str]) -> int:
        return len(sizes)

    @app.flow
    def measuring(plan: Plan) -> Node[int]:
        sizes = plan.group([measure.new(number=number) for number in range(600)], name="sizes")
        return plan.add(total.new(sizes=sizes.values), name="total")

    async with using(app, raise_errors=False) as t:
        flow = await measuring.now()
        await t.drain()
        assert "take them as a stream: a parameter of type Results[…]" in (await app.flows.get(flow)).node("total").why


async def test_results_with_values_of_their_own() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def total(sizes: Results[int]) -> int:
        return sum([size async for size in sizes])

    assert await total(Results.of([1, 2, 3])) == 6
    assert list(Results.of(number for number in (1, 2))) == [1, 2]
    async with using(app) as t:
        task = await total.now(sizes=Results.of(range(5)))
        await t.drain()
        assert await app.result(task) == 10
        with pytest.raises(InvalidPayload, match=r"total: sizes does not fit: Expected `int`, got `str` - at item `\[1\]`"):
            await total.now(sizes=Results.of([1, "two"]))  # type: ignore[list-item]


async def test_only_a_member_of_a_flow_reads_its_results() -> None:
    app = App("sqlite:///:memory:")
    measuring = reading(app)
    total = app.handler("total")
    async with using(app, raise_errors=False) as t:
        flow = await measuring.now(many=2)
        await t.drain()
        task = await total.now(sizes={"$results": {"node": "sizes", "number": 0, "group": True}})
        forged = await total.options(meta={"flow": flow.id}).now(sizes={"$results": {"node": "sizes", "number": 0, "group": True}})
        await t.drain()
        for each in (task, forged):
            with pytest.raises(TaskFailed, match="belongs to no flow, so it cannot read the results of 'sizes'"):
                await app.result(each)


async def test_a_result_that_does_not_fit_fails_the_reader_and_says_whose_it_is() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def name(number: int) -> str:
        return "text"

    @app.task
    async def total(sizes: Results[int]) -> int:
        return sum([size async for size in sizes])

    @app.flow
    def wrong(plan: Plan) -> None:
        names = plan.group([name.new(number=1)], name="names")
        plan.add(total.new(sizes=names.stream), name="total")  # type: ignore[arg-type]

    async with using(app, raise_errors=False) as t:
        flow = await wrong.now()
        await t.drain()
        [member] = await app.flows.members(flow, "total")
        with pytest.raises(TaskFailed, match="a result of names does not fit: Expected `int`, got `str`"):
            await app.result(member.task)


async def test_what_takes_no_stream_is_refused_when_it_is_planned() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def total(sizes: list[int]) -> int:
        return sum(sizes)

    plan = Plan("p")
    parts = plan.group([total.new(sizes=[1])], name="parts")
    with pytest.raises(InvalidPayload, match=r"total: sizes takes no stream; annotate it as Results\[…\], or give it .values"):
        total.new(sizes=parts.stream)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="known only when the flow runs"):
        list(parts.stream)


def yielding(app: App, *, sync: bool) -> Any:
    @app.task
    async def paths(many: int, text: str = "") -> AsyncIterator[str]:
        for number in range(many):
            yield f"{number}{text}"

    @app.task
    def paths_in_a_thread(many: int, text: str = "") -> Iterator[str]:
        for number in range(many):
            yield f"{number}{text}"

    @app.task
    async def resize(path: str) -> int:
        return len(path)

    @app.task
    async def total(sizes: Results[int], paths: Results[str]) -> tuple[int, int]:
        return len([size async for size in sizes]), len([path async for path in paths])

    @app.flow
    def thumbnails(plan: Plan, many: int, text: str = "") -> Node[tuple[int, int]]:
        handler = paths_in_a_thread if sync else paths
        found = plan.add(handler.new(many=many, text=text), name="paths")
        sizes = plan.map(found.value, lambda path: resize.new(path=path), name="sizes")
        return plan.add(total.new(sizes=sizes.stream, paths=found.stream), name="total")

    return thumbnails


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("many", [0, 3, 1_300])
async def test_a_map_and_a_stream_over_what_a_handler_yields(sync: bool, many: int) -> None:
    app = App("sqlite:///:memory:")
    thumbnails = yielding(app, sync=sync)
    async with using(app) as t:
        flow = await thumbnails.now(many=many)
        await t.drain()
        assert tuple(await app.result(flow)) == (many, many)
        assert [each async for each in app.flows.results(flow, "paths")] == [str(number) for number in range(many)]
        [member] = await app.flows.members(flow, "paths")
        if many < 1_000:
            assert await app.result(member.task) == [str(number) for number in range(many)]
        else:
            with pytest.raises(PayloadTooLarge, match="has yielded 1,300 items, which are kept with its flow"):
                await app.result(member.task)


async def test_the_result_of_a_flow_may_be_what_a_node_yields() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def sizes(many: int) -> AsyncIterator[Size]:
        for number in range(many):
            yield Size("x", number)

    @app.flow
    def listing(plan: Plan, many: int) -> Node[list[Size]]:
        return plan.add(sizes.new(many=many), name="sizes")

    @app.flow
    def outer(plan: Plan) -> Node[list[Size]]:
        return plan.add(listing.new(many=1_500), name="inner")

    async with using(app) as t:
        flow, above = await listing.now(many=1_500), await outer.now()
        await t.drain()
        found = await app.flows.get(flow)
        assert (found.result, found.result_items) == (None, 1_500)
        result, nested = await app.result(flow), await app.result(above)
        assert (len(result), result[-1]) == (1_500, Size("x", 1_499))
        assert len(nested) == 1_500


async def test_alone_a_handler_that_yields_returns_a_list() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def numbers(ctx: Context, many: int, text: str = "") -> AsyncIterator[str]:
        assert ctx.attempt == 1
        for number in range(many):
            yield f"{number}{text}"

    async with using(app, raise_errors=False) as t:
        task, long = await numbers.now(many=3), await numbers.now(many=600, text=LONG)
        forged = await numbers.options(meta={"flow": task.id}).now(many=1_500)
        await t.drain()
        assert await app.result(task) == ["0", "1", "2"]
        assert len(await app.result(forged)) == 1_500
        with pytest.raises(TaskFailed, match="more than the 1,000,000 bytes of a result, and nobody in a flow reads it"):
            await app.result(long)


async def test_pieces_of_an_attempt_that_failed_are_never_read() -> None:
    app = App("sqlite:///:memory:")

    @app.task(retry=duetime.RetryPolicy(tries=2, base=1))
    async def paths(ctx: Context) -> AsyncIterator[str]:
        for number in range(3_000 if ctx.attempt == 1 else 1_200):
            yield f"{ctx.attempt}: {number}"
        if ctx.attempt == 1:
            raise RuntimeError("the file was cut off")

    @app.task
    async def last(paths: Results[str]) -> list[str]:
        found = [path async for path in paths]
        return [found[0], found[-1], str(len(found))]

    @app.flow
    def reading(plan: Plan) -> Node[list[str]]:
        return plan.add(last.new(paths=plan.add(paths.new(), name="paths").stream), name="last")

    async with using(app, raise_errors=False) as t:
        flow = await reading.now()
        await t.advance(minutes=5)
        await t.drain()
        assert await app.result(flow) == ["2: 0", "2: 1199", "1200"]


async def test_a_generator_is_closed_when_its_attempt_ends() -> None:
    app = App("sqlite:///:memory:")
    closed: list[str] = []
    begun, never = asyncio.Event(), threading.Event()

    @app.task
    async def forever() -> AsyncIterator[int]:
        try:
            yield 1
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.append("async")

    @app.task
    def until_told(ctx: Context) -> Iterator[int]:
        try:
            yield 1
            while not never.wait(0.01):
                ctx.check()
        finally:
            closed.append("sync")

    async with app.worker():
        task, other = await forever.now(), await until_told.now()
        await begun.wait()
        await app.cancel(task)
        await app.cancel(other)
        for each in (task, other):
            with pytest.raises(duetime.TaskCancelled):
                await app.result(each, timeout=60)
    assert sorted(closed) == ["async", "sync"]


def test_the_function_of_a_flow_yields_nothing() -> None:
    app = App("sqlite:///:memory:")
    with pytest.raises(InvalidHandler, match="must be a plain `def`"):

        @app.flow  # type: ignore[arg-type]
        def wrong(plan: Plan) -> Iterator[int]:
            yield 1
