"""Waits: does what looks after a commit have missed, because their process died, or the commit was a caller's."""

from __future__ import annotations

import random

from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import Hint, HintKind

LOOK_EVERY = 1.0


class Waits(Service):
    """Looks every second whether signals meet who waits for them, waits are over, or tasks wait for children whose parent has ended."""

    name = "waits"

    def __init__(self, store: Store, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._more = False

    def on_hint(self, hint: Hint) -> None:
        if hint.kind in (HintKind.INTENTS, HintKind.ANY):  # a caller's transaction may have sent a signal
            self.wake()

    async def run_once(self) -> float | None:
        await self.look()
        return 0.01 if self._more else LOOK_EVERY * random.uniform(0.8, 1.2)

    async def look(self) -> int:
        """Look once; return how many tasks go on, or were cancelled with their parent."""
        await self._store.look_at_limits()
        looked = await self._store.look_at_waits()
        self._more = looked.more
        if looked.orphans:
            await self._store.cancel(looked.orphans)
        return looked.woken + len(looked.orphans)
