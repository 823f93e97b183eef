"""Flows over HTTP: stored graphs of tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from duetime.api import intake
from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import IDEMPOTENCY, Route
from duetime.app.flows import taken_from
from duetime.client.flows import Flow, FlowList, MemberInfo
from duetime.clock import SECOND
from duetime.errors import DuplicateKey, FlowNotFound, InvalidValue
from duetime.ids import is_id, new_id
from duetime.model.access import Scope
from duetime.model.flow import Condition, Graph, NodePlan, check_graph, mentioned
from duetime.model.flow_values import VALUE, takes_item, unmarked
from duetime.model.hiding import BLANK
from duetime.model.task import NewTask, check_meta
from duetime.store.flows import FlowCount, NewFlow
from duetime.store.results import ResultsPage
from duetime.wire.fields import NoBody, NoQuery, given
from duetime.wire.flows import FlowBody, FlowListQuery, FlowQuery, MemberQuery, NodeBody, RerunBody, ResultsQuery, condition_of
from duetime.wire.problem import INVALID, KEY_REUSED, Fault
from duetime.wire.tasks import ReasonList

_body = msgspec.json.Decoder(FlowBody)
_rerun_body = msgspec.json.Decoder(RerunBody)


async def submit(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_body)
    tasks = {each.name: _tasks(call, number, each) for number, each in enumerate(body.nodes)}
    conditions = {each.name: tuple(condition_of(need) for need in each.needs) for each in body.nodes}
    undos = {f"undo-{each.name}": (number, each) for number, each in enumerate(body.nodes) if each.undo is not UNSET}
    maps = {each.name: _source(number, each.map) for number, each in enumerate(body.nodes)}
    taken = {name: list(dict.fromkeys([*map(str, maps[name][:1]), *taken_from(each)])) for name, each in tasks.items()}
    conditions = {name: _with_taken(needs, taken[name]) for name, needs in conditions.items()}
    undoing = {name: _undo(call, number, each) for name, (number, each) in undos.items()}
    tasks |= {name: [task] for name, task in undoing.items()}
    taken |= {name: taken_from([task]) for name, task in undoing.items()}
    read = (
        {source for each in taken.values() for source in each}
        | {single.node for needs in conditions.values() for single in mentioned(needs) if single.on == "returned"}
        | {given(body.result)}
    )
    plans = [
        NodePlan(
            name=each.name,
            handler=", ".join(dict.fromkeys(task.handler for task in tasks[each.name])),
            needs=conditions[each.name],
            members=0 if maps[each.name] else len(tasks[each.name]),
            group=each.task is UNSET or bool(maps[each.name]),
            tolerate=each.tolerate,
            keeps=each.name in read,
            reads=bool(taken[each.name]),
            each=maps[each.name],
        )
        for each in body.nodes
    ]
    plans += [
        NodePlan(name=name, handler=undoing[name].handler, reads=bool(taken[name]), undoes=each.name) for name, (_, each) in undos.items()
    ]
    for name in undoing:
        for source in taken[name]:
            if source not in tasks:
                raise InvalidValue(f"node {name!r} takes a value of {source!r}, which is no node of this flow")
    graph = check_graph(Graph(nodes=tuple(plans), result=given(body.result), on_failure=body.on_failure))
    if graph.result is not None and next(plan for plan in plans if plan.name == graph.result).group:
        raise InvalidValue(f"the result is that of {graph.result!r}, which is a group and returns no single value")
    deadline, meta = given(body.deadline), given(body.meta)
    flow = NewFlow(
        id=_id_for(call),
        name=body.name,
        graph=graph,
        tasks=[tasks[plan.name] for plan in graph.nodes],
        submitted_by=call.caller.submitted_by,
        deadline_in=None if deadline is None else round(deadline * SECOND),
        meta=None if meta is None else check_meta(meta),
        key=given(body.key),
        if_exists=body.if_exists,
    )
    stored = await _stored(call, flow)
    if flow.key is None or stored.id == flow.id:
        _refuse_another(stored, flow)
    call.shared.figures.note_submitted(sum(map(len, flow.tasks)))
    return answer(visible_flow(call, stored), 201, {"location": f"{call.prefix}/v1/flows/{stored.id}"})


async def _stored(call: Call, flow: NewFlow) -> Flow[Any]:
    """Store a flow. Of one that the caller may not see nothing is told but that its key is taken."""
    try:
        stored = await call.app.flows.submit(flow)
    except DuplicateKey as taken:
        if taken.task_id and may_see_flow(call, await call.app.flows.get(taken.task_id)):
            raise
    else:
        if stored.id == flow.id or may_see_flow(call, stored):
            return stored
    raise DuplicateKey(f"a live flow of {flow.name} has the key {flow.key!r}", task_id="")


def _source(number: int, source: Any) -> tuple[str | int, ...]:
    """Return where the list of a map is: a node, and a path into what that returns."""
    if source is UNSET:
        return ()
    path = source.get(VALUE) if isinstance(source, dict) and len(source) == 1 else None
    path = [path] if isinstance(path, str) else path
    if not isinstance(path, list) or not path or not isinstance(path[0], str) or not all(type(step) in (str, int) for step in path):
        detail = 'map names the list that a node returns: {"$value": "paths"}, or a part: {"$value": ["paths", "all"]}'
        raise Refusal(INVALID, detail, faults=[Fault("names no list", pointer=f"/nodes/{number}/map")])
    return tuple(path)


def _with_taken(needs: tuple[Condition, ...], taken: list[str]) -> tuple[Condition, ...]:
    """Return what a node needs: it waits for those that it takes values from."""
    waits = {single.node for single in mentioned(needs)}
    return needs + tuple(Condition(each) for each in taken if each not in waits)


def _id_for(call: Call) -> str:
    """Return the id of a new flow: the name of the request, so that a repeated one stores it once, or a new one."""
    key = call.header("idempotency-key")
    if key is None:
        return new_id()
    if not is_id(key):
        detail = "the Idempotency-Key of a flow becomes its id, so it must be a UUID of version 7, in lower case"
        raise Refusal(INVALID, detail, faults=[Fault(detail, parameter="Idempotency-Key")])
    return key


def _refuse_another(stored: Flow[Any], flow: NewFlow) -> None:
    """Refuse a repeat that asks for something else than the flow which is stored under its name."""
    told = [(node.name, node.handler, node.members) for node in stored.nodes]
    if (stored.name, told) != (flow.name, [(plan.name, plan.handler, plan.members) for plan in flow.graph.nodes]):
        detail = "this Idempotency-Key was used for another flow; take a new one"
        raise Refusal(KEY_REUSED, detail, faults=[Fault("was used for another request", parameter="Idempotency-Key")])


def _tasks(call: Call, number: int, node: NodeBody) -> list[NewTask[Any]]:
    if (node.task is UNSET) == (node.tasks is UNSET) or (node.map is not UNSET and node.task is UNSET):
        raise Refusal(
            INVALID,
            f"node {node.name!r} needs a task, or tasks for a group, and not both; a map needs a task",
            faults=[Fault("give task or tasks", pointer=f"/nodes/{number}")],
        )
    bodies = [node.task] if node.task is not UNSET else node.tasks
    made = []
    for index, body in enumerate(bodies if bodies is not UNSET else []):
        where = f"/nodes/{number}/task" if node.task is not UNSET else f"/nodes/{number}/tasks/{index}"
        if given(body.key) is not None or body.needs not in (UNSET, None, []):
            detail = f"node {node.name!r}: a task of a flow has neither key nor needs of its own"
            raise Refusal(INVALID, detail, faults=[Fault("has key or needs", pointer=where)])
        if node.map is UNSET and takes_item(msgspec.json.encode(body.payload)):
            detail = f"node {node.name!r}: only the task of a map takes an item"
            raise Refusal(INVALID, detail, faults=[Fault("takes an item", pointer=where)])
        made.append(intake.task_of(call.app, msgspec.structs.replace(body, payload=unmarked(body.payload)), call.caller))
    return made


def _undo(call: Call, number: int, node: NodeBody) -> NewTask[Any]:
    """Return the task that takes back what a node did."""
    body = given(node.undo)
    assert body is not None
    where = f"/nodes/{number}/undo"
    if node.task is UNSET or node.map is not UNSET:
        detail = f"node {node.name!r}: a group has no undo; only a node of one task has"
        raise Refusal(INVALID, detail, faults=[Fault("undoes a group", pointer=where)])
    if given(body.key) is not None or body.needs not in (UNSET, None, []):
        detail = f"node {node.name!r}: a task of a flow has neither key nor needs of its own"
        raise Refusal(INVALID, detail, faults=[Fault("has key or needs", pointer=where)])
    return intake.task_of(call.app, msgspec.structs.replace(body, payload=unmarked(body.payload)), call.caller)


async def list_flows(call: Call) -> Response:
    query = call.query(FlowListQuery)
    page = await call.app.flows.list(state=given(query.state), name=given(query.name), limit=query.limit, cursor=given(query.cursor))
    return answer(FlowList([visible_flow(call, each) for each in page.items if may_see_flow(call, each)], page.next))


async def counts(call: Call) -> Response:
    call.query(NoQuery)
    return answer([each for each in await call.app.flows.counts() if call.may_see(each.name)])


async def get(call: Call) -> Response:
    wait = call.query(FlowQuery).wait
    found = await _addressed(call)
    return answer(visible_flow(call, await _waited(call, found, wait)))


async def why(call: Call) -> Response:
    call.query(NoQuery)
    return answer(ReasonList(await call.app.flows.why(await _addressed(call))))


async def members(call: Call) -> Response:
    query = call.query(MemberQuery)
    found = await _addressed(call)
    return answer(await call.app.flows.members(found, call.path["name"], first=query.first, limit=query.limit))


async def results(call: Call) -> Response:
    query = call.query(ResultsQuery)
    found = await _addressed(call)
    page = await call.app.flows.results_page(found, call.path["name"], first=query.first, limit=query.limit)
    return answer(visible_results(call, page))


async def cancel(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("flows.cancel", call.path["id"]) as act:
        changed = await call.app.flows.cancel(await _addressed(call))
        act.detail = changed.state
    return answer(visible_flow(call, changed))


async def retry(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("flows.retry", call.path["id"]) as act:
        changed = await call.app.flows.retry(await _addressed(call))
        act.detail = changed.state
    return answer(visible_flow(call, changed))


async def rerun(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_rerun_body)
    async with call.acting("flows.rerun", call.path["id"]) as act:
        changed = await call.app.flows.rerun(await _addressed(call), body.node)
        act.detail = f"from {body.node}"
    return answer(visible_flow(call, changed))


async def _addressed(call: Call) -> Flow[Any]:
    """Return the flow in the address. One with handlers that the caller's token is not for is answered as one that does not exist."""
    found = await call.app.flows.get(call.path["id"])
    if not may_see_flow(call, found):
        raise FlowNotFound(f"there is no flow {call.path['id']}: it was never submitted, or it has been pruned")
    return found


