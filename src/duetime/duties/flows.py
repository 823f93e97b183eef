"""Flows: takes the steps that whoever ended a member has not taken, because its process died between its commit and its look."""

from __future__ import annotations

import random

from duetime.runtime.service import Alarms, Service
from duetime.store.flows import FLOWS_AT_ONCE, FlowStore

LOOK_EVERY = 1.0


class Flows(Service):
    """Looks every second whether flows can go on, make further members, or have to stop."""

    name = "flows"

    def __init__(self, store: FlowStore, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store

    async def run_once(self) -> float | None:
        return 0.01 if await self.look() >= FLOWS_AT_ONCE else LOOK_EVERY * random.uniform(0.8, 1.2)

    async def look(self) -> int:
        """Take the next step where one is to be taken; return in how many flows."""
        return await self._store.advance_flows()
