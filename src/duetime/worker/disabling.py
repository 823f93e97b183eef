"""Watches how targets fare: notes the ends of attempts in memory, and tells the store once a second at most.

Only for handlers whose attempts leave this process (requests, commands, messages). `model.disabling` has the rules, the store the streaks:
what this process sees is one part of what all workers see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from duetime.clock import SECOND
from duetime.model.disabling import IN_A_ROW, MAX_LAST, DisableAfter, Disabling, Observed
from duetime.model.outcome import Ended, Outcome, Settlement
from duetime.model.task import ErrorInfo
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import ClaimedTask
from duetime.targets.spec import HandlerSpec
from duetime.worker.starts import Starts

TELL_EVERY = 1.0  # seconds

_FAILURES = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.FATAL})

Key = tuple[str, str | None]  # handler, collection


class TargetWatch(Service):
    """Tells the store what this worker has seen of its targets."""

    name = "target watch"

    def __init__(self, store: Store, worker: str, starts: Starts, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._starts = starts
        self._seen: dict[Key, Observed] = {}
        self._unavailable: dict[Key, int] = {}  # answers "not now" in a row
        self._told_at = 0.0
        self._urgent = False
        self.probe_moved: Callable[[], None] = lambda: None  # called when the store was told when the next probe is

    def accepted(self, claimed: ClaimedTask, spec: HandlerSpec) -> None:
        """Note that a target has accepted work: it answers, whatever becomes of the work."""
        self._starts.probes.discard(claimed.id)
        disabling = spec.disabling or Disabling()
        self._answered(self._key(claimed, spec.name, disabling), disabling)

    def note(self, claimed: ClaimedTask, spec: HandlerSpec, ended: Ended, settlement: Settlement) -> None:
        """Note the end of an attempt, unless it never began."""
        probe = claimed.id in self._starts.probes
        self._starts.probes.discard(claimed.id)
        if settlement.started_at is None:
            return
        disabling = spec.disabling or Disabling()
        key = self._key(claimed, spec.name, disabling)
        if ended.outcome is Outcome.SUCCEEDED or (ended.outcome in _FAILURES and disabling.after is None):
            self._answered(key, disabling)  # where failures do not count, any answer shows that the target is there
        elif ended.outcome in _FAILURES:
            self._failed(key, disabling.after, settlement)
        elif ended.unavailable is not None:
            self._unavailable[key] = number = self._unavailable.get(key, 0) + 1
            if probe or number >= IN_A_ROW:
                again_at = settlement.finished_at + round(ended.delay * SECOND)
                seen = self._about(key)
                self._put(key, msgspec.structs.replace(seen, unavailable=ended.unavailable, again_at=again_at), urgent=number <= IN_A_ROW)
        elif ended.outcome is Outcome.RETRY_LATER:
            self._unavailable.pop(key, None)

    def _key(self, claimed: ClaimedTask, handler: str, disabling: Disabling) -> Key:
        """Return what an end is about: what the closed automatic gate is about, otherwise what the handler declares."""
        gate = self._starts.gates.holding(claimed.handler, claimed.collection, self._store.now()) if self._starts.gated else None
        if gate is not None and gate.automatic:
            return handler, gate.collection
        return handler, claimed.collection if disabling.by_collection else None

    def spares(self, claimed: ClaimedTask, spec: HandlerSpec) -> bool:
        """Return whether a failure of this attempt uses up no try: it is a probe of a target that is disabled because of failures."""
        return claimed.id in self._starts.probes and spec.disabling is not None and spec.disabling.after is not None

    def _answered(self, key: Key, disabling: Disabling) -> None:
        self._unavailable.pop(key, None)
        gated = self._starts.gated and self._starts.gates.holding(*key, self._store.now()) is not None
        if gated or disabling.after is not None:
            self._put(key, Observed(handler=key[0], collection=key[1], succeeded=True, seen_gates=self._starts.gates.version), urgent=gated)

    def _failed(self, key: Key, rule: DisableAfter | None, settlement: Settlement) -> None:
        self._unavailable.pop(key, None)
        seen = self._about(key)
        since_at = seen.since_at if seen.failures else settlement.finished_at
        last = _last(settlement.error, settlement.outcome)
        grown = msgspec.structs.replace(seen, failures=seen.failures + 1, since_at=since_at, last=last, rule=rule)
        self._put(key, grown, urgent=rule is not None and grown.failures >= rule.failures)

    def _about(self, key: Key) -> Observed:
        """Return what is untold of a key, to be added to; failures from before the gates changed count no more."""
        version = self._starts.gates.version
        seen = self._seen.get(key)
        if seen is None or seen.seen_gates != version:
            return Observed(handler=key[0], collection=key[1], succeeded=seen is not None and seen.succeeded, seen_gates=version)
        return seen

    def _put(self, key: Key, seen: Observed, *, urgent: bool) -> None:
        self._seen[key] = seen
        self._urgent = self._urgent or urgent
        self.wake()

    async def run_once(self) -> float | None:
        if not self._seen:
            return None
        loop = asyncio.get_running_loop()
        left = self._told_at + TELL_EVERY - loop.time()
        if left > 0 and not self._urgent:
            return left
        self._urgent, self._told_at = False, loop.time()
        await self.tell()
        return None

    async def tell(self) -> None:
        """Tell the store what is new. What it did not take is told with what comes next."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            await self._store.observe(self._worker, list(seen.values()))
        except BaseException:
            self._seen = {key: _joined(before, self._seen.get(key)) for key, before in seen.items()} | {
                key: after for key, after in self._seen.items() if key not in seen
            }
            raise
        if any(each.unavailable is not None for each in seen.values()):
            self.probe_moved()


def _joined(before: Observed, after: Observed | None) -> Observed:
    if after is None:
        return before
    if after.succeeded or after.seen_gates != before.seen_gates:
        return after
    since_at = before.since_at if before.failures else after.since_at
    return msgspec.structs.replace(after, succeeded=before.succeeded, failures=before.failures + after.failures, since_at=since_at)


def _last(error: ErrorInfo | None, outcome: Outcome) -> str:
    """Return how an attempt failed, in a few words: the status of an answer, otherwise the error."""
    if error is None:
        return outcome.value
    status = error.type.removeprefix("Status")
    return status if status.isdecimal() else str(error)[:MAX_LAST]
