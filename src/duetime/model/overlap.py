"""What a schedule's next run does while earlier ones have not ended: whether it may start, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from duetime.model.policies import Overlap
from duetime.model.schedule import MOST_RUNS, SkipReason

T = TypeVar("T")


class OverlapDecision(NamedTuple, Generic[T]):
    """`refused` is why there is no further run; None: there is one, and it starts when the runs in `waits_for` have ended."""

    refused: SkipReason | None
    waits_for: Sequence[T] = ()


def decide_overlap(policy: Overlap, live: Sequence[T], remembered: int) -> OverlapDecision[T]:
    """Decide by the live runs of a schedule, the latest last.

    Runs of a backfill do not count as live. They do count as `remembered`, of which there are at most MOST_RUNS.
    """
    waits_for: Sequence[T] = ()
    match policy.kind:
        case "skip":
            refused = bool(live)
        case "queue one":
            refused, waits_for = len(live) >= 2, live[-1:]
        case "queue all":
            refused, waits_for = False, live[-1:]
        case "cancel":
            refused, waits_for = False, live
        case "allow":
            refused = policy.limit is not None and len(live) >= policy.limit
    if refused:
        return OverlapDecision(SkipReason.OVERLAP)
    if remembered >= MOST_RUNS:
        return OverlapDecision(SkipReason.FULL)
    return OverlapDecision(None, waits_for)
