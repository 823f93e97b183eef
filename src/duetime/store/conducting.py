"""How flows go on, the same in every store: read what is known, let the rule decide, write it, all in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from duetime.clock import Instant
from duetime.errors import DuplicateKey, InvalidPayload
from duetime.ids import new_id
from duetime.model.flow import ENDED, FLOW, NODE, PORTION, TAKES, FlowFacts, Graph, NodeFacts, NodePlan, Step, after, decide, is_undone
from duetime.model.flow_values import Source, check_length, filled, items_of, read_whole, sources, too_long_as_argument
from duetime.model.steps import NewSignal
from duetime.model.task import MAX_PAYLOAD, NewTask
from duetime.store.flows import FlowRecord, KeptValue, NewFlow, Piece

_decode_tasks = msgspec.json.Decoder(list[NewTask[Any]]).decode
MOST_TAKEN = 3  # nodes that a member names as those whose values it has

_decode_graph = msgspec.json.Decoder(Graph).decode


class Arrival(NamedTuple):
    """Members of a node that have ended, or live again, and are not counted yet."""

    seq: int
    node: int
    round: int
    ended: int
    failed: int


class Held(NamedTuple):
    """A flow that this transaction has locked, with what has arrived."""

    record: FlowRecord
    arrivals: Sequence[Arrival]


class Draft(NamedTuple):
    """Tasks of a node that are to be made, from a position on."""

    flow: str
    node: int
    first: int
    tasks: str


class NewMember(NamedTuple):
    """A task that is a member of a node."""

    task: str
    flow: str
    node: int
    round: int
    position: int
    keeps: bool


class Change(NamedTuple):
    """What to write of a flow: each node's opened, ended, failed and error, if it changed, and the signal that it has ended."""

    flow: str
    state: str
    stopping: str | None
    more: bool
    finished_at: Instant | None
    nodes: Sequence[tuple[int, NodeFacts]]
    signal: NewSignal | None = None


class Conducted(NamedTuple):
    """What a step did: flows that need a further one at once, those that it stopped, whether members were made and flows ended.

    `told` are the names of signals that it stored, for whom somebody may wait.
    """

    more: list[str]
    stopped: list[str]
    made: bool = False
    ended: bool = False
    told: Sequence[str] = ()  # signals that were stored


class FlowTables(Protocol):
    """The tables of flows, inside of one transaction."""

    async def lock(self, ids: Sequence[str]) -> list[Held]:
        """Lock flows, in the order of their ids, and then read what is known of them."""
        ...

    async def count(self, seqs: Sequence[int]) -> None:
        """Remove arrivals that are counted in."""
        ...

    async def write(self, changes: Sequence[Change]) -> None: ...

    async def drafts(self, opens: Sequence[tuple[str, int, int]]) -> list[Draft]:
        """Return what is to be made: by flow, node and first position."""
        ...

    async def values(self, flow: str, node: int, round: int) -> list[KeptValue]:
        """Return what members of a node returned in a round, in their order."""
        ...

    async def pieces(self, flow: str, node: int, round: int, position: int, first: int) -> list[Piece]:
        """Return some of the pieces that a member has yielded in a round, from the one on that has an item."""
        ...

    async def tell(self, signals: Sequence[NewSignal]) -> None:
        """Store signals, which nobody has looked at yet."""
        ...

    async def make(self, tasks: Sequence[NewTask[Any]], members: Sequence[NewMember]) -> None:
        """Add tasks that are members."""
        ...


def portions(flow: NewFlow) -> list[Draft]:
    """Return the tasks of a flow as rows."""
    return [
        Draft(flow.id, node, first, msgspec.json.encode(tasks[first : first + PORTION]).decode())
        for node, tasks in enumerate(flow.tasks)
        for first in range(0, len(tasks), PORTION)
    ]


def counted(record: FlowRecord, arrivals: Sequence[Arrival]) -> FlowRecord:
    """Return a flow with what has arrived; what belongs to an earlier round of a node counts for nothing."""
    if not arrivals:
        return record
    nodes = list(record.nodes)
    for _, number, round, ended, failed in arrivals:
        if record.rounds[number] == round:
            known = nodes[number]
            nodes[number] = msgspec.structs.replace(known, ended=known.ended + ended, failed=known.failed + failed)
    return msgspec.structs.replace(record, nodes=nodes)


