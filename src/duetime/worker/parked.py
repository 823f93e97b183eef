"""What a worker says of tasks that do not fit its code."""

from __future__ import annotations

import logging

from duetime.model.outcome import Settlement
from duetime.store.values import ClaimedTask

logger = logging.getLogger("duetime.worker")

MOST_TOLD = 100  # kinds of misfits; a log must not grow with the number of tasks


class ToldParked:
    """Logs tasks that are parked: the first one of each kind, because there may be a million of them."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def tell(self, claimed: ClaimedTask, settlement: Settlement) -> None:
        problem = "" if settlement.error is None else settlement.error.message
        kind = (claimed.handler, problem)
        if kind in self._told or len(self._told) >= MOST_TOLD:
            return
        self._told.add(kind)
        logger.warning(
            "task %s is parked: its payload does not fit this worker's code (%s). It and others like it wait for a worker with other "
            "code, or for another payload; `duetime tasks --parked` lists them",
            claimed.id,
            problem,
        )
