"""Flows in JSON. `Flow` is a flow as it is shown."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.clock import SECOND
from duetime.model.flow import MAX_NODES, Condition, FlowState, Kind
from duetime.model.flow_values import VALUE
from duetime.model.query import MAX_PAGE
from duetime.store.flows import VALUES_AT_ONCE, NewFlow
from duetime.wire.fields import MOST_ITEMS, MOST_WAIT, Cursor, Lasting, Name
from duetime.wire.tasks import NewTaskBody, RawNewTask, body_of

Wait = Annotated[float, Meta(ge=0, le=MOST_WAIT, description="Seconds to wait until the flow has ended.")]


class NeedBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """How another node must have ended, or how many of several conditions must hold (`least` of `of`)."""

    node: Name | UnsetType = UNSET
    on: Kind = "succeeded"
    value: Any = UNSET
    least: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    of: Annotated[list[NeedBody], Meta(min_length=1, max_length=MAX_NODES)] | UnsetType = UNSET


NodeNeeds = Annotated[list[Name | NeedBody], Meta(max_length=MAX_NODES, description="Names of nodes that must succeed, or conditions.")]


class _Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    name: Name
    needs: NodeNeeds = []
    tolerate: Annotated[float, Meta(ge=0, description="How many tasks of a group may fail, or a share below 1.")] = 0


class NodeBody(_Node, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """A node: one task, a group of tasks, or with `map` a group with a task for each item of a list.

    `undo` is a task that takes back what the node's one task did, if that succeeded and the flow fails or is cancelled.
    """

    task: NewTaskBody | UnsetType = UNSET
    map: Annotated[Any, Meta(description='Makes it a map: {"$value": …} names the list, and the task takes {"$item": []}.')] = UNSET
    tasks: Annotated[list[NewTaskBody], Meta(max_length=MOST_ITEMS)] | UnsetType = UNSET
    undo: NewTaskBody | UnsetType = UNSET


class RawNode(_Node, frozen=True, kw_only=True, omit_defaults=True):
    """The same as a client sends it."""

    task: RawNewTask | UnsetType = UNSET
    map: Any = UNSET
    tasks: list[RawNewTask] | UnsetType = UNSET
    undo: RawNewTask | UnsetType = UNSET


class _Flow(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    name: Name = "flow"
    result: Name | UnsetType = UNSET
    on_failure: Literal["continue", "stop"] = "continue"
    deadline: Lasting | UnsetType = UNSET
    key: Annotated[Name | UnsetType, Meta(description="At most one live flow of a name has it.")] = UNSET
    if_exists: Annotated[Literal["error", "keep"], Meta(description="What becomes of a flow whose key is taken.")] = "error"
    meta: Annotated[dict[str, str], Meta(description="A small map of texts that travels with all its tasks.")] | UnsetType = UNSET


class FlowBody(_Flow, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """A flow to submit. `result` names the node whose result is the flow's; `deadline` is seconds from now."""

    nodes: Annotated[list[NodeBody], Meta(min_length=1, max_length=MAX_NODES)]


class RawFlow(_Flow, frozen=True, kw_only=True, omit_defaults=True):
    """The same as a client sends it."""

    nodes: list[RawNode]


class FlowQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long to wait for the end of a flow."""

    wait: Wait = 0.0


class RerunBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """From which node on a flow runs again."""

    node: Annotated[Name, Meta(description="The node that runs again, with all that follows from it.")]


class FlowListQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which flows."""

    state: FlowState | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    cursor: Cursor | UnsetType = UNSET


class MemberQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which tasks of a node: those from a position on."""

    first: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class ResultsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which results of a node: those from a position on."""

    first: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=VALUES_AT_ONCE, description="How many at most; about a megabyte ends a page, too.")] = (
        VALUES_AT_ONCE
    )


def condition_of(need: str | NeedBody) -> Condition:
    """Return a condition as a body says it."""
    if isinstance(need, str):
        return Condition(need)
    if need.of is not UNSET:
        of = tuple(condition_of(each) for each in need.of)
        return Condition(least=len(of) if need.least is UNSET else need.least, of=of)
    return Condition("" if need.node is UNSET else need.node, need.on, None if need.value is UNSET else need.value)


def need_of(condition: Condition) -> str | NeedBody:
    if condition.of:
        return NeedBody(least=condition.least, of=[_whole(each) for each in condition.of])
    return condition.node if condition.on == "succeeded" else _whole(condition)


def _whole(condition: Condition) -> NeedBody:
    if condition.of:
        return NeedBody(least=condition.least, of=[_whole(each) for each in condition.of])
    return NeedBody(node=condition.node, on=condition.on, value=condition.value if condition.on == "returned" else UNSET)


def flow_body(flow: NewFlow) -> RawFlow:
    """Return the body that submits a flow."""
    undos = {plan.undoes: tasks[0] for plan, tasks in zip(flow.graph.nodes, flow.tasks, strict=True) if plan.undoes}
    nodes = [
        RawNode(
            name=plan.name,
            needs=[need_of(each) for each in plan.needs],
            tolerate=plan.tolerate,
            task=UNSET if plan.group and not plan.each else body_of(tasks[0]),
            tasks=[body_of(task) for task in tasks] if plan.group and not plan.each else UNSET,
            map={VALUE: list(plan.each)} if plan.each else UNSET,
            undo=body_of(undos[plan.name]) if plan.name in undos else UNSET,
        )
        for plan, tasks in zip(flow.graph.nodes, flow.tasks, strict=True)
        if not plan.undoes
    ]
    return RawFlow(
        name=flow.name,
        nodes=nodes,
        result=UNSET if flow.graph.result is None else flow.graph.result,
        on_failure=flow.graph.on_failure,
        deadline=UNSET if flow.deadline_in is None else flow.deadline_in / SECOND,
        key=UNSET if flow.key is None else flow.key,
        if_exists=flow.if_exists,
        meta=UNSET if flow.meta is None else dict(flow.meta),
    )
