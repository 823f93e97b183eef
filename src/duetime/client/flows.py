"""`app.flows`: stored graphs of tasks, looked at and changed as one."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from duetime.client.admission import Admission
from duetime.clock import Seconds, to_datetime, to_seconds
from duetime.errors import Conflict, FlowFailed, FlowNotFound, InvalidPayload, InvalidValue
from duetime.ids import is_id
from duetime.model.flow import Condition, FlowState, NodeFacts, NodePlan, NodeState, Stopping, mentioned, size_of, tolerated
from duetime.model.flow_values import Source
from duetime.model.task import FINAL, TaskRecord
from duetime.model.why import Reason, ReasonKind
from duetime.model.wording import count, listed
from duetime.store import Store
from duetime.store.flows import VALUES_AT_ONCE, FlowCount, FlowRecord, FlowVerdict, NewFlow
from duetime.store.results import ResultsPage, results_page
from duetime.store.values import Hint, HintKind

R_co = TypeVar("R_co", covariant=True)
WhyTask: TypeAlias = Callable[[TaskRecord], Awaitable[builtins.list[Reason]]]
_STOPPED: dict[Stopping | None, str] = {
    "cancel": ", because it was cancelled",
    "failure": ", because a failure stopped it",
    "deadline": ", because its deadline has passed",
}
MOST_REASONS = 20  # nodes that `why` speaks of
LOOKED_AT = 100  # tasks of a node that `why` looks through for one that lives
LOOK_AGAIN = 1.0  # seconds between looks without a hint, because a hint can be lost
MOST_LISTED = 1_000


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a flow: one task, or a group of them. `made` of its `members` are tasks by now; `why` says what it waits for or did.

    `round` counts its reruns. A map has no members before its list is known. `after` names the nodes that `needs` speaks of. `undoes` is
    the node that this one takes back, if the flow fails or is cancelled.
    """

    name: str
    handler: str
    state: NodeState
    members: int
    made: int = 0
    ended: int = 0
    failed: int = 0
    needs: list[str] = []
    why: str = ""
    round: int = 1
    after: builtins.list[str] = []
    undoes: str = ""