async def conduct(tables: FlowTables, ids: Sequence[str], now: Instant) -> Conducted:
    """Take one step in flows."""
    return await carry_on(tables, await tables.lock(sorted(set(ids))), now)


async def carry_on(tables: FlowTables, held: Sequence[Held], now: Instant) -> Conducted:
    """Take one step in flows that are locked."""
    changes: list[Change] = []
    opens: list[tuple[FlowRecord, Step]] = []
    seqs: list[int] = []
    for record, arrivals in held:
        present = counted(record, arrivals)
        facts = FlowFacts(graph=record.graph, nodes=present.nodes, stopping=record.stopping)
        step = decide(facts, failing=any(arrival.failed > 0 for arrival in arrivals))
        seqs += [arrival.seq for arrival in arrivals]
        opens.append((present, step))
        changes.append(_change(record, present, step, now))
    if seqs:
        await tables.count(seqs)
    refused = await _make(tables, opens)
    changes = [await _measured(tables, change, present, step) for change, (present, step) in zip(changes, opens, strict=True)]
    if changes:
        await tables.write([_with_errors(change, refused) for change in changes])
    signals = [change.signal for change in changes if change.signal is not None]
    if signals:
        await tables.tell(signals)
    return Conducted(
        [record.id for record, step in opens if step.more or any(flow == record.id for flow, _ in refused)],
        [record.id for record, step in opens if step.stopping is not None and record.stopping is None],
        any(step.opens for _, step in opens),
        any(change.finished_at is not None for change in changes),
        [signal.name for signal in signals],
    )


def _change(before: FlowRecord, present: FlowRecord, step: Step, now: Instant) -> Change:
    nodes = list(present.nodes)
    for opened in step.opens:
        nodes[opened.node] = msgspec.structs.replace(nodes[opened.node], opened=opened.first + opened.count)
    changed = [(number, known) for number, known in enumerate(nodes) if known != before.nodes[number]]
    finished_at = None if step.state == "running" else before.finished_at or now
    signal = None
    if before.graph.awaited and finished_at is not None and before.finished_at is None:
        signal = NewSignal(name=f"{ENDED}{before.id}", id=new_id(), data=b"null", sent_by="duetime")
    return Change(before.id, step.state, step.stopping, step.more, finished_at, changed, signal)


async def _make(tables: FlowTables, steps: Sequence[tuple[FlowRecord, Step]]) -> dict[tuple[str, int], str]:
    """Make the members that the steps ask for; return why those of a node cannot be made, by flow and number."""
    asked = {(record.id, each.node, each.first): (record, each.count) for record, step in steps for each in step.opens}
    if not asked:
        return {}
    tasks: list[NewTask[Any]] = []
    members: list[NewMember] = []
    refused: dict[tuple[str, int], str] = {}
    maps = {key for key, (record, _) in asked.items() if record.graph.nodes[key[1]].each}
    rows = {(draft.flow, draft.node, draft.first): draft.tasks for draft in await tables.drafts([_row_of(key, maps) for key in asked])}
    for key, (record, count) in asked.items():
        flow, node, first = key
        plan = record.graph.nodes[node]
        own = {**(record.meta or {}), FLOW: flow, NODE: plan.name}
        drafts = _decode_tasks(rows[_row_of(key, maps)])
        if plan.reads:
            taken = dict.fromkeys([*map(str, plan.each[:1]), *sources(drafts[0].payload)])
            own[TAKES] = ", ".join(list(taken)[:MOST_TAKEN])
        try:
            if plan.each:
                drafts = await _of_items(tables, record, plan, drafts[0], first, count)
            elif plan.reads:
                drafts = await _filled(tables, record, drafts)
        except InvalidPayload as error:
            refused[flow, node] = f"InvalidPayload: {error}"
            continue
        for position, draft in enumerate(drafts, first):
            task = msgspec.structs.replace(draft, id=new_id(), meta={**(draft.meta or {}), **own})
            tasks.append(task)
            members.append(NewMember(task.id, flow, node, record.rounds[node], position, plan.keeps))
    if tasks:
        await tables.make(tasks, members)
    return refused


