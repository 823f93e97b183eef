"""The role of the seam that is about targets which are broken; a part of `store.control`. The rules are in `model.disabling`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from duetime.clock import Instant
from duetime.ids import new_id
from duetime.model.access import AuditEntry
from duetime.model.disabling import SET_BY, Change, Observed
from duetime.model.gate import Gate, Gates


class Probe(NamedTuple):
    """The gate that the caller may now send one task through, with the probe after that; or when to ask again."""

    gate: Gate | None
    next_at: Instant | None


class DisablingStore(Protocol):
    """Where streaks of failures live, and the probes of automatic gates."""

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        """Take what a worker has seen of its targets: count failures in a row, close and open automatic gates as `model.disabling.judge`
        says, each with an entry in the audit. Return whether a gate was closed or opened.

        Observations of any number of workers at once are taken one after another, so a streak that reaches its limit closes one gate,
        once. A gate that a person sets takes the place of an automatic one; opening a gate forgets the streak.
        """
        ...

    async def take_probe(self, handlers: Collection[str]) -> Probe:
        """Let the caller send one task through an automatic gate of these handlers whose `probe_at` has come, and move that on by its
        interval. Of all who ask at once one gets it.

        `next_at`: when a probe of these handlers is next due, if there is such a gate.
        """
        ...

    async def put_off_probe(self, gate: Gate, probe_at: Instant) -> None:
        """Let the next probe be at an instant, because nothing was there to be sent through the gate that was taken; unless the gate has
        changed since.
        """
        ...


def entry_of(worker: str, change: Change, now: Instant) -> AuditEntry | None:
    """Return what the audit says of a change; None if it is not worth an entry."""
    gate = change.close or change.open
    if gate is None:
        return None
    return AuditEntry(
        id=new_id(),
        at=now,
        by=SET_BY,
        action="gates.open" if change.close is None else f"gates.{gate.action}",
        subject=gate.handler if gate.collection is None else f"{gate.handler}, collection {gate.collection}",
        origin=f"worker {worker}",
        detail=gate.note if change.close is not None else "an attempt has succeeded",
    )


def due_probe(gates: Gates, handlers: Collection[str], now: Instant) -> Probe:
    """Return the gate of these handlers whose probe is due first, if one is, and when to look again."""
    probing = [gate for gate in gates if gate.automatic and gate.probe_at is not None and gate.handler in handlers]
    first = min(probing, key=lambda gate: gate.probe_at or 0, default=None)
    if first is None or first.probe_at is None:
        return Probe(None, None)
    return Probe(first if first.probe_at <= now else None, first.probe_at)