def visible_flow(call: Call, flow: Flow[Any]) -> Flow[Any]:
    """Return a flow without a result of which something is hidden from the caller."""
    return msgspec.structs.replace(flow, result=BLANK) if call.hiding.result and flow.result is not None else flow


def visible_results(call: Call, page: ResultsPage) -> ResultsPage:
    """Return results without those of which something is hidden from the caller."""
    if not call.hiding.result:
        return page
    return msgspec.structs.replace(page, items=[msgspec.Raw(msgspec.json.encode(BLANK))] * len(page.items))


def may_see_flow(call: Call, flow: Flow[Any]) -> bool:
    """Return whether the caller may see all handlers of a flow, and whose it is: otherwise it does not exist for them."""
    return call.owns(flow.submitted_by) and all(call.may_see(handler) for node in flow.nodes for handler in node.handler.split(", "))


async def _waited(call: Call, found: Flow[Any], seconds: float) -> Flow[Any]:
    """Return the flow when it has ended, or as it is when the wait is over or the client has gone."""
    if found.final or not seconds:
        return found
    waiting = asyncio.ensure_future(call.app.flows.wait(found, timeout=seconds))
    gone = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)
    return await call.app.flows.get(found)


ROUTES = (
    Route(
        name="submit_flow", method="POST", path="/v1/flows", endpoint=submit, scope=Scope.SUBMIT, own=True,
        summary="Submit a flow: a graph of tasks, stored as a whole.", body=FlowBody, answer=Flow, status=201, problems=(404, 409),
        headers=(IDEMPOTENCY,),
    ),
    Route(
        name="list_flows", method="GET", path="/v1/flows", endpoint=list_flows, scope=Scope.READ, own=True,
        summary="List flows, the newest first.", query=FlowListQuery, answer=FlowList,
    ),
    Route(
        name="count_flows", method="GET", path="/v1/flow-counts", endpoint=counts, scope=Scope.READ,
        summary="Count flows by name and state.", answer=list[FlowCount],
    ),
    Route(
        name="get_flow", method="GET", path="/v1/flows/{id}", endpoint=get, scope=Scope.READ, own=True,
        summary="Return a flow as it is now, or when it has ended.", query=FlowQuery, answer=Flow, problems=(404,),
    ),
    Route(
        name="explain_flow", method="GET", path="/v1/flows/{id}/why", endpoint=why, scope=Scope.READ, own=True,
        summary="Explain what a flow waits for, or how it ended.", answer=ReasonList, problems=(404,),
    ),
    Route(
        name="list_members", method="GET", path="/v1/flows/{id}/nodes/{name}/members", endpoint=members, scope=Scope.READ, own=True,
        summary="List the tasks of a node, by position.", query=MemberQuery, answer=list[MemberInfo], problems=(404,),
    ),
    Route(
        name="list_results", method="GET", path="/v1/flows/{id}/nodes/{name}/results", endpoint=results, scope=Scope.READ, own=True,
        summary="List what a node returned that others read: of each task of a group, or the items of one task's list.",
        query=ResultsQuery, answer=ResultsPage, problems=(404,),
    ),
    Route(
        name="cancel_flow", method="POST", path="/v1/flows/{id}/cancel", endpoint=cancel, scope=Scope.OPERATE, own=True,
        summary="Cancel a flow as one: nothing of it starts any more, and what runs is told to end.",
        body=NoBody, optional_body=True, answer=Flow, problems=(404, 409),
    ),
    Route(
        name="retry_flow", method="POST", path="/v1/flows/{id}/retry", endpoint=retry, scope=Scope.OPERATE, own=True,
        summary="Let a flow go on from the tasks that ended without success.",
        body=NoBody, optional_body=True, answer=Flow, problems=(404, 409),
    ),
    Route(
        name="rerun_flow", method="POST", path="/v1/flows/{id}/rerun", endpoint=rerun, scope=Scope.OPERATE, own=True,
        summary="Let a node of a flow, and all that follows from it, run again with new tasks.",
        body=RerunBody, answer=Flow, problems=(404, 409),
    ),
)  # fmt: skip
