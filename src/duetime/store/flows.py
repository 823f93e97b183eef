"""The role of the seam that is about flows; a part of `store.control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.flow import FlowFacts, FlowState, Graph, NodeFacts, NodeState, Stopping, evaluate
from duetime.model.task import NewTask
from duetime.store.values import Inconsistency

FLOWS_AT_ONCE = 500  # that one step of `advance_flows` takes
VALUES_AT_ONCE = 1_000  # that one page has, if they are short
PAGE_BYTES = 1_000_000  # after which a page of values ends; the last one on it may be as long itself
PIECE_ITEMS = 1_000  # of one piece
PIECES_AT_ONCE = 10
SUMMED_FROM = 64  # arrivals of a node that are worth a step, though none of its members was the last


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that is not stored yet: a graph, and the tasks of each of its nodes. `deadline_in` is in microseconds.

    A map has one task, which takes the item. At most one live flow of a name has a `key`: `if_exists` says what becomes of a second one.
    """

    id: str
    name: str
    graph: Graph
    tasks: Sequence[Sequence[NewTask[Any]]]
    submitted_by: str = ""
    deadline_in: int | None = None
    meta: Mapping[str, str] | None = None
    key: str | None = None
    if_exists: Literal["error", "keep"] = "error"


class FlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored flow. `nodes` are in the order of the graph."""

    id: str
    name: str
    state: FlowState
    graph: Graph
    nodes: Sequence[NodeFacts]
    rounds: Sequence[int]
    stopping: Stopping | None
    submitted_at: Instant
    submitted_by: str = ""
    deadline_at: Instant | None = None
    finished_at: Instant | None = None
    meta: Mapping[str, str] | None = None
    key: str | None = None

    def states(self) -> list[NodeState]:
        """Return the state of each node."""
        return evaluate(FlowFacts(graph=self.graph, nodes=self.nodes, stopping=self.stopping))


class FlowPage(msgspec.Struct, frozen=True):
    """Flows, the newest first, and the id to go on from; None if there are no more."""

    flows: list[FlowRecord]
    next: str | None = None


class FlowCount(msgspec.Struct, frozen=True):
    """How many flows of a name are in a state."""

    name: str
    state: FlowState
    number: int


class Member(msgspec.Struct, frozen=True):
    """A task of a node and its position there, from 0."""

    task: str
    position: int


class KeptValue(msgspec.Struct, frozen=True):
    """What the member at a position returned. With `items` it has yielded so many: they are in pieces, and `data` only says that."""

    position: int
    data: bytes
    items: int | None = None


class NewPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The next items that an attempt has yielded, at most PIECE_ITEMS: a JSON list of `items` of them, from the item `first` on."""

    task: str
    attempt: int
    first: int
    items: int
    data: bytes


class Piece(msgspec.Struct, frozen=True):
    """Items that a member has yielded: a JSON list of `items` of them, from the item `first` on."""

    first: int
    items: int
    data: bytes


class PieceVerdict(StrEnum):
    """What became of a piece. UNREAD: nobody reads what the task returns. STALE: the worker does not run this attempt any more."""

    KEPT = "kept"
    UNREAD = "unread"
    STALE = "stale"


class FlowVerdict(StrEnum):
    """What was done with a flow. REFUSED: its state does not allow it. DUPLICATE: another live flow has its key."""

    CHANGED = "changed"
    REFUSED = "refused"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class FlowStore(Protocol):
    """Where flows live. Whoever ends a member counts that in the same transaction, and looks after its commit whether the flow goes on."""

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        """Store a flow with the tasks of the nodes that wait for nothing, all or none of it. One whose id is stored already is a repeat.

        If a live flow of this name has its key, raise DuplicateKey, or return that one with `if_exists="keep"`.
        Of large groups a first part is made, and the rest in steps: by this call before it returns, or by `advance_flows`.
        """
        ...

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        """Do the same on the caller's connection, inside the transaction that is open there; see `add_on`.

        What large groups have beyond their first part is made by `advance_flows` after the caller's commit.
        """
        ...

    async def flows(self, ids: Sequence[str]) -> list[FlowRecord | None]:
        """Return flows by id. What has ended and is not counted yet is counted in."""
        ...

    async def flow_page(
        self, *, state: FlowState | None = None, name: str | None = None, before: str | None = None, limit: int = 50
    ) -> FlowPage:
        """List flows by their ids, the greatest first, which is the newest; those below `before`."""
        ...

    async def flow_counts(self) -> list[FlowCount]:
        """Return how many flows there are, by name and state."""
        ...

    async def flow_members(self, flow: str, node: int, *, after: int = -1, limit: int = 100) -> list[Member]:
        """List the tasks that were made for a node in its present round and are not pruned, by position."""
        ...

    async def flow_values(
        self, flow: str, node: int, *, round: int | None = None, after: int = -1, limit: int = VALUES_AT_ONCE
    ) -> list[KeptValue]:
        """Return what members of a node returned in a round, the present one if none is given, if somebody reads it: by position.

        A page ends after `limit` values, or when it has PAGE_BYTES; it is empty only if there are no more.
        """
        ...

    async def flow_pieces(self, flow: str, node: int, position: int, *, round: int | None = None, first: int = 0) -> list[Piece]:
        """Return what a member has yielded in a round, from the piece on that has the item `first`; a few pieces at once.

        Only what the attempt has yielded that succeeded is ever returned.
        """
        ...

    async def flow_of(self, task: str) -> str | None:
        """Return the id of the flow that a task is a member of; None if it is none."""
        ...

    async def save_pieces(self, worker: str, pieces: Sequence[NewPiece]) -> list[PieceVerdict]:
        """Keep what attempts of this worker have yielded.

        Committed when this returns; nobody takes the attempt away meanwhile. When a member has ended only pieces of the attempt that
        succeeded are left.
        """
        ...

    async def stop_flow(self, flow: str, why: Stopping) -> FlowVerdict:
        """Let nothing more of a flow start: once this has returned, no task of it is claimed any more, and what runs is told to end.

        REFUSED if it has ended.
        """
        ...

    async def retry_flow(self, flow: str) -> FlowVerdict:
        """Take back the members that ended without success, as `retry` does, and with them all that followed from that.

        A flow that was cancelled, or stopped by a failure, goes on. REFUSED if it has succeeded, or nothing of it can be taken back.
        """
        ...

    async def rerun_flow(self, flow: str, node: int) -> FlowVerdict:
        """Let a node and all that follows from it run again, in their next round: with new tasks, and new values.

        A stopped flow goes on. REFUSED while a member of one of these nodes lives, or if the node did not run. Tasks of earlier rounds
        are no members any more: they cannot be retried.
        """
        ...

    async def advance_flows(self, limit: int = FLOWS_AT_ONCE) -> int:
        """Take the next step in flows of which somebody who ended a member has not: he may have died between his commit and his look.

        Also make further parts of large groups, stop flows past their deadline and end what was under way in stopped ones. Return how
        many flows were looked at; 0: nothing is left to do.
        """
        ...

    async def inspect_flows(self, *, repair: bool) -> list[Inconsistency]:
        """Return flows that are damaged: with wrong counts, with steps that nobody would take, and remains of flows that are gone."""
        ...

    async def prune_flows(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` flows that ended before an instant, with what is known of their nodes and members; return how many."""
        ...
