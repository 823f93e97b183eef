"""Policies that handlers of every kind can have, checked the same way in code and in what is stored."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.disabling import DisableAfter, Disabling
from duetime.model.task import LONGEST_KEPT, State

DisableScope: TypeAlias = Literal["handler", "collection"]


def own_retention(
    succeeded: Seconds | None, failed: Seconds | None, cancelled: Seconds | None, dropped: Seconds | None, expired: Seconds | None
) -> dict[State, float]:
    """Check how long a handler's finished tasks are kept, and return that in seconds; None: as the settings say."""
    given = {
        State.SUCCEEDED: succeeded,
        State.FAILED: failed,
        State.CANCELLED: cancelled,
        State.DROPPED: dropped,
        State.EXPIRED: expired,
    }
    keep = {state: to_seconds(kept, f"keep_{state}") for state, kept in given.items() if kept is not None}
    for state, seconds in keep.items():
        if not 0 <= seconds <= LONGEST_KEPT:
            raise InvalidValue(
                f"keep_{state} must lie between 0 and {LONGEST_KEPT / 86_400:,.0f} days, got {seconds:g} s; "
                f"leave it out to keep what DUETIME_KEEP_{state.upper()} says"
            )
    return keep


def disabling_of(after: int | DisableAfter | None, scope: DisableScope) -> Disabling:
    """Check what a handler declares about being disabled."""
    if scope not in get_args(DisableScope):
        raise InvalidValue(f'disable must be "handler" or "collection", got {scope!r}')
    if after is not None and not isinstance(after, DisableAfter):
        after = DisableAfter(after)
    return Disabling(after, by_collection=scope == "collection")
