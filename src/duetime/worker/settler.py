"""The settler: gathers how attempts ended and writes many at once."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate, chain

import msgspec

from duetime.errors import StoreUnavailable
from duetime.model.outcome import Acceptance, Settlement, SettleVerdict
from duetime.model.task import ErrorInfo
from duetime.model.wording import count
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import Progress

logger = logging.getLogger("duetime.worker")

LARGEST_BATCH = 2_000
MOST_WAITING = 4 * LARGEST_BATCH  # with so many outcomes unwritten no more attempts are begun: if we died, all would run again
MOST_BYTES = 16_777_216  # bytes of results in a batch: a thousand results of a megabyte would take longer than the timeout of the store
MARKS_EVERY = 0.25
NOT_STORED = "OutcomeNotStored"


def _fitting(settlements: list[Settlement]) -> int:
    """Return how many of these may be written together: at least one."""
    sizes = [0 if settlement.result is None else len(settlement.result) for settlement in settlements]
    return len(sizes) if sum(sizes) <= MOST_BYTES else max(1, bisect_right(list(accumulate(sizes)), MOST_BYTES))


class Settler(Service):
    """Writes settlements and progress. No outcome is lost while the process lives: what failed is tried again."""

    name = "settler"

    def __init__(self, store: Store, worker: str, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._waiting: list[Settlement] = []
        self._in_flight: list[list[Settlement]] = []
        self._handed_over: list[Acceptance] = []
        self._marks: dict[str, Progress] = {}
        self._marked_at = 0.0
        self._schedules: dict[str, str] = {}  # of tasks whose end is not written yet and that came from a schedule
        self._ended: set[str] = set()  # schedules with a run that has ended, which have not been woken yet
        self._space: asyncio.Future[None] | None = None  # resolved when more outcomes may come
        self._largest = LARGEST_BATCH
        self._grouping = store.grouping(worker)
        self.assistant = Assistant(self, alarms)
        self.stale = 0
        self.on_handed_over: Callable[[Iterable[str]], None] | None = None  # called when the store counts attempts as accepted

    def __len__(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._waiting) + len(self._handed_over) + sum(map(len, self._in_flight))

    def ids(self) -> set[str]:
        """Return the tasks whose end is not written yet."""
        ended = {settlement.id for settlement in chain(self._waiting, *self._in_flight)}
        return ended.union(acceptance.id for acceptance in self._handed_over)

    def put(self, *settlements: Settlement) -> asyncio.Future[None] | None:
        """Take outcomes, always. If too many wait by now, return a future to wait for before there are more."""
        if not self._waiting:
            self.wake()
        self._waiting.extend(settlements)
        if self.overfull:
            (self.assistant if self._in_flight else self).wake()
        if len(self._waiting) < MOST_WAITING:
            return None
        if self._space is None:
            self._space = asyncio.get_running_loop().create_future()
        return self._space

    def hand_over(self, acceptance: Acceptance) -> None:
        """Take an attempt whose work somebody else has accepted."""
        if not self._handed_over:
            self.wake()
        self._handed_over.append(acceptance)

    @property
    def overfull(self) -> bool:
        """Whether a whole batch waits."""
        return len(self._waiting) >= LARGEST_BATCH

    def _make_space(self) -> None:
        if self._space is not None:
            if not self._space.done():
                self._space.set_result(None)
            self._space = None

    def expect(self, task: str, schedule: str) -> None:
        """Note that a schedule may wait for the end of a task that is about to be put."""
        self._schedules[task] = schedule

    def mark(self, progress: Progress) -> None:
        if not self._marks:
            self.wake()
        self._marks[progress.id] = progress

    async def run_once(self) -> float | None:
        await self._write_handed_over()
        while self._waiting:
            if wait := self._grouping.wait(self._waiting, self._largest):
                return wait
            await self.write()
            self.progressed()
            await self._wake_schedules()
            await self._write_handed_over()
            await self._pass_marks_on()  # even if there are more outcomes for hours
        self._largest = LARGEST_BATCH
        await self._wake_schedules()
        return await self._pass_marks_on()

    async def _pass_marks_on(self) -> float | None:
        """Write progress, but not too often: it is for people. Return the seconds until the next write if some has to wait."""
        if not self._marks:
            return None
        loop = asyncio.get_running_loop()
        left = self._marked_at + MARKS_EVERY - loop.time()
        if left > 0:
            return left
        marks, self._marks = self._marks, {}
        await self._store.progress(self._worker, list(marks.values()))
        self._marked_at = loop.time()
        return None

    async def _wake_schedules(self) -> None:
        """Wake the schedules of runs that have ended: their next run may depend on it. They would also notice it later by themselves."""
        if not self._ended:
            return
        names, self._ended = self._ended, set()
        try:
            await self._store.wake_schedules(sorted(names))
        except StoreUnavailable:
            self._ended |= names  # woken with the next ones; outcomes must not wait for this

    async def _write_handed_over(self) -> None:
        """Write which attempts go on elsewhere; those that could not be written stay here until they can."""
        while self._handed_over:
            batch = self._handed_over[:LARGEST_BATCH]
            verdicts = await self._store.accept(self._worker, batch)
            del self._handed_over[: len(batch)]
            if self.on_handed_over is not None:
                self.on_handed_over(acceptance.id for acceptance in batch)
            for acceptance, verdict in zip(batch, verdicts, strict=True):
                self._schedules.pop(acceptance.id, None)
                if verdict is SettleVerdict.STALE:
                    self.stale += 1
                    text = "attempt %d of task %s was accepted elsewhere, but the task is no longer this worker's; nothing was changed"
                    logger.warning(text, acceptance.attempt, acceptance.id)

    async def write(self) -> None:
        """Write one batch; on failure it stays first in line."""
        size = _fitting(self._waiting[: self._grouping.size(self._waiting, self._largest)])
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._in_flight.append(batch)
        try:
            verdicts = await self._store.settle(self._worker, batch)
        except BaseException as error:
            self._waiting = self._again(batch, error) + self._waiting
            raise
        finally:
            self._in_flight.remove(batch)
        if len(self._waiting) <= MOST_WAITING // 2:
            self._make_space()
        if self._schedules:
            self._note_ended(batch)
        if verdicts.count(SettleVerdict.ACCEPTED) == len(batch):
            return
        for settlement, verdict in zip(batch, verdicts, strict=True):
            if verdict is SettleVerdict.STALE:
                self.stale += 1
                logger.warning(
                    "attempt %d of task %s ended %s, but the task is no longer this worker's; nothing was changed",
                    settlement.attempt,
                    settlement.id,
                    settlement.outcome,
                )

    def _note_ended(self, batch: list[Settlement]) -> None:
        ended = {self._schedules.pop(settlement.id) for settlement in batch if settlement.id in self._schedules}
        if ended:
            self._ended |= ended
            self.wake()  # the assistant may have written these

    def _again(self, batch: list[Settlement], error: BaseException) -> list[Settlement]:
        """Return what to write next time.

        If the error is not an outage, one settlement cannot be stored. It is found by writing them one by one, so that it does not hold
        up the others, and is then stored without its result and error.
        """
        if isinstance(error, StoreUnavailable) or not isinstance(error, Exception):
            return batch
        self._largest = 1
        if len(batch) > 1:
            return batch
        [settlement] = batch
        if settlement.error is not None and settlement.error.type == NOT_STORED:
            logger.error("how task %s ended cannot be stored; it will run again", settlement.id)
            return []
        text = f"how it ended could not be stored: {type(error).__name__}"
        said = ErrorInfo(NOT_STORED, text, fingerprint=settlement.fingerprint or "")
        return [msgspec.structs.replace(settlement, result=None, error=said)]

    async def drain(self) -> None:
        """Write all that is left; gives up when the store does not take it, because the tasks then run again."""
        try:
            await self._write_handed_over()
            while self._waiting:
                await self.write()
            await self._wake_schedules()
        except StoreUnavailable as error:
            logger.error(
                "%s could not be written; the same number of tasks will run again: %s", count(len(self._waiting), "outcome"), error
            )
        finally:
            self._make_space()


class Assistant(Service):
    """Writes beside the settler while whole batches wait, for a store that can take two at a time."""

    name = "settler's assistant"

    def __init__(self, settler: Settler, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._settler = settler

    async def run_once(self) -> float | None:
        while self._settler.overfull:
            await self._settler.write()
            self.progressed()
        return None
