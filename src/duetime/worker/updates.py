"""Updates: fetches what a wake-up or a renewal only hints at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import HintKind

if TYPE_CHECKING:
    from duetime.worker.worker import Worker


class Updates(Service):
    """Fetches changed gates and requested cancels."""

    name = "updates"

    def __init__(self, store: Store, worker: Worker, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._noted: set[HintKind] = set()
        self.dismissed = False

    def note_dismissed(self) -> None:
        """Note that the store took this worker for dead: it registers again as soon as nothing runs here."""
        self.dismissed = True
        self.wake()

    def note(self, kind: HintKind) -> None:
        self._noted.add(kind)
        self.wake()

    async def run_once(self) -> float | None:
        if self.dismissed:
            if self._worker.executor.running:
                return 0.1
            await self._worker.register_again()
            self.dismissed = False
        noted, self._noted = self._noted, set()
        try:
            if HintKind.GATES in noted:
                await self._worker.confirm_gates()
                self._worker.feeder.wake()
            if HintKind.CANCEL in noted:
                for attempt in await self._store.attempts_of(self._worker.id):
                    if attempt.cancelling:
                        self._worker.executor.cancel(attempt.id)
        except BaseException:
            self._noted |= noted
            raise
        return None