def _row_of(key: tuple[str, int, int], maps: Collection[tuple[str, int, int]]) -> tuple[str, int, int]:
    """Return the row of a portion's drafts: a map has one draft for all."""
    return (key[0], key[1], 0) if key in maps else key


async def _filled(tables: FlowTables, record: FlowRecord, drafts: Sequence[NewTask[Any]]) -> list[NewTask[Any]]:
    """Return tasks with the values of other nodes in their payloads."""
    values = await _values(tables, record, {name for draft in drafts for name in read_whole(draft.payload)})
    streams = _streams(record)
    return [msgspec.structs.replace(draft, payload=filled(draft.payload, values, streams=streams)) for draft in drafts]


async def _of_items(
    tables: FlowTables, record: FlowRecord, plan: NodePlan, draft: NewTask[Any], first: int, count: int
) -> list[NewTask[Any]]:
    """Return the tasks of a map for some of its items."""
    items = await _items(tables, record, plan, first, count)
    values = await _values(tables, record, read_whole(draft.payload))
    streams = _streams(record)
    return [msgspec.structs.replace(draft, payload=filled(draft.payload, values, item, streams)) for item in items]


async def _items(tables: FlowTables, record: FlowRecord, plan: NodePlan, first: int, count: int) -> list[Any]:
    """Return some items of the list that a map is made over."""
    name, *path = plan.each
    number, round, kept = await _single(tables, record, str(name))
    if kept.items is None or path:
        data = await _whole(tables, record, str(name), number, round, kept)
        return items_of(data, path, str(name))[first : first + count]
    items: list[Any] = []
    while len(items) < count:
        start = first + len(items)
        pieces = await tables.pieces(record.id, number, round, kept.position, start)
        if not pieces:
            break
        found = [item for piece in pieces for item in msgspec.json.decode(piece.data)]
        items += found[start - pieces[0].first :]
    return items[:count]


async def _length(tables: FlowTables, record: FlowRecord, plan: NodePlan) -> int:
    """Return how many items the list has that a map is made over."""
    name, *path = plan.each
    number, round, kept = await _single(tables, record, str(name))
    if kept.items is not None and not path:
        return check_length(kept.items, str(name))
    return len(items_of(await _whole(tables, record, str(name), number, round, kept), path, str(name)))


async def _single(tables: FlowTables, record: FlowRecord, name: str) -> tuple[int, int, KeptValue]:
    """Return the number and round of a node, and what its first member returned."""
    number = [plan.name for plan in record.graph.nodes].index(name)
    kept = await tables.values(record.id, number, record.rounds[number])
    if not kept:
        raise InvalidPayload(f"node {name!r} has returned nothing that could be taken")
    return number, record.rounds[number], kept[0]


async def _values(tables: FlowTables, record: FlowRecord, names: Iterable[str]) -> dict[str, Sequence[bytes]]:
    numbers = {plan.name: number for number, plan in enumerate(record.graph.nodes)}
    values: dict[str, Sequence[bytes]] = {}
    for name in names:
        values[name] = ()
        if name in numbers:
            number, round = numbers[name], record.rounds[numbers[name]]
            kept = await tables.values(record.id, number, round)
            values[name] = [await _whole(tables, record, name, number, round, each) for each in kept]
    return values


async def _whole(tables: FlowTables, record: FlowRecord, name: str, number: int, round: int, kept: KeptValue) -> bytes:
    """Return what a member returned as JSON; of one that has yielded it all, or InvalidPayload if that is too long for a payload."""
    if kept.items is None:
        return kept.data
    parts: list[bytes] = []
    items = size = 0
    while items < kept.items:
        pieces = await tables.pieces(record.id, number, round, kept.position, items)
        if not pieces:
            raise InvalidPayload(f"what {name} has yielded is gone")
        parts += [piece.data[1:-1] for piece in pieces]
        items = pieces[-1].first + pieces[-1].items
        size += sum(len(piece.data) for piece in pieces)
        if size > MAX_PAYLOAD:
            raise too_long_as_argument(name)
    return b"[" + b",".join(parts) + b"]"


def _streams(record: FlowRecord) -> dict[str, Source]:
    """Return what a task is given for each node that it may read as a stream."""
    return {
        plan.name: Source(node=plan.name, number=number, round=record.rounds[number], group=plan.group)
        for number, plan in enumerate(record.graph.nodes)
    }


