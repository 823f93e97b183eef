"""Flows: stored graphs of nodes, each one task or a group of tasks, and the rule that decides what goes on in them.

The rule is given all that is known of a flow and returns what to write. It evaluates the whole graph from the counts of its nodes each
time, so a member that lives again (a retry) takes back whatever followed from its failure, and nothing has to be undone step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from duetime.errors import InvalidValue

MAX_NODES = 1_000
MAX_MEMBERS = 100_000
MAX_MAPPED = 1_000_000  # members of a map: the items of one list
PORTION = 1_000  # members that one step makes: bounds the length of a transaction
FLOW, NODE, TAKES = "flow", "node", "takes"  # in the meta of a member: the id of its flow, its node, and whose values are in its payload

ENDED = "duetime.flow."  # before the id of a flow: the signal that tells of its end, if a task waits for that

Kind: TypeAlias = Literal["succeeded", "failed", "ended", "not_failed", "returned"]
NodeState: TypeAlias = Literal["waiting", "running", "succeeded", "failed", "skipped"]
FlowState: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]
Stopping: TypeAlias = Literal["cancel", "failure", "deadline"]

_DONE = frozenset({"succeeded", "failed", "skipped"})
_MET: Mapping[Kind, frozenset[str]] = {
    "succeeded": frozenset({"succeeded"}),
    "failed": frozenset({"failed"}),
    "ended": _DONE,
    "not_failed": frozenset({"succeeded", "skipped"}),
    "returned": frozenset({"succeeded"}),
}


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node waits for: how another node ended, or `least` of several conditions."""

    node: str = ""
    on: Kind = "succeeded"
    value: Any = None
    least: int = 0
    of: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        """Refuse `if node.failed:`, which would look as if it asked how the node has ended."""
        raise TypeError("a condition is what another node may need, not how this one ended; ask the stored flow: await app.flows.get(flow)")


class NodePlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node of a graph: what it waits for, how many members it has, and how many of them may fail.

    `handler` is what its members are of, for people to read. `keeps`: somebody reads what its members return. `reads`: their payloads have
    positions for what others return. `each`: it is a map, with a member for each item of what another node returned, or of a part of that.
    `undoes`: it runs only if the flow fails or is cancelled, and takes back what that node did.
    """

    name: str
    handler: str = ""
    needs: tuple[Condition, ...] = ()
    members: int = 1
    group: bool = False
    tolerate: float = 0
    keeps: bool = False
    reads: bool = False
    each: tuple[str | int, ...] = ()
    undoes: str = ""


class Graph(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The nodes of a flow in an order in which each stands after those that it waits for, and which one's result is the flow's.

    `awaited`: the task of the flow's own id waits for its end.
    """

    nodes: tuple[NodePlan, ...]
    result: str | None = None
    on_failure: Literal["continue", "stop"] = "continue"
    awaited: bool = False


class NodeFacts(msgspec.Struct, frozen=True):
    """What is known of a node: how many of its members were made, have ended and have failed. `error`: they could not be made.

    `members`: how many a map has, once that is known. `value`: what a node with one member returned, if somebody reads it. `items`: it has
    yielded so many, and the value only says that.
    """

    opened: int = 0
    ended: int = 0
    failed: int = 0
    error: str = ""
    value: bytes | None = None
    members: int | None = None
    items: int | None = None


class FlowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the rule needs to know of a flow."""

    graph: Graph
    nodes: Sequence[NodeFacts]
    stopping: Stopping | None = None


class Open(msgspec.Struct, frozen=True):
    """Members to make: of a node, by number, from a position on."""

    node: int
    first: int
    count: int


class Step(msgspec.Struct, frozen=True):
    """What to write of a flow: its state, those of its nodes, and the members to make. `more`: a further step is needed at once.

    `measures` are maps that are free, whose lists are to be measured.
    """

    state: FlowState
    nodes: tuple[NodeState, ...]
    opens: tuple[Open, ...] = ()
    stopping: Stopping | None = None
    more: bool = False
    measures: tuple[int, ...] = ()


def size_of(plan: NodePlan, known: NodeFacts) -> int | None:
    """Return how many members a node has; None for a map of which that is not known yet."""
    return known.members if plan.each else plan.members


def tolerated(plan: NodePlan, known: NodeFacts) -> int:
    """Return how many members may fail: `tolerate` is a number, or a share below 1."""
    return int(plan.tolerate * (size_of(plan, known) or 0) + 1e-9) if plan.tolerate < 1 else int(plan.tolerate)


def evaluate(facts: FlowFacts) -> list[NodeState]:
    """Return the state of each node, as it follows from the counts."""
    states: dict[str, NodeState] = {}
    values: dict[str, Any] = {}
    undos: list[tuple[int, NodePlan, NodeFacts]] = []
    undone = is_undone(facts.graph, facts.nodes)
    for number, (plan, known) in enumerate(zip(facts.graph.nodes, facts.nodes, strict=True)):
        if plan.undoes:
            undos.append((number, plan, known))
            continue
        states[plan.name] = _state(plan, known, states, values, facts.stopping)
        if undone and states[plan.name] in ("waiting", "running") and not known.opened:
            states[plan.name] = "skipped"  # a member that was retried by itself changes nothing of that
        if states[plan.name] == "succeeded" and known.value is not None:
            values[plan.name] = msgspec.json.decode(known.value)
    if undos:
        _evaluate_undos(facts, undos, states)
    return [states[plan.name] for plan in facts.graph.nodes]


def _evaluate_undos(facts: FlowFacts, undos: Sequence[tuple[int, NodePlan, NodeFacts]], states: dict[str, NodeState]) -> None:
    """Add the states of the nodes that undo others: each runs when all else has ended, and after the undoing of what came later."""
    numbers = {plan.name: number for number, plan in enumerate(facts.graph.nodes)}
    outcome = _outcome(facts, states)
    undoing = outcome in ("failed", "cancelled") or is_undone(facts.graph, facts.nodes)
    by_target = {plan.undoes: plan.name for _, plan, _ in undos}
    for _, plan, known in sorted(undos, key=lambda undo: numbers[undo[1].undoes], reverse=True):
        if known.error or known.opened:
            states[plan.name] = "failed" if known.error else _progress(plan, known, None)
        elif outcome == "running":
            states[plan.name] = "waiting"
        elif not undoing or states[plan.undoes] != "succeeded":
            states[plan.name] = "skipped"
        else:
            later = [facts.graph.nodes[number].name for number in after(facts.graph, numbers[plan.undoes])[1:]]
            over = all(states[by_target[name]] in _DONE for name in later if name in by_target)
            states[plan.name] = "running" if over else "waiting"


def is_undone(graph: Graph, nodes: Sequence[NodeFacts]) -> bool:
    """Return whether the undoing of a flow has begun: then it does not succeed any more."""
    return any(plan.undoes and (known.opened or known.error) for plan, known in zip(graph.nodes, nodes, strict=True))


def decide(facts: FlowFacts, *, failing: bool = False) -> Step:
    """Decide what becomes of a flow. `failing`: members have failed since it was decided last, and only then a failure stops the others."""
    if failing and facts.stopping is None and facts.graph.on_failure == "stop" and _fails(facts):
        facts = msgspec.structs.replace(facts, stopping="failure")
    nodes = evaluate(facts)
    made = 0
    opens: list[Open] = []
    measures: list[int] = []
    more = False
    for number, (plan, known, state) in enumerate(zip(facts.graph.nodes, facts.nodes, nodes, strict=True)):
        if state != "running" or is_stopped(plan, facts.stopping):
            continue
        size = size_of(plan, known)
        if size is None:
            measures.append(number)
            continue
        if known.opened >= size:
            continue
        if made >= PORTION:
            more = True
            continue
        count = min(PORTION, size - known.opened)
        opens.append(Open(number, known.opened, count))
        made += count
        more = more or known.opened + count < size
    return Step(_flow_state(facts, nodes), tuple(nodes), tuple(opens), facts.stopping, more or bool(measures), tuple(measures))


def meets(condition: Condition, states: Mapping[str, NodeState], values: Mapping[str, Any]) -> bool | None:
    """Return whether a condition is met; None if that is not decided yet."""
    if condition.of:
        each = [meets(part, states, values) for part in condition.of]
        met = each.count(True)
        if met >= condition.least:
            return True
        return False if met + each.count(None) < condition.least else None
    state = states[condition.node]
    if state not in _DONE:
        return None
    if condition.on == "returned":
        return state == "succeeded" and values.get(condition.node) == condition.value
    return state in _MET[condition.on]


def mentioned(conditions: Sequence[Condition]) -> list[Condition]:
    """Return the single conditions within these."""
    return [single for each in conditions for single in (mentioned(each.of) if each.of else [each])]


def _state(
    plan: NodePlan, known: NodeFacts, states: Mapping[str, NodeState], values: Mapping[str, Any], stopping: Stopping | None
) -> NodeState:
    if known.error:
        return "failed"
    if known.opened:
        return _progress(plan, known, stopping)
    met = all_met(plan.needs, states, values)
    if met is False or is_stopped(plan, stopping):
        return "skipped"
    if met is None:
        return "waiting"
    return "succeeded" if size_of(plan, known) == 0 else "running"


def all_met(needs: Sequence[Condition], states: Mapping[str, NodeState], values: Mapping[str, Any]) -> bool | None:
    each = [meets(condition, states, values) for condition in needs]
    return False if False in each else None if None in each else True


def _progress(plan: NodePlan, known: NodeFacts, stopping: Stopping | None) -> NodeState:
    """Return the state of a node whose members were made, some or all of them; of a stopped one no more are."""
    size = size_of(plan, known) or 0
    awaited = known.opened if is_stopped(plan, stopping) else size
    if known.ended < awaited:
        return "running"
    lost = known.failed + (size - awaited)
    return "failed" if lost > tolerated(plan, known) else "succeeded"


def is_stopped(plan: NodePlan, stopping: Stopping | None) -> bool:
    """Return whether a stop ends this node: a cancel ends all, a failure or deadline leaves those alone that wait for failures.

    What undoes others is never stopped.
    """
    if plan.undoes:
        return False
    if stopping is None or stopping == "cancel":
        return stopping is not None
    return not any(single.on in ("failed", "ended") for single in mentioned(plan.needs))


def _fails(facts: FlowFacts) -> bool:
    plans = zip(facts.graph.nodes, facts.nodes, strict=True)
    return any((known.error or known.failed > tolerated(plan, known)) and not plan.undoes for plan, known in plans)


def _flow_state(facts: FlowFacts, nodes: Sequence[NodeState]) -> FlowState:
    """Return the state of a flow: how it ended, once nothing is left to be undone. What cannot be undone is a failure in any case."""
    by_name = dict(zip((plan.name for plan in facts.graph.nodes), nodes, strict=True))
    undos = [by_name[plan.name] for plan in facts.graph.nodes if plan.undoes]
    if any(state not in _DONE for state in undos):
        return "running"
    outcome = _outcome(facts, by_name)
    undone = outcome == "succeeded" and is_undone(facts.graph, facts.nodes)
    return "failed" if outcome != "running" and ("failed" in undos or undone) else outcome


def _outcome(facts: FlowFacts, by_name: Mapping[str, NodeState]) -> FlowState:
    """Return how a flow ends, apart from what undoes it."""
    nodes = [plan for plan in facts.graph.nodes if not plan.undoes]
    if any(by_name[plan.name] not in _DONE for plan in nodes):
        return "running"
    if facts.stopping == "cancel":
        return "cancelled"
    if facts.stopping is not None:
        return "failed"
    handled = {
        single.node
        for plan in nodes
        if by_name[plan.name] == "succeeded"
        for single in mentioned(plan.needs)
        if single.on in ("failed", "ended")
    }
    return "failed" if any(by_name[plan.name] == "failed" and plan.name not in handled for plan in nodes) else "succeeded"


def after(graph: Graph, node: int) -> list[int]:
    """Return a node and all that follow from it, by number, with what undoes them."""
    found = {graph.nodes[node].name}
    numbers = [node]
    for number, plan in enumerate(graph.nodes):
        if number > node and (plan.undoes in found or any(single.node in found for single in mentioned(plan.needs))):
            found.add(plan.name)
            numbers.append(number)
    return numbers


def check_graph(graph: Graph) -> Graph:
    """Check a graph and return it with its nodes in an order in which each stands after those that it waits for."""
    nodes = {plan.name: plan for plan in graph.nodes}
    if not nodes:
        raise InvalidValue("a flow needs at least one node")
    if len(graph.nodes) > MAX_NODES:
        raise InvalidValue(
            f"a flow has at most {MAX_NODES:,} nodes, got {len(graph.nodes):,}; put tasks of one kind into a group, which is one node"
        )
    if len(nodes) < len(graph.nodes):
        names = [plan.name for plan in graph.nodes]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue(f"two nodes are named {twice!r}; give one of them another name")
    for plan in graph.nodes:
        _check_node(plan, nodes)
    if graph.result is not None and graph.result not in nodes:
        raise InvalidValue(f"the result is that of {graph.result!r}, which is no node of this flow")
    if graph.result is not None and nodes[graph.result].undoes:
        raise InvalidValue(f"the result is that of {graph.result!r}, which only undoes another node")
    placed = _sorted(nodes)
    return msgspec.structs.replace(graph, nodes=tuple(sorted(placed, key=lambda plan: bool(plan.undoes))))  # what undoes stands last


def _check_node(plan: NodePlan, nodes: Mapping[str, NodePlan]) -> None:
    if plan.members > MAX_MEMBERS:
        raise InvalidValue(f"node {plan.name!r} has {plan.members:,} members, at most {MAX_MEMBERS:,} are allowed; make several groups")
    if plan.tolerate < 0:
        raise InvalidValue(f"tolerate is how many members of {plan.name!r} may fail, or a share below 1, got {plan.tolerate}")
    for each in plan.needs:
        _check_condition(plan.name, each, nodes)
    if plan.undoes and (plan.undoes not in nodes or nodes[plan.undoes].undoes or nodes[plan.undoes].group or plan.group or plan.needs):
        raise InvalidValue(f"node {plan.name!r} undoes {plan.undoes!r}, which must be another node of one task, and needs nothing else")


def _check_condition(name: str, condition: Condition, nodes: Mapping[str, NodePlan]) -> None:
    if condition.of:
        if not 1 <= condition.least <= len(condition.of):
            raise InvalidValue(f"node {name!r} needs at least {condition.least} of {len(condition.of)} conditions, which cannot be")
        for each in condition.of:
            _check_condition(name, each, nodes)
    elif condition.node not in nodes:
        raise InvalidValue(f"node {name!r} needs {condition.node!r}, which is no node of this flow")
    elif nodes[condition.node].undoes:
        raise InvalidValue(f"node {name!r} needs {condition.node!r}, which only undoes another node and which nothing can wait for")
    elif condition.on == "returned" and nodes[condition.node].group:
        raise InvalidValue(f"node {name!r} needs what {condition.node!r} returned, but that is a group, which returns no single value")


def _sorted(nodes: Mapping[str, NodePlan]) -> list[NodePlan]:
    """Put nodes behind those that they wait for, otherwise in the order in which they were given; refuse circles."""
    placed: dict[str, NodePlan] = {}
    path: dict[str, None] = {}
    for first in nodes:
        stack = [first]
        while stack:
            name = stack[-1]
            before = [each.node for each in mentioned(nodes[name].needs)] or [*filter(None, [nodes[name].undoes])]
            waits = [each for each in before if each not in placed]
            if name in placed:
                stack.pop()
            elif not waits:
                placed[stack.pop()] = nodes[name]
                path.pop(name, None)
            else:
                path[name] = None
                if waits[0] in path:
                    circle = [*list(path)[list(path).index(waits[0]) :], waits[0]]
                    raise InvalidValue(f"{' → '.join(reversed(circle))} is a circle: each waits for the one before it")
                stack.append(waits[0])
    return list(placed.values())
