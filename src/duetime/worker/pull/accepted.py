"""Reports on accepted work: whoever has accepted an attempt's work says over HTTP how far it is and how it ended."""

from __future__ import annotations

from collections.abc import Callable

from duetime.model.fences import attempt_of
from duetime.model.outcome import SettleVerdict
from duetime.store import Store
from duetime.store.accepting import Heard, OpenAttempt, Report


class Claimant:
    """Who reports on which attempt: by its number, or by the fence in a callback token."""

    def __init__(self, task: str, *, attempt: int | None = None, fence: int | None = None) -> None:
        self.task = task
        self._attempt = attempt
        self._fence = fence

    def means(self, found: OpenAttempt, *, may_overtake: bool) -> bool:
        """Return whether this is the attempt. `may_overtake`: also while a worker still runs it, as one with a callback token may."""
        task = found.task
        if self._fence is not None:
            return self._fence == task.fence and self._attempt in (None, task.attempt)
        return self._attempt == task.attempt and (found.deadline_at is not None or may_overtake)

    @property
    def number(self) -> int:
        """The attempt's number, as it is said."""
        return attempt_of(self._fence or 0) if self._attempt is None else self._attempt


async def open_attempt(store: Store, claimant: Claimant, overtakes: Callable[[str], bool]) -> OpenAttempt | None:
    """Return the running attempt that is reported on; None if there is none. `overtakes`: of which handlers reports may come early."""
    for found in await store.open_attempts([claimant.task]):
        if claimant.means(found, may_overtake=overtakes(found.task.handler)):
            return found
    return None


async def hear(store: Store, found: OpenAttempt, fraction: float | None, text: str, extend: float | None) -> Heard:
    """Note a report. One that overtakes the acceptance is answered as heard: the silence has not begun."""
    if found.deadline_at is None:
        return Heard(SettleVerdict.ACCEPTED, found.task.cancelling)
    [heard] = await store.hear([Report(found.task.id, found.task.attempt, fraction, text, extend)])
    return heard
