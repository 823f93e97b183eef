"""Flows: nodes open when what they wait for has ended as they need it, once and always; they stop and go on as one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duetime.clock import SECOND, ManualClock
from duetime.errors import DuplicateKey
from duetime.ids import new_id
from duetime.model.flow import MAX_MEMBERS, PORTION, Condition, Graph, NodePlan, check_graph
from duetime.model.gate import Gate, GateAction
from duetime.model.lifecycle import QUARANTINE_CRASHES
from duetime.model.task import FINAL, NewTask, State
from duetime.store import Store
from duetime.store.flows import FlowRecord, FlowVerdict, KeptValue, NewFlow
from duetime.store.postgres.statements import in_schema
from duetime.store.values import CancelVerdict, ChangeVerdict
from tests.conformance.build import Worker, ended, new_task
from tests.conformance.conftest import Another, Dead, Hire
from tests.conformance.connections import Connection


def on(node: str, kind: str = "succeeded", value: object = None) -> Condition:
    return Condition(node=node, on=kind, value=value)  # type: ignore[arg-type]


def node(name: str, *needs: Condition, members: int = 1, group: bool = False, tolerate: float = 0, keeps: bool = False) -> NodePlan:
    return NodePlan(name=name, handler=name, needs=needs, members=members, group=group or members != 1, tolerate=tolerate, keeps=keeps)


def flow(*nodes: NodePlan, stop: bool = False, deadline: int | None = None, result: str | None = None) -> NewFlow:
    graph = check_graph(Graph(nodes=nodes, result=result, on_failure="stop" if stop else "continue"))
    tasks: list[list[NewTask[object]]] = [[new_task(plan.name) for _ in range(plan.members)] for plan in graph.nodes]
    return NewFlow(id=new_id(), name="flow", graph=graph, tasks=tasks, deadline_in=deadline)


async def read(store: Store, flow: NewFlow | FlowRecord) -> FlowRecord:
    [found] = await store.flows([flow.id])
    assert found is not None
    return found


async def states(store: Store, flow: NewFlow | FlowRecord) -> dict[str, str]:
    found = await read(store, flow)
    names = [plan.name for plan in found.graph.nodes]
    return {**dict(zip(names, found.states(), strict=True)), "": found.state}


async def tasks_of(store: Store, flow: NewFlow, name: str) -> list[str]:
    number = [plan.name for plan in flow.graph.nodes].index(name)
    return [member.task for member in await store.flow_members(flow.id, number, limit=MAX_MEMBERS)]


async def end(worker: Worker, name: str, state: State = State.SUCCEEDED, result: bytes | None = None) -> None:
    """Let the first task of a node run and end."""
    await worker.run(state, name, result=result)


async def test_the_nodes_of_a_chain_run_one_after_the_other(store: Store, worker: Worker) -> None:
    chain = flow(node("a"), node("b", on("a")), node("c", on("b")))
    record = await store.add_flow(chain)
    assert record.state == "running"
    assert await states(store, chain) == {"a": "running", "b": "waiting", "c": "waiting", "": "running"}
    for name in "abc":
        await end(worker, name)
    assert await states(store, chain) == {"a": "succeeded", "b": "succeeded", "c": "succeeded", "": "succeeded"}
    assert (await read(store, chain)).finished_at is not None


async def test_a_member_tells_which_flow_and_node_it_belongs_to(store: Store, worker: Worker) -> None:
    chain = flow(node("a"))
    await store.add_flow(chain)
    [task] = await tasks_of(store, chain, "a")
    [found] = await store.get([task])
    assert found is not None
    assert found.meta == {"flow": chain.id, "node": "a"}


async def test_adding_it_again_is_a_repeat(store: Store, worker: Worker) -> None:
    chain = flow(node("a"), node("b", on("a")))
    await store.add_flow(chain)
    await end(worker, "a")
    again = await store.add_flow(chain)
    assert again.state == "running"
    assert len(await tasks_of(store, chain, "a")) == 1
    assert await states(store, chain) == {"a": "succeeded", "b": "running", "": "running"}


async def test_an_unknown_flow_is_none(store: Store) -> None:
    assert await store.flows([new_id(), "no id"]) == [None, None]
    assert await store.stop_flow(new_id(), "cancel") is FlowVerdict.UNKNOWN
    assert await store.retry_flow(new_id()) is FlowVerdict.UNKNOWN
    assert await store.flow_members(new_id(), 0) == []


async def test_a_join_opens_once_when_all_members_of_a_group_have_ended(store: Store, worker: Worker) -> None:
    chord = flow(node("part", members=5), node("join", on("part")))
    await store.add_flow(chord)
    for number in range(5):
        assert (await states(store, chord))["join"] == "waiting", number
        await end(worker, "part")
    assert (await states(store, chord))["join"] == "running"
    assert len(await tasks_of(store, chord, "join")) == 1


@pytest.mark.parametrize("state", sorted(FINAL - {State.SUCCEEDED}))
async def test_every_end_but_success_is_a_failure_of_the_node(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    branches = flow(node("a"), node("next", on("a")), node("clean", on("a", "failed")), node("close", on("a", "ended")))
    branches = msgspec.structs.replace(branches, tasks=[[new_task("a", expires_in=60 * SECOND)], *branches.tasks[1:]])
    await store.add_flow(branches)
    [task] = await tasks_of(store, branches, "a")
    await end_as(store, worker, clock, task, state)
    assert await states(store, branches) == {"a": "failed", "next": "skipped", "clean": "running", "close": "running", "": "running"}
    await end(worker, "clean")
    await end(worker, "close")
    assert (await read(store, branches)).state == "succeeded"  # the failure was handled


async def test_a_member_that_kills_its_workers_is_quarantined_and_has_failed(store: Store, worker: Worker, dead_worker: Dead) -> None:
    branches = flow(node("a"), node("next", on("a")), node("clean", on("a", "failed")))
    await store.add_flow(branches)
    for _ in range(QUARANTINE_CRASHES):
        assert (await states(store, branches))["a"] == "running"
        dead = await dead_worker("a", holding=1)
        [beat] = [each.beat for each in await store.workers() if each.id == dead]
        await store.reap(dead, beat)
    assert await states(store, branches) == {"a": "failed", "next": "skipped", "clean": "running", "": "running"}
    await end(worker, "clean")
    assert (await read(store, branches)).state == "succeeded"


async def end_as(store: Store, worker: Worker, clock: ManualClock, task: str, state: State) -> None:
    if state is State.CANCELLED:
        assert await store.cancel([task]) == [CancelVerdict.CANCELLED]
    elif state is State.EXPIRED:
        clock.advance(61)
        assert await store.expire(10) == 1
    elif state is State.DROPPED:
        await store.put_gate(Gate(handler="a", action=GateAction.DROP))
        assert await store.drop(10) == 1
        await store.remove_gate("a", None)
    else:
        await end(worker, "a", state)


async def test_a_failure_that_nobody_handles_fails_the_flow(store: Store, worker: Worker) -> None:
    two = flow(node("a"), node("b"), node("c", on("b")))
    await store.add_flow(two)
    await end(worker, "a", State.FAILED)
    assert (await states(store, two))[""] == "running"  # other branches go on
    await end(worker, "b")
    await end(worker, "c")
    assert await states(store, two) == {"a": "failed", "b": "succeeded", "c": "succeeded", "": "failed"}


async def test_some_failures_of_a_group_are_tolerated(store: Store, worker: Worker) -> None:
    chord = flow(node("part", members=4, tolerate=0.25), node("join", on("part")))
    await store.add_flow(chord)
    await end(worker, "part", State.FAILED)
    for _ in range(3):
        await end(worker, "part")
    assert (await states(store, chord))["join"] == "running"


async def test_a_branch_is_chosen_by_what_a_node_returned(store: Store, worker: Worker) -> None:
    choice = flow(node("ask", keeps=True), node("pay", on("ask", "returned", "pay")), node("refund", on("ask", "returned", "refund")))
    await store.add_flow(choice)
    await end(worker, "ask", result=b'"refund"')
    assert await states(store, choice) == {"ask": "succeeded", "pay": "skipped", "refund": "running", "": "running"}
    assert await store.flow_values(choice.id, 0) == [KeptValue(0, b'"refund"')]


async def test_any_of_several_and_at_least_some_of_them(store: Store, worker: Worker) -> None:
    votes = flow(
        node("a"),
        node("b"),
        node("c"),
        node("any", Condition(least=1, of=(on("a", "failed"), on("b", "failed")))),
        node("two", Condition(least=2, of=(on("a"), on("b"), on("c")))),
    )
    await store.add_flow(votes)
    await end(worker, "a")
    assert (await states(store, votes))["two"] == "waiting"
    await end(worker, "c")
    assert (await states(store, votes))["two"] == "running"
    assert (await states(store, votes))["any"] == "waiting"
    await end(worker, "b")
    assert (await states(store, votes))["any"] == "skipped"


async def test_skipped_lets_run_what_only_needs_that_nothing_failed(store: Store, worker: Worker) -> None:
    after = flow(node("a"), node("alarm", on("a", "failed")), node("b", on("alarm", "not_failed")), node("c", on("alarm")))
    await store.add_flow(after)
    await end(worker, "a")
    assert await states(store, after) == {"a": "succeeded", "alarm": "skipped", "b": "running", "c": "skipped", "": "running"}


async def test_an_empty_group_has_succeeded(store: Store, worker: Worker) -> None:
    chord = flow(node("part", members=0, group=True), node("join", on("part")))
    await store.add_flow(chord)
    assert await states(store, chord) == {"part": "succeeded", "join": "running", "": "running"}


async def test_a_large_group_is_made_in_portions_by_the_call_itself(store: Store, hire: Hire) -> None:
    chord = flow(node("part", members=2 * PORTION + 1), node("join", on("part")))
    await store.add_flow(chord)
    assert len(await tasks_of(store, chord, "part")) == 2 * PORTION + 1
    worker = await hire()
    tasks = await worker.take("part")
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in tasks])
    assert (await states(store, chord))["join"] == "running"


async def test_a_stop_at_the_first_failure_ends_what_else_waits_and_runs(store: Store, worker: Worker) -> None:
    two = flow(node("a"), node("b"), node("c", on("b")), node("tell", on("a", "failed")), stop=True)
    await store.add_flow(two)
    await end(worker, "a", State.FAILED)
    [task] = await tasks_of(store, two, "b")
    [found] = await store.get([task])
    assert found is not None
    assert found.state is State.CANCELLED
    assert await states(store, two) == {"a": "failed", "b": "failed", "c": "skipped", "tell": "running", "": "running"}
    await end(worker, "tell")
    assert (await read(store, two)).state == "failed"


async def test_a_cancel_ends_what_waits_and_marks_what_runs(store: Store, worker: Worker) -> None:
    two = flow(node("a"), node("b"), node("c", on("a")))
    await store.add_flow(two)
    [running] = await worker.take("a")
    assert await store.stop_flow(two.id, "cancel") is FlowVerdict.CHANGED
    assert await worker.take("b") == []
    [marked] = await store.get([running.id])
    assert marked is not None
    assert marked.cancelling
    assert await states(store, two) == {"a": "running", "b": "failed", "c": "skipped", "": "running"}
    await worker.end(running, State.CANCELLED)
    assert (await read(store, two)).state == "cancelled"
    assert await store.stop_flow(two.id, "cancel") is FlowVerdict.REFUSED


async def test_a_retry_goes_on_from_the_members_that_failed(store: Store, worker: Worker) -> None:
    chord = flow(node("part", members=3), node("join", on("part")))
    await store.add_flow(chord)
    assert await store.retry_flow(chord.id) is FlowVerdict.REFUSED
    await end(worker, "part", State.FAILED)
    await end(worker, "part")
    await end(worker, "part")
    assert await states(store, chord) == {"part": "failed", "join": "skipped", "": "failed"}
    assert await store.retry_flow(chord.id) is FlowVerdict.CHANGED
    assert await states(store, chord) == {"part": "running", "join": "waiting", "": "running"}
    assert (await read(store, chord)).finished_at is None
    await end(worker, "part")
    await end(worker, "join")
    assert await states(store, chord) == {"part": "succeeded", "join": "succeeded", "": "succeeded"}
    assert len(await tasks_of(store, chord, "part")) == 3
    assert await store.retry_flow(chord.id) is FlowVerdict.REFUSED


async def test_the_retry_of_a_single_member_lets_its_flow_go_on_too(store: Store, worker: Worker) -> None:
    chain = flow(node("a"), node("b", on("a")))
    await store.add_flow(chain)
    await end(worker, "a", State.FAILED)
    assert (await read(store, chain)).state == "failed"
    assert await store.retry(await tasks_of(store, chain, "a")) == [ChangeVerdict.CHANGED]
    assert await states(store, chain) == {"a": "running", "b": "waiting", "": "running"}
    await end(worker, "a")
    await end(worker, "b")
    assert (await read(store, chain)).state == "succeeded"


async def test_a_cancelled_flow_goes_on_after_a_retry(store: Store, worker: Worker) -> None:
    chain = flow(node("a"), node("b", on("a")))
    await store.add_flow(chain)
    await store.stop_flow(chain.id, "cancel")
    assert await states(store, chain) == {"a": "failed", "b": "skipped", "": "cancelled"}
    assert await store.retry_flow(chain.id) is FlowVerdict.CHANGED
    await end(worker, "a")
    await end(worker, "b")
    assert (await read(store, chain)).state == "succeeded"


async def test_a_stop_by_failure_does_not_come_again_after_a_retry(store: Store, worker: Worker) -> None:
    two = flow(node("a"), node("b", on("a")), stop=True)
    await store.add_flow(two)
    await end(worker, "a", State.FAILED)
    assert (await read(store, two)).state == "failed"
    assert await store.retry_flow(two.id) is FlowVerdict.CHANGED
    await end(worker, "a")
    await end(worker, "b")
    assert (await read(store, two)).state == "succeeded"


def undo(name: str) -> NodePlan:
    return NodePlan(name=f"undo-{name}", handler=f"undo-{name}", undoes=name)


def saga() -> NewFlow:
    """Two nodes that are undone, one after the other, and a third that may fail; a fourth is undone only if it ran."""
    return flow(node("a"), undo("a"), node("b", on("a")), undo("b"), node("c", on("b")), node("d", on("c")), undo("d"))


async def test_what_has_succeeded_is_undone_backwards_when_the_flow_fails(store: Store, worker: Worker) -> None:
    order = saga()
    await store.add_flow(order)
    for name, state in (("a", State.SUCCEEDED), ("b", State.SUCCEEDED), ("c", State.FAILED)):
        assert {(await states(store, order))[each] for each in ("undo-a", "undo-b", "undo-d")} == {"waiting"}
        await end(worker, name, state)
    now = await states(store, order)
    assert (now["undo-a"], now["undo-b"], now["undo-d"], now[""]) == ("waiting", "running", "skipped", "running")
    assert await store.stop_flow(order.id, "cancel") is FlowVerdict.CHANGED, "which does not stop the undoing"
    await end(worker, "undo-b")
    await end(worker, "undo-a")
    now = await states(store, order)
    assert (now["undo-a"], now["undo-b"], now[""]) == ("succeeded", "succeeded", "cancelled")
    assert await store.retry_flow(order.id) is FlowVerdict.REFUSED
    assert await store.rerun_flow(order.id, 2) is FlowVerdict.REFUSED, "b runs only after a, whose effect is gone"
    assert await store.rerun_flow(order.id, 0) is FlowVerdict.CHANGED
    for name in "abcd":
        await end(worker, name)
    now = await states(store, order)
    assert (now["undo-a"], now["undo-b"], now["undo-d"], now[""]) == ("skipped", "skipped", "skipped", "succeeded")


async def test_a_cancelled_flow_is_undone_once_nothing_of_it_runs(store: Store, worker: Worker) -> None:
    order = saga()
    await store.add_flow(order)
    await end(worker, "a")
    running = await worker.take_one("b")
    await store.stop_flow(order.id, "cancel")
    now = await states(store, order)
    assert (now["b"], now["undo-a"], now[""]) == ("running", "waiting", "running")
    await worker.end(running, State.CANCELLED)
    now = await states(store, order)
    assert (now["b"], now["undo-a"], now["undo-b"], now[""]) == ("failed", "running", "skipped", "running")
    await end(worker, "undo-a")
    assert (await states(store, order))[""] == "cancelled"


async def test_an_undo_that_fails_fails_the_flow_and_can_be_retried(store: Store, worker: Worker) -> None:
    order = saga()
    await store.add_flow(order)
    await end(worker, "a")
    await store.stop_flow(order.id, "cancel")
    await end(worker, "undo-a", State.FAILED)
    now = await states(store, order)
    assert (now["undo-a"], now[""]) == ("failed", "failed")
    assert await store.retry_flow(order.id) is FlowVerdict.CHANGED
    now = await states(store, order)
    assert (now["b"], now["undo-a"], now[""]) == ("failed", "running", "running"), "only what undoes is retried"
    await end(worker, "undo-a")
    assert (await states(store, order))[""] == "cancelled"


async def test_a_deadline_stops_a_flow(store: Store, worker: Worker, clock: ManualClock) -> None:
    late = flow(node("a"), node("b", on("a")), deadline=60 * SECOND)
    await store.add_flow(late)
    assert await store.advance_flows() == 0
    clock.advance(61)
    assert await store.advance_flows() == 1
    assert await states(store, late) == {"a": "failed", "b": "skipped", "": "failed"}
    assert await store.advance_flows() == 0


async def test_pages_go_from_the_newest_to_the_oldest(store: Store, worker: Worker) -> None:
    made = [flow(node("a")) for _ in range(5)]
    for each in made:
        await store.add_flow(each)
    first = await store.flow_page(limit=3)
    second = await store.flow_page(limit=3, before=first.next)
    assert [each.id for each in (*first.flows, *second.flows)] == sorted((each.id for each in made), reverse=True)
    assert second.next is None
    await end(worker, "a")
    assert len((await store.flow_page(state="succeeded")).flows) == 1
    assert (await store.flow_page(name="other")).flows == []


async def test_a_flow_in_a_callers_transaction_exists_once_that_has_committed(store: Store, worker: Worker, connection: Connection) -> None:
    kept, gone = flow(node("a"), node("b", on("a"))), flow(node("a"))
    for each, ends in ((gone, connection.rollback), (kept, connection.commit)):
        connection.begin()
        await store.add_flow_on(connection.own, each)
        ends()
    assert await store.flows([gone.id]) == [None]
    assert await worker.take("b") == []
    await end(worker, "a")
    await end(worker, "b")
    assert (await read(store, kept)).state == "succeeded"


async def test_old_flows_are_removed_and_live_ones_stay(store: Store, worker: Worker, clock: ManualClock) -> None:
    old, live = flow(node("a", keeps=True)), flow(node("b"))
    await store.add_flow(old)
    await store.add_flow(live)
    await end(worker, "a", result=b"1")
    clock.advance(60)
    assert await store.prune_flows(clock.now(), 10) == 1
    assert await store.flows([old.id]) == [None]
    assert await store.flow_values(old.id, 0) == []
    assert (await states(store, live))["b"] == "running"
    assert await store.prune_flows(clock.now(), 10) == 0


async def test_values_outlive_the_tasks_that_returned_them(store: Store, worker: Worker, clock: ManualClock) -> None:
    choice = flow(node("ask", keeps=True), node("slow"), node("yes", on("ask", "returned", 1), on("slow")))
    await store.add_flow(choice)
    await end(worker, "ask", result=b"1")
    assert await store.delete(await tasks_of(store, choice, "ask"))
    await end(worker, "slow")
    assert (await states(store, choice))["yes"] == "running"


def mapped(*, tolerate: float = 0) -> NewFlow:
    """Return a flow that lists, maps over the list, and joins."""
    over = NodePlan(name="part", handler="part", needs=(on("list"),), members=0, group=True, tolerate=tolerate, reads=True, each=("list",))
    each = flow(node("list", keeps=True), msgspec.structs.replace(over, keeps=True), node("join", on("part")))
    task = msgspec.structs.replace(new_task("part"), payload=b'{"item":{"$item":[]}}')
    return msgspec.structs.replace(each, tasks=[each.tasks[0], [task], each.tasks[2]])


async def payloads(store: Store, flow: NewFlow, name: str) -> list[bytes]:
    found = await store.get(await tasks_of(store, flow, name))
    return [record.payload for record in found if record is not None]


@pytest.mark.parametrize("length", [0, 1, PORTION + 1])
async def test_a_map_has_a_member_for_each_item_of_a_list(store: Store, worker: Worker, hire: Hire, length: int) -> None:
    each = mapped()
    await store.add_flow(each)
    assert (await states(store, each))["part"] == "waiting"
    await end(worker, "list", result=msgspec.json.encode(list(range(length))))
    assert (await read(store, each)).nodes[1].members == length
    assert await payloads(store, each, "part") == [b'{"item":%d}' % item for item in range(length)]
    another = await hire()
    tasks = await another.take("part") if length else []
    await store.settle(another.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in tasks])
    assert await states(store, each) == {"list": "succeeded", "part": "succeeded", "join": "running", "": "running"}


@pytest.mark.parametrize(("result", "why"), [(b'{"a":1}', "takes a list"), (b"null", "takes a list")])
async def test_a_map_over_something_else_fails(store: Store, worker: Worker, result: bytes, why: str) -> None:
    each = mapped()
    await store.add_flow(each)
    await end(worker, "list", result=result)
    assert await states(store, each) == {"list": "succeeded", "part": "failed", "join": "skipped", "": "failed"}
    assert why in (await read(store, each)).nodes[1].error


async def test_some_members_of_a_map_may_fail(store: Store, worker: Worker) -> None:
    each = mapped(tolerate=0.5)
    await store.add_flow(each)
    await end(worker, "list", result=b"[1,2]")
    await end(worker, "part", State.FAILED)
    await end(worker, "part", result=b"7")
    assert (await states(store, each))["part"] == "succeeded"
    assert [kept.data for kept in await store.flow_values(each.id, 1)] == [b"7"]


async def test_a_node_runs_again_with_all_that_follows_in_its_next_round(store: Store, worker: Worker) -> None:
    each = mapped()
    await store.add_flow(each)
    await end(worker, "list", result=b"[1,2,3]")
    first = await tasks_of(store, each, "part")
    assert await store.rerun_flow(each.id, 0) is FlowVerdict.REFUSED, "members live"
    assert await store.rerun_flow(each.id, 2) is FlowVerdict.REFUSED, "it has not run"
    await end(worker, "part", State.FAILED)
    for _ in range(2):
        await end(worker, "part", result=b"1")
    assert (await states(store, each))[""] == "failed"
    for length in (1, 4):  # shorter and longer than before
        assert await store.rerun_flow(each.id, 0) is FlowVerdict.CHANGED
        assert await states(store, each) == {"list": "running", "part": "waiting", "join": "waiting", "": "running"}
        assert await store.flow_values(each.id, 1) == []
        await end(worker, "list", result=msgspec.json.encode(list(range(length))))
        assert len(await tasks_of(store, each, "part")) == length
        for _ in range(length):
            await end(worker, "part", result=b"2")
        await end(worker, "join")
        assert (await states(store, each))[""] == "succeeded"
        assert len(await store.flow_values(each.id, 1)) == length
    assert list((await read(store, each)).rounds) == [3, 3, 3]
    assert not {*first} & {*await tasks_of(store, each, "part")}
    assert len([found for found in await store.get(first) if found is not None]) == 3, "they stay readable"
    assert await store.rerun_flow(new_id(), 0) is FlowVerdict.UNKNOWN


async def test_a_task_of_an_earlier_round_cannot_be_retried(store: Store, worker: Worker) -> None:
    chain = flow(node("a"), node("b", on("a")))
    await store.add_flow(chain)
    await end(worker, "a", State.FAILED)
    former = await tasks_of(store, chain, "a")
    assert await store.rerun_flow(chain.id, 0) is FlowVerdict.CHANGED
    assert await store.retry(former) == [ChangeVerdict.REFUSED]
    await end(worker, "a")
    assert (await states(store, chain))["b"] == "running"


async def test_one_live_flow_has_a_key(store: Store, worker: Worker) -> None:
    def keyed(name: str = "flow", if_exists: str = "error") -> NewFlow:
        return msgspec.structs.replace(flow(node("a")), key="k", name=name, if_exists=if_exists)

    first = await store.add_flow(keyed())
    with pytest.raises(DuplicateKey, match="has the key 'k'") as refused:
        await store.add_flow(keyed())
    assert refused.value.task_id == first.id
    assert (await store.add_flow(keyed(if_exists="keep"))).id == first.id
    other = await store.add_flow(keyed("other"))
    assert (other.id != first.id, other.key) == (True, "k")
    await end(worker, "a", State.FAILED)
    second = await store.add_flow(keyed())
    assert await store.retry_flow(first.id) is FlowVerdict.DUPLICATE
    assert await store.rerun_flow(first.id, 0) is FlowVerdict.DUPLICATE
    await store.stop_flow(second.id, "cancel")
    assert await store.retry_flow(first.id) is FlowVerdict.CHANGED
    with pytest.raises(DuplicateKey):
        await store.add_flow(keyed())


async def damage(store: Store, statement: str) -> None:
    """Change the tables of flows behind the store's back."""
    if not hasattr(store, "_address"):
        await store._write(lambda connection: connection.execute(statement.replace("duetime.", "duetime_")).close())  # type: ignore[attr-defined]
    else:
        await store._opened.rows(in_schema(statement, store._address.schema))  # type: ignore[attr-defined]


