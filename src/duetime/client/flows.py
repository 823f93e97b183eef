"""`app.flows`: stored graphs of tasks, looked at and changed as one."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from duetime.client.admission import Admission
from duetime.clock import Seconds, to_datetime, to_seconds
from duetime.errors import Conflict, FlowNotFound, InvalidValue
from duetime.ids import is_id
from duetime.model.flow import Condition, FlowState, NodeFacts, NodePlan, NodeState, Stopping, tolerated
from duetime.model.wording import count, listed
from duetime.store import Store
from duetime.store.flows import FlowRecord, FlowVerdict, NewFlow
from duetime.store.values import Hint, HintKind

R_co = TypeVar("R_co", covariant=True)
LOOK_AGAIN = 1.0  # seconds between looks without a hint, because a hint can be lost
MOST_LISTED = 1_000


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a flow: one task, or a group of them. `made` of its `members` are tasks by now; `why` says what it waits for or did."""

    name: str
    handler: str
    state: NodeState
    members: int
    made: int = 0
    ended: int = 0
    failed: int = 0
    needs: list[str] = []
    why: str = ""


class Flow(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A stored flow. `R_co` is the type of its result, for `app.result`. `stopping`: why nothing more of it starts."""

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

    @property
    def final(self) -> bool:
        return self.state != "running"

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

    async def members(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = 100) -> builtins.list[MemberInfo]:
        """Return the tasks of a node, by position, from the first position on."""
        ...

    async def cancel(self, flow: AnyFlow) -> Flow[Any]:
        """Cancel a flow as one: nothing of it starts any more, what runs is told to end. Raises Conflict if it has ended."""
        ...

    async def retry(self, flow: AnyFlow) -> Flow[Any]:
        """Let a flow go on from the tasks that did not succeed. Raises Conflict if there is nothing to retry."""
        ...

    async def wait(self, flow: AnyFlow, *, timeout: Seconds | None = None) -> Flow[Any]:
        """Return a flow when it has ended, or as it is when the time is over."""
        ...


class LocalFlows(Flows):
    """Flows of a store."""

    def __init__(self, store: Store, admission: Admission, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
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

    async def members(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = 100) -> builtins.list[MemberInfo]:
        record = await self._record(flow)
        shown_flow(record).node(node)
        number = [plan.name for plan in record.graph.nodes].index(node)
        found = await self._store.flow_members(record.id, number, after=first - 1, limit=limit)
        return [MemberInfo(each.task, each.position) for each in found]

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

    async def _stop(self, flow: str) -> FlowVerdict:
        await self._opened()
        return await self._store.stop_flow(flow, "cancel")

    async def _change(self, flow: AnyFlow, verdict: FlowVerdict, done: str) -> Flow[Any]:
        found = await self.get(flow)
        if verdict is FlowVerdict.REFUSED:
            raise Conflict(f"flow {found.id} is {found.state} and cannot be {done}")
        return found

    async def _record(self, flow: AnyFlow) -> FlowRecord:
        await self._opened()
        [record] = await self._store.flows([id_of(flow)])
        if record is None:
            raise FlowNotFound(f"there is no flow {id_of(flow)}: it was never submitted, or it has been pruned")
        return record


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
            members=plan.members,
            made=known.opened,
            ended=known.ended,
            failed=known.failed,
            needs=[in_words(each) for each in plan.needs],
            why=_why(plan, known, state, record),
        )
        for plan, known, state in zip(record.graph.nodes, record.nodes, states, strict=True)
    ]
    by_name = {plan.name: known for plan, known in zip(record.graph.nodes, record.nodes, strict=True)}
    result = None if record.graph.result is None else by_name[record.graph.result].value
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
        result=None if result is None or record.state != "succeeded" else msgspec.json.decode(result),
        result_of=record.graph.result,
    )


def in_words(condition: Condition) -> str:
    """Return a condition as people read it."""
    if condition.of:
        each = [in_words(part) for part in condition.of]
        return " or ".join(each) if condition.least == 1 else f"at least {condition.least} of: {listed(each)}"
    if condition.on == "returned":
        return f"{condition.node} returned {condition.value!r}"
    return f"{condition.node} {condition.on.replace('_', ' ')}"


def _why(plan: NodePlan, known: NodeFacts, state: NodeState, record: FlowRecord) -> str:
    needs = listed([in_words(each) for each in plan.needs])
    if state == "waiting":
        return f"it waits until {needs}"
    if state == "skipped":
        if record.stopping is not None:
            return f"it was skipped because the flow was stopped: {record.stopping}"
        return f"it was skipped because this cannot be any more: {needs}"
    if known.error:
        return known.error
    if not plan.members:
        return "it has no members"
    allowed = f" ({tolerated(plan):,} are tolerated)" if plan.group and plan.tolerate else ""
    failed = f", {known.failed:,} without success{allowed}" if known.failed else ""
    return f"{known.ended:,} of {count(plan.members, 'task')} ended{failed}"
