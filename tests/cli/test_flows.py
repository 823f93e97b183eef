"""Flows on the command line: listed, shown, cancelled and retried as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from duetime import Node, Plan
from tests.cli.conftest import CommandLine, Shop


@pytest.fixture
def flow(shop: Shop, duetime: CommandLine) -> str:
    """The id of a flow that waits for an hour."""

    greet = shop.app.handler("greet")

    async def submit() -> str:
        async with shop.app:
            return (await shop.app.chain(greet.new(name="a").after(3600), greet.new(name="b"), name="order")).id

    return asyncio.run(submit())


def test_a_flow_is_listed_shown_cancelled_and_retried(duetime: CommandLine, flow: str) -> None:
    [listed] = duetime.json("flows")["items"]
    assert listed == duetime.json("flows", "show", flow)
    assert (listed["id"], listed["name"], listed["state"]) == (flow, "order", "running")
    assert flow in duetime("flows", "list", "--state", "running", "--name", "order").stdout
    assert "it waits until greet succeeded" in duetime("flows", "show", flow).stdout
    assert duetime("flows", "show", flow, "--mermaid").stdout.endswith("    n0 --> n1\n")
    [member] = duetime.json("flows", "members", flow, "greet")["items"]
    assert member["task"] in duetime("flows", "members", flow, "greet").stdout
    assert duetime.json("flows", "cancel", flow)["state"] == "cancelled"
    assert "cannot be cancelled" in duetime("flows", "cancel", flow, code=4).stderr
    assert duetime.json("flows", "retry", flow)["state"] == "running"
    assert "flows.retry" in duetime("audit").stdout
    assert "node greet-2: it waits until greet succeeded" in duetime("flows", "why", flow).stdout
    assert duetime.json("flows", "why", flow)["items"][0]["text"].startswith("it goes on")
    assert "are live" in duetime("flows", "rerun", flow, "--from", "greet", code=4).stderr
    duetime("flows", "cancel", flow)
    assert duetime.json("flows", "rerun", flow, "--from", "greet")["nodes"][0]["round"] == 2


def test_results_are_printed_one_per_line(duetime: CommandLine, shop: Shop) -> None:
    @shop.app.task
    async def count(many: int) -> AsyncIterator[int]:
        for number in range(many):
            yield number

    @shop.app.flow
    def counting(plan: Plan, many: int) -> Node[list[int]]:
        return plan.add(count.new(many=many), name="count")

    async def work() -> list[str]:
        async with shop.app.worker():
            flows = [await counting.now(many=many) for many in (3, 1_200)]
            await shop.app.results(flows, timeout=60)
            return [flow.id for flow in flows]

    short, long = asyncio.run(work())
    assert duetime("flows", "results", short, "count").stdout == "0\n1\n2\n"
    assert duetime.json("flows", "results", short, "count") == {"items": [0, 1, 2], "next": None}
    assert duetime.lines("flows", "results", long, "count") == [str(number) for number in range(1_200)]
    assert "1,200 items; duetime flows results lists them" in duetime("flows", "show", long).stdout


def test_there_may_be_none(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("flows").stderr.strip() == "there are no flows"
    assert "there is no flow nobody" in duetime("flows", "show", "nobody", code=3).stderr
