"""Handlers in sub-processes yield, and read results of others: over the worker that they belong to."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import App, Node, Plan
from tests.servers.waiting import PATIENCE

SHOP = """
from collections.abc import AsyncIterator, Iterator
from duetime import App, Results

app = App({url!r})

@app.task(isolation="process")
def paths(many: int) -> Iterator[str]:
    for number in range(many):
        yield str(number)

@app.task(isolation="process")
async def doubled(paths: Results[str]) -> AsyncIterator[int]:
    async for path in paths:
        yield 2 * int(path)

@app.task(isolation="process")
def total(numbers: Results[int], paths: Results[str]) -> tuple[int, int]:
    return sum(numbers), len(list(paths))
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    (tmp_path / "streaming_shop.py").write_text(SHOP.format(url=f"sqlite:///{tmp_path}/duetime.db"))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("streaming_shop").app
    sys.modules.pop("streaming_shop", None)


@pytest.mark.slow
async def test_children_yield_and_read_what_others_have_yielded(shop: App) -> None:
    paths, doubled, total = (shop.handler(name) for name in ("paths", "doubled", "total"))

    @shop.flow
    def adding(plan: Plan) -> Node[tuple[int, int]]:
        found = plan.add(paths.new(many=2_100), name="paths")
        numbers = plan.add(doubled.new(paths=found.stream), name="doubled")
        return plan.add(total.new(numbers=numbers.stream, paths=found.stream), name="total")

    async with shop.worker():
        flow = await adding.now()
        assert tuple(await shop.result(flow, timeout=PATIENCE)) == (2_100 * 2_099, 2_100)
        assert len([item async for item in shop.flows.results(flow, "doubled")]) == 2_100