async def test_damaged_flows_are_found_and_repaired(store: Store, worker: Worker) -> None:
    await silent(store)
    lost, stuck, gone = flow(node("part", members=2), node("join", on("part"))), flow(node("a")), flow(node("old"))
    for each in (lost, stuck, gone):
        await store.add_flow(each)
    await end(worker, "part")
    assert await store.inspect_flows(repair=False) == []
    await damage(store, f"delete from duetime.arrival where flow = '{lost.id}'")
    await end(worker, "a")
    await damage(store, f"update duetime.node set ended = 1 where flow = '{stuck.id}'")
    await damage(store, f"delete from duetime.arrival where flow = '{stuck.id}'")
    await damage(store, f"delete from duetime.flow where id = '{gone.id}'")
    found = {(problem.kind, problem.subject) for problem in await store.inspect_flows(repair=False)}
    assert found == {("wrong count", lost.id), ("stuck flow", stuck.id), ("remains of a flow", gone.id)}
    assert (await read(store, stuck)).state == "running", "looking changes nothing"
    assert all(problem.repaired for problem in await store.inspect_flows(repair=True))
    assert await store.inspect_flows(repair=False) == []
    assert (await read(store, stuck)).state == "succeeded"
    assert (await states(store, lost))["join"] == "waiting"
    await end(worker, "part")
    await store.advance_flows()
    assert (await states(store, lost))["join"] == "running"
    assert [(each.name, each.state, each.number) for each in await store.flow_counts()] == [
        ("flow", "running", 1),
        ("flow", "succeeded", 1),
    ]


