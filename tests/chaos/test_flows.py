"""Flows under `kill -9` of workers and of the server: every join opens, and opens once."""

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from duetime import Flow, NewTask, Plan
from duetime.errors import StoreUnavailable
from duetime.ids import new_id
from duetime.model.flow import Condition, Graph, NodePlan
from duetime.model.task import State
from duetime.store.flows import NewFlow
from tests.chaos.fleet import Fleet, until
from tests.chaos.ground import Ground
from tests.chaos.stepping import hire, opened
from tests.conformance.build import new_task
from tests.servers.proxy import Cut, Side

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("DUETIME_TEST_KILLS", "3"))
LEASE = ("--lease", "1s")


async def submit(fleet: Fleet, plan: Plan) -> str:
    """Submit a flow, if need be again until that is acknowledged."""
    flow = plan.new_flow()
    for _ in range(1_000):
        try:
            return (await fleet.app.submit_flow(flow)).id
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("no flow was accepted")


async def finish(fleet: Fleet, flows: Sequence[str]) -> list[Flow[Any]]:
    """Wait until flows have ended, and check that each node's tasks were made once and everything else that chaos tests check."""

    async def over() -> bool:
        states = [None if found is None else found.state for found in await fleet.store.flows(flows)]
        return "running" not in states

    await until("all flows have ended", over)
    found = [await fleet.app.flows.get(flow) for flow in flows]
    for flow in found:
        for node in flow.nodes:
            members = await fleet.app.flows.members(flow.id, node.name, limit=1_000)
            assert len({member.position for member in members}) == len(members) == node.members, (flow.id, node.name)
            for member in members:
                fleet.journal.write("submitted", task=member.task)
    ran = set(fleet.history().attempts)
    assert ran == fleet.history().submitted(), "nothing ran that is no member"
    await fleet.check()
    return found


def chord(fleet: Fleet, members: int, **arguments: Any) -> Plan:
    plan = Plan("chord")
    parts = plan.group([fleet.new("quick", **arguments) for _ in range(members)], name="parts")
    listed = plan.add(fleet.new("lists", length=members), name="list")
    each = plan.map(listed.value, lambda item: fleet.new("echoes", value=item), name="each", needs=[parts])
    plan.add(fleet.new("adds", numbers=each.values), name="sum")
    return plan


@pytest.mark.parametrize("point", ["before the look", "before the commit of the step"])
async def test_a_join_opens_although_the_process_that_ended_the_last_member_died(any_fleet: Fleet, point: str) -> None:
    fleet = any_fleet
    doomed = await fleet.start(*LEASE, app="tests.chaos.dying:app", chaos_dies=point)
    plan = Plan("chain")
    plan.add(fleet.new("quick", held=True), name="first")
    plan.add(fleet.new("quick"), name="then", needs=[Condition("first")])
    fleet.hold()
    flow = await submit(fleet, plan)
    await until("the first member runs", lambda: bool(fleet.history().attempts))
    (fleet.folder / "deadly").touch()
    fleet.let_go()
    await until("the worker has died", lambda: not doomed.running)
    doomed.told = True
    [first, _] = (await fleet.app.flows.get(flow)).nodes
    assert first.ended == 1, "its end was committed"
    await fleet.start(*LEASE)
    [found] = await finish(fleet, [flow])
    assert found.state == "succeeded"
    assert all(len(attempts) == 1 for attempts in fleet.history().attempts.values())


@pytest.mark.timeout(300 + 10 * ROUNDS)
async def test_workers_killed_at_random_lose_no_join_and_double_none(any_fleet: Fleet) -> None:
    fleet, chance = any_fleet, random.Random()
    await fleet.start_some(2, *LEASE)
    flows = []
    for _ in range(ROUNDS):
        flows += [await submit(fleet, chord(fleet, chance.randrange(6), seconds=chance.uniform(0, 0.1))) for _ in range(4)]
        await asyncio.sleep(chance.uniform(0, 0.4))
        chance.choice(fleet.alive).kill()
        await fleet.start(*LEASE)
    for found in await finish(fleet, flows):
        [value] = [await fleet.app.result(member.task) for member in await fleet.app.flows.members(found.id, "sum")]
        assert (found.state, value) == ("succeeded", sum(range(found.node("parts").members)))


@pytest.mark.timeout(300 + 10 * ROUNDS)
async def test_a_server_killed_and_connections_cut_while_flows_go_on_lose_no_join_and_double_none(stormy: Fleet, ground: Ground) -> None:
    fleet, chance = stormy, random.Random()
    await fleet.start_some(2, "--lease", "5s")
    flows = []
    for number in range(ROUNDS):
        flows += [await submit(fleet, chord(fleet, chance.randrange(6))) for _ in range(4)]
        if number % 2:
            ground.proxy.cut_after(chance.randrange(20_000), chance.choice(list(Side)), chance.choice(list(Cut)))
        else:
            await asyncio.sleep(chance.uniform(0, 0.2))
            await ground.crash(fleet.journal)
    for found in await finish(fleet, flows):
        assert found.state == "succeeded"


async def test_a_step_whose_commit_was_not_answered_is_taken_once(ground: Ground) -> None:
    nodes = (NodePlan(name="a"), NodePlan(name="b", needs=(Condition("a"),), members=3, group=True))
    tasks: list[list[NewTask[Any]]] = [[new_task("work")], [new_task("work") for _ in range(3)]]
    chain = NewFlow(id=new_id(), name="chain", graph=Graph(nodes=nodes), tasks=tasks)
    async with opened(ground.url) as store:

        async def nothing(flows: Sequence[str] | None = None) -> None:
            return

        worker = await hire(store)
        store._look = nothing  # type: ignore[method-assign]
        await store.add_flow(chain)
        await worker.end(await worker.take_one(), State.SUCCEEDED)
        lost = ground.proxy.lose_reply(b"COMMIT;")
        while not lost.is_set():
            await store.advance_flows()
        await store.advance_flows()
        assert len(await store.flow_members(chain.id, 1)) == 3
        for task in await worker.take("work"):
            await worker.end(task, State.SUCCEEDED)
        await store.advance_flows()
        [found] = await store.flows([chain.id])
        assert found is not None
        assert found.state == "succeeded"