class Flow(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A stored flow. `R_co` is the type of its result, for `app.result`. `stopping`: why nothing more of it starts.

    `result_items`: its result was yielded, so many items, and is not here: `app.result` and `app.flows.results` read it.
    """

    id: str
    name: str
    state: FlowState
    nodes: list[NodeInfo]
    submitted_at: datetime
    submitted_by: str = ""
    stopping: Stopping | None = None
    deadline_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    result_of: str | None = None
    result_items: int | None = None
    key: str | None = None

    @property
    def final(self) -> bool:
        return self.state != "running"

    def mermaid(self) -> str:
        """Return the flow as a Mermaid diagram, each node with its state."""
        numbers = {node.name: f"n{number}" for number, node in enumerate(self.nodes)}
        lines = ["flowchart LR"]
        for node in self.nodes:
            label = node.name.replace('"', "#quot;")
            lines.append(f'    {numbers[node.name]}["{label}<br>{node.state}, {node.ended:,} of {node.members:,}"]')
            arrow = "-.->" if node.undoes else "-->"
            lines += [f"    {numbers[before]} {arrow} {numbers[node.name]}" for before in node.after]
        return "\n".join(lines) + "\n"

    def node(self, name: str) -> NodeInfo:
        """Return a node by name. Raises InvalidValue if the flow has none of that name."""
        for each in self.nodes:
            if each.name == name:
                return each
        raise InvalidValue(f"flow {self.id} has no node {name!r}; it has {listed([each.name for each in self.nodes])}")


AnyFlow: TypeAlias = Flow[Any] | str


class FlowList(msgspec.Struct, frozen=True):
    """Flows, the newest first, and where the next page begins; None on the last."""

    items: builtins.list[Flow[Any]]
    next: str | None = None


class MemberInfo(msgspec.Struct, frozen=True):
    """A task of a node and its position there, from 0."""

    task: str
    position: int


class Flows(Protocol):
    """Stored flows."""

    async def submit(self, flow: NewFlow, *, connection: object | None = None) -> Flow[Any]:
        """Store a flow that a plan has made; `@app.flow`, `app.chain` and `app.group` call it."""
        ...

    async def get(self, flow: AnyFlow) -> Flow[Any]:
        """Return a flow as it is now. Raises FlowNotFound if there is none."""
        ...

    async def list(
        self, *, state: FlowState | None = None, name: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> FlowList:
        """Return a page of flows, the newest first."""
        ...

    async def counts(self) -> builtins.list[FlowCount]:
        """Return how many flows there are, by name and state."""
        ...

    async def members(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = 100) -> builtins.list[MemberInfo]:
        """Return the tasks of a node, by position, from the first position on."""
        ...

    async def results_page(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = VALUES_AT_ONCE) -> ResultsPage:
        """Return some of what `results` yields, from a position on, each as JSON; see there."""
        ...

    async def results(self, flow: AnyFlow, node: str) -> AsyncIterator[Any]:
        """Yield what the tasks of a node returned, in their order and without those that failed; of a single task the items of its list.

        Kept are only results that another node reads, or that are the flow's; for others InvalidValue is raised.
        """
        first: int | None = 0
        while first is not None:
            page = await self.results_page(flow, node, first=first)
            for item in page.items:
                yield msgspec.json.decode(item)
            first = page.next

    async def why(self, flow: AnyFlow) -> builtins.list[Reason]:
        """Return what a flow waits for, or how it ended: its nodes that say something about that, and a task that each waits for."""
        ...

    async def cancel(self, flow: AnyFlow) -> Flow[Any]:
        """Cancel a flow as one: nothing of it starts any more, what runs is told to end. Raises Conflict if it has ended."""
        ...

    async def retry(self, flow: AnyFlow) -> Flow[Any]:
        """Let a flow go on from the tasks that did not succeed. Raises Conflict if there is nothing to retry."""
        ...

    async def rerun(self, flow: AnyFlow, node: str) -> Flow[Any]:
        """Let a node and all that follows from it run again, with new tasks: in its next round. Tasks of the rounds before stay readable.

        Raises Conflict while one of their tasks lives, or if the node did not run.
        """
        ...

    async def wait(self, flow: AnyFlow, *, timeout: Seconds | None = None) -> Flow[Any]:
        """Return a flow when it has ended, or as it is when the time is over."""
        ...


class LocalFlows(Flows):
    """Flows of a store."""

    def __init__(self, store: Store, admission: Admission, *, why: WhyTask, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._why = why
        self._admission = admission
        self._user = user
        self._opened = opened

    async def submit(self, flow: NewFlow, *, connection: object | None = None) -> Flow[Any]:
        # what takes values of other nodes is checked by its handler, when they are known
        whole = [task for plan, group in zip(flow.graph.nodes, flow.tasks, strict=True) for task in group if not plan.reads]
        await self._admission.check(whole, allow_unknown=False, on_loop=connection is not None)
        for plan, group in zip(flow.graph.nodes, flow.tasks, strict=True):
            if plan.reads:
                await self._admission.check_handlers(group)
        complete = self._admission.complete
        ready = msgspec.structs.replace(
            flow, tasks=[[complete(task) for task in group] for group in flow.tasks], submitted_by=flow.submitted_by or self._user
        )
        if connection is None:
            await self._opened()
            return shown_flow(await self._store.add_flow(ready))
        return shown_flow(await self._store.add_flow_on(connection, ready))

    async def get(self, flow: AnyFlow) -> Flow[Any]:
        return shown_flow(await self._record(flow))

    async def list(
        self, *, state: FlowState | None = None, name: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> FlowList:
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidValue(f"limit must be 1 to {MOST_LISTED:,}, got {limit}")
        if cursor is not None and not is_id(cursor):
            raise InvalidValue("cursor is not the `next` of a page of flows")
        await self._opened()
        page = await self._store.flow_page(state=state, name=name, before=cursor, limit=limit)
        return FlowList([shown_flow(each) for each in page.flows], page.next)

    async def counts(self) -> builtins.list[FlowCount]:
        await self._opened()
        return await self._store.flow_counts()

    async def members(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = 100) -> builtins.list[MemberInfo]:
        record = await self._record(flow)
        shown_flow(record).node(node)
        number = [plan.name for plan in record.graph.nodes].index(node)
        found = await self._store.flow_members(record.id, number, after=first - 1, limit=limit)
        return [MemberInfo(each.task, each.position) for each in found]

    async def results_page(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = VALUES_AT_ONCE) -> ResultsPage:
        if first < 0 or not 1 <= limit <= VALUES_AT_ONCE:
            raise InvalidValue(f"first must not be negative, and limit 1 to {VALUES_AT_ONCE:,}, got {first} and {limit}")
        record = await self._record(flow)
        shown_flow(record).node(node)
        number = [plan.name for plan in record.graph.nodes].index(node)
        plan = record.graph.nodes[number]
        if not plan.keeps:
            raise InvalidValue(
                f"nobody in the flow reads what node {node} returns, so it is kept with its tasks only: duetime flows members"
            )
        source = Source(node=node, number=number, round=record.rounds[number], group=plan.group)
        try:
            return await results_page(self._store, record.id, source, first, limit)
        except InvalidPayload as error:
            raise InvalidValue(str(error)) from None

    async def why(self, flow: AnyFlow) -> builtins.list[Reason]:
        record = await self._record(flow)
        found = shown_flow(record)
        reasons = [_overall(found)]
        for number, node in enumerate(found.nodes):
            if node.state == "failed" or (node.state in ("running", "waiting") and not found.final):
                kind = {"failed": ReasonKind.FINISHED, "running": ReasonKind.RUNNING, "waiting": ReasonKind.BLOCKED}[node.state]
                about = await self._about_a_task(record, number, node) if node.state == "running" else ""
                reasons.append(Reason(kind=kind, text=f"node {node.name}: {node.why}{about}"))
            elif node.state == "skipped" and found.state != "succeeded":
                reasons.append(Reason(kind=ReasonKind.FINISHED, text=f"node {node.name}: {node.why}"))
            if len(reasons) > MOST_REASONS:
                reasons.append(Reason(kind=ReasonKind.BLOCKED, text="and more; duetime flows show lists all nodes"))
                break
        return reasons

    async def _about_a_task(self, record: FlowRecord, number: int, node: NodeInfo) -> str:
        """Return what a task of a node waits for: one that lives, if there is one among the last that were made."""
        members = await self._store.flow_members(record.id, number, after=max(-1, node.made - LOOKED_AT - 1), limit=LOOKED_AT)
        for task in await self._store.get([each.task for each in members]):
            if task is not None and task.state not in FINAL:
                texts = [reason.text for reason in await self._why(task)]
                return f"; of these task {task.id}: {'; '.join(texts)}"
        return ""

    async def cancel(self, flow: AnyFlow) -> Flow[Any]:
        return await self._change(flow, await self._stop(id_of(flow)), "cancelled")

    async def retry(self, flow: AnyFlow) -> Flow[Any]:
        await self._opened()
        return await self._change(flow, await self._store.retry_flow(id_of(flow)), "retried")

    async def wait(self, flow: AnyFlow, *, timeout: Seconds | None = None) -> Flow[Any]:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + max(0.0, to_seconds(timeout, "timeout"))
        await self._opened()
        woken = asyncio.Event()

        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.DONE, HintKind.ANY):
                woken.set()

        listener = self._store.listen(on_hint)
        try:
            while True:
                woken.clear()
                found = await self.get(flow)
                left = LOOK_AGAIN if end is None else min(LOOK_AGAIN, end - loop.time())
                if found.final or left <= 0:
                    return found
                try:
                    async with asyncio.timeout(left):
                        await woken.wait()
                except TimeoutError:
                    continue
        finally:
            listener.close()

    async def rerun(self, flow: AnyFlow, node: str) -> Flow[Any]:
        record = await self._record(flow)
        found = shown_flow(record).node(node)
        number = [plan.name for plan in record.graph.nodes].index(node)
        verdict = await self._store.rerun_flow(record.id, number)
        if verdict is FlowVerdict.REFUSED:
            after_it = "tasks of it, or of what follows from it, are live: cancel the flow or wait until they have ended"
            reason = f"it is {found.state}, so it did not run" if found.state in ("waiting", "skipped") else after_it
            if any(each.undoes and each.made for each in shown_flow(record).nodes):
                reason = "it was undone: only what undoes it, or a node before all that was undone, can run again"
            raise Conflict(f"flow {record.id} cannot be rerun from {node}: {reason}")
        return await self._change(flow, verdict, "rerun")

    async def _stop(self, flow: str) -> FlowVerdict:
        await self._opened()
        return await self._store.stop_flow(flow, "cancel")

    async def _change(self, flow: AnyFlow, verdict: FlowVerdict, done: str) -> Flow[Any]:
        found = await self.get(flow)
        if verdict is FlowVerdict.REFUSED:
            undone = any(node.undoes and node.made for node in found.nodes)
            hint = ": it was undone, so submit it again" if undone and done == "retried" else ""
            raise Conflict(f"flow {found.id} is {found.state} and cannot be {done}{hint}")
        if verdict is FlowVerdict.DUPLICATE:
            raise Conflict(f"flow {found.id} cannot be {done}: another live flow of {found.name} has its key {found.key!r}")
        return found

    async def _record(self, flow: AnyFlow) -> FlowRecord:
        await self._opened()
        [record] = await self._store.flows([id_of(flow)])
        if record is None:
            raise FlowNotFound(f"there is no flow {id_of(flow)}: it was never submitted, or it has been pruned")
        return record


def flow_failed(flow: Flow[Any]) -> FlowFailed:
    """Return what says how a flow ended that did not succeed."""
    nodes = [f"{node.name} ({node.why})" for node in flow.nodes if node.state == "failed"]
    names = [node.name for node in flow.nodes if node.state == "failed"]
    text = f"flow {flow.id} of {flow.name} is {flow.state}: {', '.join(nodes) or 'nothing of it had started'}"
    return FlowFailed(text, flow_id=flow.id, state=flow.state, nodes=names)


def id_of(flow: AnyFlow) -> str:
    given = flow.id if isinstance(flow, Flow) else flow
    if not isinstance(given, str):
        raise InvalidValue(f"a flow, or its id, was expected, got {type(given).__name__}")
    return given.lower()


def shown_flow(record: FlowRecord) -> Flow[Any]:
    """Return a record as people see it."""
    states = record.states()
    nodes = [
        NodeInfo(
            name=plan.name,
            handler=plan.handler,
            state=state,
            members=size_of(plan, known) or 0,
            made=known.opened,
            ended=known.ended,
            failed=known.failed,
            needs=[in_words(each) for each in plan.needs],
            why=_why(plan, known, state, record),
            round=round,
            after=[plan.undoes] if plan.undoes else list(dict.fromkeys(single.node for single in mentioned(plan.needs))),
            undoes=plan.undoes,
        )
        for plan, known, state, round in zip(record.graph.nodes, record.nodes, states, record.rounds, strict=True)
    ]
    by_name = {plan.name: known for plan, known in zip(record.graph.nodes, record.nodes, strict=True)}
    known = NodeFacts() if record.graph.result is None or record.state != "succeeded" else by_name[record.graph.result]
    return Flow(
        id=record.id,
        name=record.name,
        state=record.state,
        nodes=nodes,
        submitted_at=to_datetime(record.submitted_at),
        submitted_by=record.submitted_by,
        stopping=record.stopping,
        deadline_at=None if record.deadline_at is None else to_datetime(record.deadline_at),
        finished_at=None if record.finished_at is None else to_datetime(record.finished_at),
        result=None if known.value is None or known.items is not None else msgspec.json.decode(known.value),
        result_of=record.graph.result,
        result_items=known.items,
        key=record.key,
    )


def _overall(flow: Flow[Any]) -> Reason:
    """Return the first sentence about a flow."""
    tasks = f"{sum(node.ended for node in flow.nodes):,} of {count(sum(node.members for node in flow.nodes), 'known task')} ended"
    if flow.final:
        failed = [node.name for node in flow.nodes if node.state == "failed"]
        because = {None: f": {listed(failed)} failed" if flow.state == "failed" else "", **_STOPPED}[flow.stopping]
        return Reason(kind=ReasonKind.FINISHED, text=f"it is {flow.state}{because}; {tasks}")
    if any(node.undoes and node.made for node in flow.nodes):
        failed = [node.name for node in flow.nodes if node.state == "failed" and not node.undoes]
        because = f", because {listed(failed)} failed" if flow.stopping is None and failed else _STOPPED[flow.stopping]
        return Reason(kind=ReasonKind.RUNNING, text=f"it is undone{because}; {tasks}")
    if flow.stopping is not None:
        return Reason(kind=ReasonKind.RUNNING, text=f"it ends{_STOPPED[flow.stopping]}; {tasks}")
    return Reason(kind=ReasonKind.RUNNING, text=f"it goes on; {tasks}", until_at=flow.deadline_at)


def in_words(condition: Condition) -> str:
    """Return a condition as people read it."""
    if condition.of:
        each = [in_words(part) for part in condition.of]
        return " or ".join(each) if condition.least == 1 else f"at least {condition.least} of: {listed(each)}"
    if condition.on == "returned":
        return f"{condition.node} returned {condition.value!r}"
    return f"{condition.node} {condition.on.replace('_', ' ')}"


def _why_not_undone(plan: NodePlan, state: NodeState, record: FlowRecord) -> str:
    states = dict(zip((each.name for each in record.graph.nodes), record.states(), strict=True))
    if state == "waiting":
        begun = all(states[each.name] in ("succeeded", "failed", "skipped") for each in record.graph.nodes if not each.undoes)
        if begun:
            return f"it undoes {plan.undoes}, when what followed is undone"
        return f"it undoes {plan.undoes}, if the flow fails or is cancelled"
    if states[plan.undoes] != "succeeded":
        return f"it was skipped because {plan.undoes}, which it undoes, did not succeed"
    return f"it was skipped because nothing had to be undone of {plan.undoes}"


def _why(plan: NodePlan, known: NodeFacts, state: NodeState, record: FlowRecord) -> str:
    if plan.undoes and state in ("waiting", "skipped"):
        return _why_not_undone(plan, state, record)
    needs = listed([in_words(each) for each in plan.needs])
    if state == "waiting":
        return f"it waits until {needs}"
    if state == "skipped":
        if record.stopping is not None:
            return f"it was skipped because the flow was stopped: {record.stopping}"
        return f"it was skipped because this cannot be any more: {needs}"
    if known.error:
        return known.error
    size = size_of(plan, known)
    if size is None:
        return "its list is being measured"
    if not size:
        return "its list is empty" if plan.each else "it has no members"
    allowed = f" ({tolerated(plan, known):,} are tolerated)" if plan.group and plan.tolerate else ""
    failed = f", {known.failed:,} without success{allowed}" if known.failed else ""
    return f"{known.ended:,} of {count(size, 'task')} ended{failed}"
