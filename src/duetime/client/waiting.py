"""Waiting for tasks to end: one poll of the store serves all callers that wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from duetime.clock import monotonic
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.model.task import FINAL, TaskRecord
from duetime.store.shard import Listener
from duetime.store.values import Hint, HintKind

LOOK_AGAIN = 1.0  # seconds between looks without a hint, because a hint can be lost
NOT_SOONER = 0.02  # seconds between looks, however many hints there are
IDS_AT_ONCE = 50  # tasks that are read together; each may have a large payload


class Waiters:
    """Callers that wait until a task is final. Polls the store only while somebody waits."""

    def __init__(
        self, read: Callable[[Sequence[str]], Awaitable[Sequence[TaskRecord | None]]], listen: Callable[[Callable[[Hint], None]], Listener]
    ) -> None:
        self._read = read
        self._listen = listen
        self._waiting: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._polling: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closed = False
        self._began_at: float | None = None

    async def until_final(self, task_id: str, seconds: float) -> None:
        """Return when the task has ended, is unknown, or the time is over; the caller then reads it."""
        if self._closed or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[task_id].add(future)
        self._woken.set()
        if self._polling is None:
            self._polling = loop.create_task(self._poll())
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            self._waiting[task_id].discard(future)
            if not self._waiting[task_id]:
                del self._waiting[task_id]
            if not self._waiting:
                self._woken.set()  # nobody waits any more

    def close(self) -> None:
        """Return to all callers now, because the server stops."""
        self._closed = True
        for futures in self._waiting.values():
            _release(futures)

    def stuck_for(self, now: float) -> float:
        return 0.0 if self._began_at is None else now - self._began_at

    async def _poll(self) -> None:
        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.DONE, HintKind.CANCEL, HintKind.ANY):
                self._woken.set()

        listener = self._listen(on_hint)
        try:
            while self._waiting:
                self._woken.clear()
                self._began_at = monotonic()
                await self._poll_once()
                took = monotonic() - self._began_at
                self._began_at = None
                await asyncio.sleep(max(NOT_SOONER, 3 * took))  # polling takes at most a quarter of the time
                try:
                    async with asyncio.timeout(LOOK_AGAIN):
                        await self._woken.wait()
                except TimeoutError:
                    continue
        finally:
            self._polling = self._began_at = None
            listener.close()

    async def _poll_once(self) -> None:
        ids = list(self._waiting)
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = ids[start : start + IDS_AT_ONCE]
            try:
                records = await self._read(some)
            except StoreUnavailable:
                continue  # the store may be back before the timeouts of the callers
            except DuetimeError:
                records = [None] * len(some)
            for task_id, record in zip(some, records, strict=True):
                if record is None or record.state in FINAL:
                    _release(self._waiting.get(task_id, ()))


def _release(futures: Sequence[asyncio.Future[None]] | set[asyncio.Future[None]]) -> None:
    for future in list(futures):
        if not future.done():
            future.set_result(None)
