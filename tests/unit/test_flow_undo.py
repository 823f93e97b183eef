"""Undoing in flows: what has succeeded is taken back in reverse order, if and only if the flow does not succeed."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidValue
from duetime.model.flow import Condition, FlowFacts, Graph, NodeFacts, NodePlan, Stopping, after, check_graph, decide


@st.composite
def sagas(draw: st.DrawFn) -> Graph:
    """Draw a graph in which some nodes of one task can be undone."""
    nodes: list[NodePlan] = []
    for number in range(draw(st.integers(1, 6))):
        earlier = [plan.name for plan in nodes if not plan.undoes]
        one = st.builds(Condition, st.sampled_from(earlier or ["-"]), st.sampled_from(("succeeded", "failed", "ended", "not_failed")))
        needs = tuple(draw(st.lists(one, max_size=2))) if earlier else ()
        many = draw(st.booleans()) and draw(st.booleans())
        name = f"n{number}"
        nodes.append(NodePlan(name=name, needs=needs, members=3 if many else 1, group=many))
        if not many and draw(st.booleans()):
            nodes.append(NodePlan(name=f"undo-{name}", undoes=name))
    return check_graph(Graph(nodes=tuple(nodes), on_failure=draw(st.sampled_from(("continue", "stop")))))


@given(sagas(), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_what_succeeded_is_undone_in_reverse_order_if_the_flow_does_not_succeed(
    graph: Graph, chance: random.Random, cancels: bool, undos_fail: bool
) -> None:
    facts = [NodeFacts() for _ in graph.nodes]
    number_of = {plan.name: number for number, plan in enumerate(graph.nodes)}
    stopping: Stopping | None = None
    ended: list[int] = []
    failing = False
    while True:
        step = decide(FlowFacts(graph=graph, nodes=facts, stopping=stopping), failing=failing)
        stopping, failing = step.stopping, False
        for opened in step.opens:
            facts[opened.node] = msgspec.structs.replace(facts[opened.node], opened=opened.first + opened.count)
        live = [number for number, known in enumerate(facts) if known.opened > known.ended]
        for number in live:
            plan = graph.nodes[number]
            if plan.undoes:
                assert all(graph.nodes[other].undoes for other in live), "nothing else runs any more"
                follow = after(graph, number_of[plan.undoes])
                assert not any(graph.nodes[other].undoes for other in live if number_of[graph.nodes[other].undoes] in follow[1:])
        if not live:
            break
        number = chance.choice(live)
        fails = chance.random() < (0.4 if not graph.nodes[number].undoes else 0.4 * undos_fail)
        facts[number] = msgspec.structs.replace(facts[number], ended=facts[number].ended + 1, failed=facts[number].failed + fails)
        failing = fails
        ended.append(number)
        if cancels and chance.random() < 0.2:
            stopping = "cancel"
    states = dict(zip((plan.name for plan in graph.nodes), step.nodes, strict=True))
    assert step.state != "running"
    for plan in graph.nodes:
        if plan.undoes:
            ran = states[plan.name] in ("succeeded", "failed")
            assert ran == (step.state != "succeeded" and states[plan.undoes] == "succeeded")
            assert states[plan.name] != "failed" or step.state == "failed"
    order = [graph.nodes[number].undoes for number in ended if graph.nodes[number].undoes]
    for index, name in enumerate(order):
        later = {graph.nodes[number].name for number in after(graph, number_of[name])[1:]}
        assert not later & set(order[index + 1 :]), "what follows is undone before"


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([NodePlan(name="u", undoes="a")], "must be another node"),
        ([NodePlan(name="a", members=2, group=True), NodePlan(name="u", undoes="a")], "must be another node of one task"),
        ([NodePlan(name="a"), NodePlan(name="u", undoes="a"), NodePlan(name="v", undoes="u")], "must be another node"),
        ([NodePlan(name="a"), NodePlan(name="u", undoes="a"), NodePlan(name="b", needs=(Condition("u"),))], "nothing can wait for"),
    ],
)
def test_what_cannot_be_undone_is_refused(nodes: list[NodePlan], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        check_graph(Graph(nodes=tuple(nodes)))