async def _measured(tables: FlowTables, change: Change, present: FlowRecord, step: Step) -> Change:
    """Return a change with how many members maps have that are free now."""
    if not step.measures:
        return change
    nodes = dict(change.nodes)
    for number in step.measures:
        known = present.nodes[number]
        try:
            members = await _length(tables, present, present.graph.nodes[number])
            nodes[number] = msgspec.structs.replace(known, members=members)
        except InvalidPayload as error:
            nodes[number] = msgspec.structs.replace(known, error=f"InvalidPayload: {error}")
    return change._replace(nodes=sorted(nodes.items()))


def _with_errors(change: Change, refused: Mapping[tuple[str, int], str]) -> Change:
    """Return a change in which nodes whose members could not be made have failed."""
    errors = {node: error for (flow, node), error in refused.items() if flow == change.flow}
    if not errors:
        return change
    nodes = [
        (number, msgspec.structs.replace(known, opened=0, error=errors[number])) if number in errors else (number, known)
        for number, known in change.nodes
    ]
    return change._replace(nodes=nodes, more=True)


def read_flow(row: Sequence[Any], nodes: Sequence[Sequence[Any]], values: Mapping[int, KeptValue]) -> FlowRecord:
    """Turn the columns of a flow, and of its nodes (number, round, opened, ended, failed, error, members), into a record."""
    id, name, state, stopping, graph, submitted_at, submitted_by, deadline_at, finished_at, meta, key = row
    known = sorted(nodes, key=lambda node: int(node[0]))
    return FlowRecord(
        id=id,
        name=name,
        state=state,
        graph=_decode_graph(graph),
        nodes=[_known(each, values.get(each[0])) for each in known],
        rounds=[each[1] for each in known],
        stopping=stopping,
        submitted_at=submitted_at,
        submitted_by=submitted_by,
        deadline_at=deadline_at,
        finished_at=finished_at,
        meta=None if meta is None else msgspec.json.decode(meta, type=dict[str, str]),
        key=key,
    )


def _known(node: Sequence[Any], value: KeptValue | None) -> NodeFacts:
    _, _, opened, ended, failed, error, members = node
    if value is None:
        return NodeFacts(opened, ended, failed, error, None, members)
    return NodeFacts(opened, ended, failed, error, value.data, members, value.items)


def new_record(flow: NewFlow, now: Instant) -> FlowRecord:
    """Return a flow as it is stored first, before any of its members is made."""
    return FlowRecord(
        id=flow.id,
        name=flow.name,
        state="running",
        graph=flow.graph,
        nodes=[NodeFacts() for _ in flow.graph.nodes],
        rounds=[1] * len(flow.graph.nodes),
        stopping=None,
        submitted_at=now,
        submitted_by=flow.submitted_by,
        deadline_at=None if flow.deadline_in is None else now + flow.deadline_in,
        meta=flow.meta,
        key=flow.key,
    )


def check_rerun(record: FlowRecord, node: int) -> list[int]:
    """Return the nodes that begin again if a flow is rerun from one of them; none if that cannot be now."""
    states = record.states()
    if not 0 <= node < len(states) or states[node] in ("waiting", "skipped"):
        return []
    again = after(record.graph, node)
    undone = {number for number, plan in enumerate(record.graph.nodes) if plan.undoes and record.nodes[number].opened}
    if not record.graph.nodes[node].undoes and not undone <= set(again):
        return []  # the effects of a node that stays as it is were taken back
    return [] if any(record.nodes[number].opened > record.nodes[number].ended for number in again) else again


def retried_nodes(record: FlowRecord) -> list[int]:
    """Return the nodes whose members a retry takes back: of a flow that was undone only those that undo."""
    undone = is_undone(record.graph, record.nodes)
    plans = zip(record.graph.nodes, record.nodes, strict=True)
    return [number for number, (plan, known) in enumerate(plans) if known.failed > 0 and (plan.undoes or not undone)]


def kept_by_key(flow: NewFlow, holder: str | None) -> str:
    """Return the id of the flow that stands for one whose key is taken; raise DuplicateKey if the caller does not want that."""
    if holder is None or flow.if_exists != "keep":
        raise DuplicateKey(f'a live flow of {flow.name} has the key {flow.key!r}; if_exists="keep" returns that one', task_id=holder or "")
    return holder
