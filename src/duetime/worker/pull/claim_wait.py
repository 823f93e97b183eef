"""Waiting for work while the claim of a pull worker is open."""

from __future__ import annotations

import asyncio

from duetime.store import Store
from duetime.store.values import Hint, HintKind
from duetime.worker.claim_timing import ClaimTiming


class ClaimWait:
    """One open claim: woken when there may be work for it, or when the pull worker has gone."""

    def __init__(self, store: Store, gone: asyncio.Future[None] | None) -> None:
        self._store = store
        self._gone = gone
        self.woken = asyncio.Event()
        self.timing = ClaimTiming()
        self.full = False  # whether the pull worker has no free slot, until one of its attempts ends

    def __enter__(self) -> ClaimWait:
        self._listener = self._store.listen(self._on_hint)
        if self._gone is not None:
            self._gone.add_done_callback(self._left)
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()
        if self._gone is not None:
            self._gone.remove_done_callback(self._left)

    @property
    def gone(self) -> bool:
        return self._gone is not None and self._gone.done()

    def pause(self, seconds: float) -> float:
        return self.timing.pause(self._store.now(), seconds)

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return

    def _on_hint(self, hint: Hint) -> None:
        if hint.kind is HintKind.ANY or (hint.kind is HintKind.DONE and self.full):
            self.timing.look_now()
        elif hint.kind is HintKind.DUE:
            self.timing.on_hint(hint.at, self._store.now())
        else:
            return
        self.woken.set()

    def _left(self, gone: asyncio.Future[None]) -> None:
        self.woken.set()
