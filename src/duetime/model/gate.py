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
    """One gate. Without `collection` it holds the whole handler; with `until_at` it opens by itself."""

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
    """All gates at one version, to be asked at every claim and every start. Never changed, only replaced."""

    def __init__(self, version: int = 0, gates: Iterable[Gate] = ()) -> None:
        self.version = version
        self._by_place = {(gate.handler, gate.collection): gate for gate in gates}

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._by_place.values())

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def holding(self, handler: str, collection: str | None, now: Instant) -> Gate | None:
        """Give the gate that holds such a task now. A collection's own gate speaks before its handler's."""
        if not self._by_place:
            return None
        for place in ((handler, collection), (handler, None)):
            gate = self._by_place.get(place)
            if gate is not None and gate.closed(now):
                return gate
        return None
