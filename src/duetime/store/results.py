"""Pages of what a node's members returned, the same in every store: for tasks that read a stream, and for people."""

from __future__ import annotations

from typing import Protocol

import msgspec

from duetime.errors import InvalidPayload
from duetime.model.flow_values import Source
from duetime.store.flows import VALUES_AT_ONCE, FlowStore, KeptValue

_as_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ResultsPage(msgspec.Struct, frozen=True):
    """Results, each as JSON, and the position to go on from; None if there are no more."""

    items: list[msgspec.Raw]
    next: int | None = None


class ReadsResults(Protocol):
    """What reads pages of results, from wherever an attempt's code runs."""

    async def results(self, task: str, source: Source, first: int) -> ResultsPage:
        """Return results of a flow that the task belongs to, from a position on."""
        ...


async def results_page(store: FlowStore, flow: str, source: Source, first: int, limit: int = VALUES_AT_ONCE) -> ResultsPage:
    """Return results from a position on: of a group that of its members, else that of the items of the list that the node returned.

    Of a group those are left out that did not succeed. A page ends after `limit` results, or about a megabyte.
    """
    if source.group:
        return await _of_members(store, flow, source, first, limit)
    kept = await store.flow_values(flow, source.number, round=source.round, limit=1)
    if not kept:
        raise InvalidPayload(f"node {source.node!r} has returned nothing that could be taken")
    if kept[0].items is not None:
        return await _of_pieces(store, flow, source, kept[0], first, limit)
    try:
        items = _as_list(kept[0].data)
    except msgspec.ValidationError:
        raise InvalidPayload(
            f"a stream takes a group, or a node that returns a list, and {source.node!r} has returned something else"
        ) from None
    end = first + limit
    return ResultsPage(items[first:end], end if end < len(items) else None)


async def _of_members(store: FlowStore, flow: str, source: Source, first: int, limit: int) -> ResultsPage:
    values = await store.flow_values(flow, source.number, round=source.round, after=first - 1, limit=limit)
    items: list[msgspec.Raw] = []
    for kept in values:
        if kept.items is not None:
            items.append(await _whole(store, flow, source, kept))
            return ResultsPage(items, kept.position + 1)  # it may be long: the page ends with it
        items.append(msgspec.Raw(kept.data))
    return ResultsPage(items, values[-1].position + 1 if values else None)


async def _of_pieces(store: FlowStore, flow: str, source: Source, kept: KeptValue, first: int, limit: int) -> ResultsPage:
    pieces = await store.flow_pieces(flow, source.number, kept.position, round=source.round, first=first)
    items = [item for piece in pieces for item in _as_list(piece.data)]
    if pieces:
        items = items[first - pieces[0].first :][:limit]
    end = first + len(items)
    return ResultsPage(items, end if items and end < (kept.items or 0) else None)


async def _whole(store: FlowStore, flow: str, source: Source, kept: KeptValue) -> msgspec.Raw:
    """Return all that one member has yielded, as a JSON list."""
    parts: list[bytes] = []
    found = 0
    while found < (kept.items or 0):
        pieces = await store.flow_pieces(flow, source.number, kept.position, round=source.round, first=found)
        if not pieces:
            break
        parts += [piece.data[1:-1] for piece in pieces]
        found = pieces[-1].first + pieces[-1].items
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")
