"""The role of the seam that is about failures of the same kind; a part of `store.control`."""

from __future__ import annotations

from typing import Protocol

from duetime.clock import Instant
from duetime.model.failures import FailureGroup

MOST_LISTED = 1_000


class FailureStore(Protocol):
    """Where failures are counted by kind. `settle` and all other verbs that end attempts count those that have a fingerprint.

    What they count is exact, whoever folds it and whenever: an attempt counts once, with the write that was accepted.
    """

    async def failures(self, since: Instant, *, handler: str | None = None) -> list[FailureGroup]:
        """Return the kinds of failures seen at an instant or later, the latest first, at most `MOST_LISTED`, with their counts since then.

        A bucket that the instant lies in counts whole. Every name of a handler stands for all of them.
        """
        ...

    async def failure(self, fingerprint: str, since: Instant) -> FailureGroup | None:
        """Return a kind of failure, whenever it was last seen, with its counts since an instant; None if it is not known."""
        ...

    async def mute_failure(self, fingerprint: str, until_at: Instant | None, by: str) -> bool:
        """Mark a kind of failure as known until an instant, or, with None, take the mark back; return whether the kind is known."""
        ...

    async def fold_failures(self) -> int:
        """Add up what was counted since the last time; return how many counts these were. No sum changes.

        Any number of processes may do it at once, and one may die in the middle of it. May leave some for the next call.
        """
        ...

    async def prune_failures(self) -> int:
        """Remove counts after `KEPT_FOR` and kinds that have none left; return how many kinds were removed.

        A kind that is muted stays until that is over. Counts older than `FINE_FOR` are kept by the hour. Of more than `MOST_GROUPS` kinds
        those go first that were not seen for the longest time.
        """
        ...
