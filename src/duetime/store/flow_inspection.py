"""Finding flows that are damaged: wrong counts, steps that nobody will take, and what belongs to flows that are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from duetime.model.flow import FlowFacts, decide
from duetime.store.conducting import Held, counted
from duetime.store.values import Inconsistency

INSPECTED_AT_ONCE = 100


class Ends(NamedTuple):
    """How many members of a node live, and how many are known to have ended without success."""

    live: int
    failed: int


class Correction(NamedTuple):
    """What a node's own counts must be so that they are right together with what has arrived."""

    flow: str
    node: int
    ended: int
    failed: int


class FlowsAtOneMoment(Protocol):
    """Flows, their members and what has arrived, all read at one moment."""

    async def running(self, after: str | None, limit: int) -> list[tuple[Held, bool]]:
        """Return running flows by id, after one, with what has arrived, and whether the duty will look at it by itself."""
        ...

    async def ends(self, flows: Sequence[str]) -> Mapping[tuple[str, int], Ends]:
        """Return the ends of members of present rounds, by flow and node."""
        ...

    async def correct(self, corrections: Sequence[Correction]) -> None: ...

    async def wake(self, flows: Sequence[str]) -> None:
        """Let the duty look at flows."""
        ...

    async def strays(self, *, remove: bool) -> list[str]:
        """Return the ids of flows that are gone, but of which something is left; remove that if asked to."""
        ...


async def inspect_flows(flows: FlowsAtOneMoment, *, repair: bool) -> list[Inconsistency]:
    """Look for impossible states of flows."""
    problems: list[Inconsistency] = []
    after: str | None = None
    while page := await flows.running(after, INSPECTED_AT_ONCE):
        held = [each for each, _ in page]
        ends = await flows.ends([each.record.id for each in held])
        wrong = [correction for each in held for correction in _wrong_counts(each, ends)]
        named = {each.record.id: each.record for each in held}
        for found in wrong:
            plan = named[found.flow].graph.nodes[found.node]
            detail = f"node {plan.name} of flow {named[found.flow].name} counts other ends than there are; counted anew"
            problems.append(Inconsistency("wrong count", found.flow, detail, repair))
        stuck = [each.record for each, busy in page if not busy and _is_stuck(each)]
        for record in stuck:
            detail = f"flow {record.name} could go on and nobody will look at it; its step is taken"
            problems.append(Inconsistency("stuck flow", record.id, detail, repair))
        if repair and (wrong or stuck):
            await flows.correct(wrong)
            await flows.wake(sorted({*(found.flow for found in wrong), *(record.id for record in stuck)}))
        after = held[-1].record.id
    left = "something is kept for a flow that is gone; removed"
    return problems + [Inconsistency("remains of a flow", flow, left, repair) for flow in await flows.strays(remove=repair)]


def _wrong_counts(held: Held, ends: Mapping[tuple[str, int], Ends]) -> list[Correction]:
    record = counted(held.record, held.arrivals)
    found = []
    for number, known in enumerate(record.nodes):
        live, failed = ends.get((record.id, number), Ends(0, 0))
        ended = known.opened - live
        failed = min(ended, max(failed, known.failed))  # of pruned tasks only the count tells that they failed
        if known.ended != ended:
            own = held.record.nodes[number]
            found.append(Correction(record.id, number, own.ended + ended - known.ended, own.failed + failed - known.failed))
    return found


def _is_stuck(held: Held) -> bool:
    """Return whether a flow could go on, and nothing says to the duty that it should look."""
    record = held.record
    if held.arrivals:
        return False
    step = decide(FlowFacts(graph=record.graph, nodes=record.nodes, stopping=record.stopping))
    return bool(step.opens or step.measures or step.state != record.state)
