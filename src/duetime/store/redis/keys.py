"""The names of all keys. They share a hash tag, so that a cluster keeps them together."""

from __future__ import annotations

from duetime.model.task import State

LETTERS = {State.SUCCEEDED: "S", State.FAILED: "F", State.CANCELLED: "C", State.DROPPED: "D", State.EXPIRED: "E"}

# in the order in which `lua/common.lua` reads them
_FIXED = (
    *("meta", "workers", "facts", "records", "ends", "expiry", "live", "all", "holders", "latest", "tallies", "progress", "parked"),
    *("lanes", "children", "blocked", "freed", *(f"ended:{state.value}" for state in LETTERS)),
)


class Keys:
    """Names of keys; each script is called with all fixed ones first."""

    def __init__(self, prefix: str) -> None:
        self._tag = f"{{{prefix}}}:"
        self.fixed = [self._tag + name for name in _FIXED]
        self.meta, self.workers, self.facts, self.records, self.ends, self.expiry, self.live, self.all = self.fixed[:8]
        self.holders, self.latest, self.tallies, self.progress, self.parked, self.lanes = self.fixed[8:14]
        self.children, self.blocked, self.freed = self.fixed[14:17]
        self.output = f"{self._tag}output"
        self.channel = f"{self._tag}hints"

    def ended(self, state: State) -> str:
        return f"{self._tag}ended:{state.value}"

    def lane(self, name: str) -> str:
        return f"{self._tag}due:{name}"

    def running(self, worker: str) -> str:
        return f"{self._tag}running:{worker}"

    def attempts(self, task: str) -> str:
        return f"{self._tag}attempts:{task}"

    def chunks(self, task: str) -> str:
        return f"{self._tag}output:{task}"


def lane_name(handler: str, collection: str | None, priority: int) -> str:
    return f"{priority}{handler}\0{collection or ''}"


def handler_of(lane: str) -> str:
    return lane[1 : lane.index("\0")]


def collection_of(lane: str) -> str | None:
    return lane[lane.index("\0") + 1 :] or None


def priority_of(lane: str) -> int:
    return int(lane[0])
