"""Gates: an operator's rule that pauses or drops a handler's tasks, all of them or those of one collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from duetime.clock import Instant


class GateAction(StrEnum):
    """Pause: tasks wait and run when the gate opens. Drop: tasks that come due are recorded as `dropped`."""

    PAUSE = "pause"
    DROP = "drop"


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate. Without `collection` it applies to the whole handler; with `until_at` it opens by itself."""

    handler: str
    collection: str | None = None
    action: GateAction
    until_at: Instant | None = None
    note: str = ""
    set_by: str = ""
    set_at: Instant = 0

    def closed(self, now: Instant) -> bool:
        return self.until_at is None or now < self.until_at


class Gates:
    """All gates at one version, immutable. Consulted at every claim and every start."""

    def __init__(self, version: int = 0, gates: Iterable[Gate] = ()) -> None:
        self.version = version
        self._by_lane = {(gate.handler, gate.collection): gate for gate in gates}

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._by_lane.values())

    def __bool__(self) -> bool:
        return bool(self._by_lane)

    def holding(self, handler: str, collection: str | None, now: Instant) -> Gate | None:
        """Return the gate that applies to such a task now. A collection's own gate takes precedence over its handler's."""
        if not self._by_lane:
            return None
        for lane in ((handler, collection), (handler, None)):
            gate = self._by_lane.get(lane)
            if gate is not None and gate.closed(now):
                return gate
        return None
