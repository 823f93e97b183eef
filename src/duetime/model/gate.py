"""Gates: a rule that pauses or drops a handler's tasks, all of them or those of one collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.model.names import HandlerNames


class GateAction(StrEnum):
    """Pause: tasks wait and run when the gate opens. Drop: tasks that come due are recorded as `dropped`."""

    PAUSE = "pause"
    DROP = "drop"


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate. Without `collection` it applies to the whole handler; with `until_at` it opens by itself.

    An `automatic` one was set because a target is broken (`model.disabling`): at `probe_at`, and every `probe_every` seconds from then
    on, one task passes it.
    """

    handler: str
    collection: str | None = None
    action: GateAction
    until_at: Instant | None = None
    note: str = ""
    set_by: str = ""
    set_at: Instant = 0
    automatic: bool = False
    probe_at: Instant | None = None
    probe_every: float | None = None

    def closed(self, now: Instant) -> bool:
        return self.until_at is None or now < self.until_at


class Gates:
    """All gates at one version, immutable. Consulted at every claim and every start.

    A gate on a handler is one on each of its names, whichever it was set by: tasks are stored under the name they were submitted by.
    """

    def __init__(self, version: int = 0, gates: Iterable[Gate] = (), names: HandlerNames | None = None) -> None:
        self.version = version
        self.as_set = list(gates)
        self._by_lane = {(gate.handler, gate.collection): gate for gate in self.as_set}
        self._divided = frozenset(handler for handler, collection in self._by_lane if collection is not None)
        if names:
            self.as_set = [msgspec.structs.replace(gate, handler=names.present(gate.handler)) for gate in self.as_set]
            every = (msgspec.structs.replace(gate, handler=name) for gate in self.as_set for name in names.all(gate.handler))
            self._by_lane = {(gate.handler, gate.collection): gate for gate in every}
            self._divided = frozenset(handler for handler, collection in self._by_lane if collection is not None)

    def divides(self, handler: str) -> bool:
        """Return whether collections of a handler may differ: without a gate on one of them, the handler's gate is that of all."""
        return handler in self._divided

    def __iter__(self) -> Iterator[Gate]:
        """Return the gates, each once for every name of its handler; `as_set` has each once, under the present name."""
        return iter(self._by_lane.values())

    def __bool__(self) -> bool:
        return bool(self._by_lane)

    def holding(self, handler: str, collection: str | None, now: Instant) -> Gate | None:
        """Return the gate that applies to such a task now: one that a person has set, if there is one.

        Of several a collection's own takes precedence over its handler's.
        """
        if not self._by_lane:
            return None
        automatic = None
        for lane in ((handler, collection), (handler, None)):
            gate = self._by_lane.get(lane)
            if gate is not None and gate.closed(now):
                if not gate.automatic:
                    return gate
                automatic = automatic or gate
        return automatic

    def all_holding(self, handler: str, collection: str | None, now: Instant) -> list[Gate]:
        """Return every gate that must open before such a task runs, the one that applies now first."""
        gates = [self._by_lane.get(lane) for lane in dict.fromkeys(((handler, collection), (handler, None)))]
        return sorted((gate for gate in gates if gate is not None and gate.closed(now)), key=lambda gate: gate.automatic)

    def probes(self, gate: Gate, handler: str, collection: str | None, now: Instant) -> bool:
        """Return whether such a task may pass this gate, of its own handler, as a probe: nothing but an automatic gate holds it."""
        holding = self.holding(handler, collection, now)
        return holding is not None and holding.automatic and holding.collection == gate.collection
