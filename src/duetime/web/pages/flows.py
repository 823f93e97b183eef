"""Flows: stored graphs of tasks. The list, and one flow: how far each node is, why, its tasks, and cancelling and retrying all of it."""

from __future__ import annotations

from typing import Any, cast, get_args

import msgspec

from duetime.api.flows import may_see_flow, visible_flow, visible_results
from duetime.client.flows import Flow, NodeInfo
from duetime.clock import SECOND, to_instant
from duetime.errors import FlowNotFound, InvalidValue
from duetime.model.access import Scope
from duetime.model.flow import FlowState
from duetime.model.task import TaskRecord, shown
from duetime.web.flow_picture import picture
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import Visit
from duetime.web.words import json_text

PER_PAGE = 50
MEMBERS = 25
ITEMS = 20  # of a result that was yielded
STATES: tuple[str, ...] = get_args(FlowState)
QUIET_AFTER = 15 * SECOND  # after its end a flow is not looked at again


class Row(msgspec.Struct, frozen=True):
    """A flow in the list: how many of its tasks have ended, and the node that says most about it."""

    flow: Flow[Any]
    ended: int
    members: int
    failed: int
    telling: NodeInfo | None


async def view(visit: Visit) -> View:
    state, name, cursor = (visit.query.get(field) or None for field in ("state", "name", "cursor"))
    if state is not None and state not in STATES:
        raise InvalidValue(f"state must be one of {', '.join(STATES)}, got {state[:40]!r}")
    page = await visit.app.flows.list(state=cast(FlowState | None, state), name=name, limit=PER_PAGE, cursor=cursor)
    rows = [_row(each) for each in page.items if may_see_flow(visit.call, each)]
    facts = {
        "rows": rows,
        "state": state,
        "name": name or "",
        "states": [(each, visit.here(state=None if each == state else each, cursor=None), each == state) for each in STATES],
        "next": None if page.next is None else visit.here(cursor=page.next),
        "first": cursor is None,
    }
    return View(title="Flows", facts=facts, every=2.0 if any(not row.flow.final for row in rows) else 5.0)


def _row(flow: Flow[Any]) -> Row:
    telling = next((node for node in flow.nodes if node.state == ("running" if flow.state == "running" else "failed")), None)
    return Row(flow, _sum(flow, "ended"), _sum(flow, "members"), _sum(flow, "failed"), telling)


def _sum(flow: Flow[Any], count: str) -> int:
    return sum(getattr(node, count) for node in flow.nodes)


async def _found(visit: Visit) -> Flow[Any]:
    """Return the flow in the address. One with handlers that the person may not see is answered as one that does not exist."""
    found = await visit.app.flows.get(visit.path["flow"])
    if not may_see_flow(visit.call, found):
        raise FlowNotFound(f"there is no flow {visit.path['flow'][:80]}: it was never submitted, or it has been pruned")
    return visible_flow(visit.call, found)


async def view_one(visit: Visit) -> View:
    flow = await _found(visit)
    chosen = _chosen(visit, flow)
    asked = visit.query.get("first", "")
    first = int(asked) if asked.isdecimal() and len(asked) < 8 else 0
    members = await _members(visit, flow, chosen.name, first)
    may_operate = visit.may("operate") and all(visit.may("operate", name) for node in flow.nodes for name in node.handler.split(", "))
    facts = {
        "flow": flow,
        "ended": _sum(flow, "ended"),
        "members": _sum(flow, "members"),
        "failed": _sum(flow, "failed"),
        "chosen": chosen,
        "tasks": [(position, shown(visit.hiding.of(record))) for position, record in members],
        "first": first,
        "previous": visit.here(first=max(0, first - MEMBERS)) if first else None,
        "next": visit.here(first=first + MEMBERS) if first + MEMBERS < chosen.made else None,
        "result": await _result(visit, flow),
        "reasons": _reasons(flow),
        "picture": picture(flow, lambda name: visit.here(node=name, first=None)),
        "may_cancel": may_operate and not flow.final and flow.stopping is None,
        "may_rerun": may_operate and chosen.state not in ("waiting", "skipped") and chosen.made <= chosen.ended,
        "may_retry": may_operate and flow.state in ("failed", "cancelled"),
    }
    ended = flow.finished_at is not None and visit.now - to_instant(flow.finished_at) > QUIET_AFTER
    return View(title=f"{flow.name} {flow.id[:8]}", facts=facts, crumbs=(("/flows", "Flows"),), every=None if ended else 1.0)


async def _result(visit: Visit, flow: Flow[Any]) -> str | None:
    """Return the result of a flow, of one that was yielded the first items."""
    if flow.result_items is None or flow.result_of is None:
        return None if flow.result is None else json_text(flow.result)
    page = visible_results(visit.call, await visit.app.flows.results_page(flow, flow.result_of, limit=ITEMS))
    return json_text([msgspec.json.decode(item) for item in page.items])


def _chosen(visit: Visit, flow: Flow[Any]) -> NodeInfo:
    """Return the node whose tasks are shown: the one in the address, or the one that a person would ask about first."""
    asked = visit.query.get("node")
    if asked is not None:
        return flow.node(asked)
    for state in ("failed", "running"):
        for node in flow.nodes:
            if node.state == state:
                return node
    return flow.nodes[-1]


async def _members(visit: Visit, flow: Flow[Any], node: str, first: int) -> list[tuple[int, TaskRecord]]:
    found = await visit.app.flows.members(flow, node, first=first, limit=MEMBERS)
    records = await visit.app.client.records([each.task for each in found])
    return [(each.position, record) for each, record in zip(found, records, strict=True) if record is not None]


def _reasons(flow: Flow[Any]) -> list[tuple[str, str]]:
    """Return why the flow is where it is: each node that says something about that, with its sentence."""
    telling = {"running": ("failed", "running"), "failed": ("failed",), "cancelled": ("failed", "skipped"), "succeeded": ()}[flow.state]
    found = [(node.name, node.why) for state in telling for node in flow.nodes if node.state == state]
    return found[:5]


# ---- actions ----


async def cancel(visit: Visit) -> Done:
    return Done(said=f"The flow is {await _changed(visit, 'cancel')}: nothing of it starts any more, and what runs is told to end.")


async def retry(visit: Visit) -> Done:
    return Done(said=f"The flow is {await _changed(visit, 'retry')}: it goes on from the tasks that did not succeed.")


async def rerun(visit: Visit) -> Done:
    node = visit.form.get("node", "")
    return Done(said=f"The flow is {await _changed(visit, 'rerun', node)}: {node} and what follows from it run again with new tasks.")


async def _changed(visit: Visit, verb: str, node: str = "") -> str:
    async with visit.acting(f"flows.{verb}", visit.path["flow"][:100]) as act:
        flow = await _found(visit)
        for name in {name for node in flow.nodes for name in node.handler.split(", ")}:
            visit.allow(Scope.OPERATE, name)
        flows = visit.app.flows
        if verb == "rerun":
            changed = await flows.rerun(flow, node)
        else:
            changed = await (flows.cancel(flow) if verb == "cancel" else flows.retry(flow))
        act.detail = changed.state
    return "being cancelled" if verb == "cancel" and not changed.final else changed.state


PAGE = Page(path="/flows", template="flows.html", view=view, name="Flows", letter="l", icon="flows")
ONE = Page(
    path="/flows/{flow}",
    template="flow.html",
    view=view_one,
    actions={"cancel": Action(run=cancel), "retry": Action(run=retry), "rerun": Action(run=rerun)},
)
