"""Intents: carries out the cancels and edits that callers' transactions have asked for."""

from __future__ import annotations

from duetime.runtime.service import Alarms, Service
from duetime.store.intents import IntentStore
from duetime.store.values import Hint, HintKind

BATCH = 1_000
LOOK_EVERY = 1.0


class Intents(Service):
    """Looks when a hint says that a transaction may have left intents, and every second, because a hint can be lost."""

    name = "intents"

    def __init__(self, store: IntentStore, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store

    def on_hint(self, hint: Hint) -> None:
        if hint.kind in (HintKind.INTENTS, HintKind.ANY):
            self.wake()

    async def run_once(self) -> float | None:
        return 0.01 if await self._store.carry_out(BATCH) >= BATCH else LOOK_EVERY
