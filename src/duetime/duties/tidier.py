"""The tidier: lets the store do its periodic maintenance, and adds up failures by kind."""

from __future__ import annotations

import random

from duetime.runtime.service import Alarms, Service
from duetime.store import Store

LOOK_EVERY = 5.0


class Tidier(Service):
    """Tidies at its start and then every few seconds, with jitter."""

    name = "tidier"

    def __init__(self, store: Store, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store

    async def run_once(self) -> float | None:
        await self.tidy()
        return LOOK_EVERY * random.uniform(0.8, 1.2)

    async def tidy(self) -> None:
        await self._store.tidy()
        while await self._store.fold_failures():
            self.progressed()