async def silent(store: Store) -> None:
    """Let nobody look after a commit any more, as if the process had died there."""

    async def nothing(flows: Sequence[str] | None = None) -> None:
        return

    store._look = nothing  # type: ignore[attr-defined]


async def test_the_duty_alone_suffices(store: Store, worker: Worker) -> None:
    await silent(store)
    chord = flow(node("part", members=3), node("join", on("part")), node("last", on("join")))
    await store.add_flow(chord)
    for name in ("part", "part", "part", "join", "last"):
        await end(worker, name)
        assert await store.advance_flows() == 1
        assert await store.advance_flows() == 0
    assert (await read(store, chord)).state == "succeeded"


async def test_the_duty_finishes_a_stop_and_the_making_of_a_group(store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    await silent(store)
    again = flow(node("again"))
    await store.add_flow(again)
    await end(worker, "again")
    assert await store.advance_flows() == 1

    async def nothing(*_: object) -> None:
        return

    with monkeypatch.context() as patch:
        patch.setattr(store, "_go_on", nothing)
        patch.setattr(store, "_follow_up", nothing, raising=False)
        patch.setattr(store, "_sweep_flow", nothing)
        chord = flow(node("part", members=PORTION + 1))
        await store.add_flow(chord)
        assert len(await tasks_of(store, chord, "part")) == PORTION
        assert await store.rerun_flow(again.id, 0) is FlowVerdict.CHANGED
        each = mapped()
        await store.add_flow(each)
        await end(worker, "list", result=b"[1]")
        two = flow(node("a"))
        await store.add_flow(two)
        await store.stop_flow(two.id, "cancel")
    assert (await states(store, two))[""] == "running"
    assert await store.advance_flows() >= 2
    assert len(await tasks_of(store, again, "again")) == 1
    assert len(await tasks_of(store, each, "part")) == 1
    assert len(await tasks_of(store, chord, "part")) == PORTION + 1
    assert (await states(store, two))[""] == "cancelled"
    assert await store.advance_flows() == 0


async def test_two_that_end_the_last_members_at_once_open_the_join_once(store: Store, another: Another, hire: Hire) -> None:
    other = await another()
    workers = await hire(store), await hire(other)
    for number in range(5):
        chord = flow(node("part", members=2), node("join", on("part")))
        await store.add_flow(chord)
        claimed = [await each.take_one("part") for each in workers]
        await asyncio.gather(*(each.end(task, State.SUCCEEDED) for each, task in zip(workers, claimed, strict=True)))
        assert (await states(store, chord))["join"] == "running", number
        assert len(await tasks_of(store, chord, "join")) == 1
        await end(workers[0], "join")


KINDS = ("succeeded", "failed", "ended", "not_failed")
ENDS = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


@st.composite
def graphs(draw: st.DrawFn) -> list[NodePlan]:
    """Draw up to six nodes, each of which may wait for some before it."""
    nodes: list[NodePlan] = []
    for number in range(draw(st.integers(1, 6))):
        earlier = [plan.name for plan in nodes]
        single = st.builds(on, st.sampled_from(earlier or ["-"]), st.sampled_from(KINDS))
        several = st.lists(single, min_size=1, max_size=3).flatmap(
            lambda of: st.integers(1, len(of)).map(lambda least: Condition(least=least, of=tuple(of)))
        )
        needs = draw(st.lists(single | several, max_size=2)) if earlier else []
        members = draw(st.sampled_from((1, 1, 0, 3)))
        nodes.append(node(f"n{number}", *needs, members=members, tolerate=draw(st.sampled_from((0, 1)))))
    return nodes


def expected(nodes: Sequence[NodePlan], ends: dict[str, list[State]]) -> dict[str, str]:
    """Say in what state each node must be: a model that knows nothing but how the members have ended."""
    said: dict[str, str] = {}

    def holds(condition: Condition) -> bool | None:
        if condition.of:
            parts = [holds(part) for part in condition.of]
            yes, open_ones = sum(part is True for part in parts), sum(part is None for part in parts)
            return True if yes >= condition.least else (None if yes + open_ones >= condition.least else False)
        state = said[condition.node]
        if state in ("waiting", "running"):
            return None
        allowed = {"ended": "succeeded failed skipped", "not_failed": "succeeded skipped"}.get(condition.on, condition.on)
        return state in allowed.split()

    for plan in nodes:
        verdicts = [holds(condition) for condition in plan.needs]
        if any(verdict is False for verdict in verdicts):
            said[plan.name] = "skipped"
        elif any(verdict is None for verdict in verdicts):
            said[plan.name] = "waiting"
        elif len(ends[plan.name]) < plan.members:
            said[plan.name] = "running"
        else:
            failed = sum(end is not State.SUCCEEDED for end in ends[plan.name])
            said[plan.name] = "failed" if failed > plan.tolerate else "succeeded"
    return said


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.randoms(use_true_random=False))
async def test_any_graph_goes_on_as_a_dictionary_says(store: Store, worker: Worker, nodes: list[NodePlan], chance: random.Random) -> None:
    while await store.advance_flows():
        pass  # Hypothesis gives up some examples in the middle, and what these have left must not count in the next
    each = flow(*nodes)
    handler = f"{each.id} ".__add__  # of its own in each example: what a failing one leaves must not run in the next
    tasks = [[msgspec.structs.replace(task, handler=handler(task.handler)) for task in group] for group in each.tasks]
    await store.add_flow(msgspec.structs.replace(each, tasks=tasks))
    ends: dict[str, list[State]] = {plan.name: [] for plan in nodes}
    while True:
        wanted = expected(nodes, ends)
        found = await states(store, each)
        assert {name: state for name, state in found.items() if name} == wanted
        running = sorted(name for name, state in wanted.items() if state == "running")
        if not running:
            break
        name = chance.choice(running)
        how = chance.choice(ENDS)
        await end(worker, handler(name), how)
        ends[name].append(how)
    assert found[""] != "running"
    assert await store.advance_flows() == 0
