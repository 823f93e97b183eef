"""Fences: a number for every attempt of a task that is higher than those of all earlier ones, whatever the store has lost.

A store that goes on from a copy (a fail-over to a replica that lags, a restored backup) may have forgotten its last claims, so it gives
their attempts' numbers away again, to attempts that run beside receivers which still hear from the former ones. Each such event begins an
*epoch*, and a fence is the epoch's number followed by the attempt's. Before the first one a fence is the attempt's number.
"""

from __future__ import annotations

from duetime.clock import SECOND, Instant

ATTEMPTS = 2**21  # so many attempts of a task have different fences in an epoch; all fences are below 2**53, which JSON holds exactly
_FIRST = 1_767_225_600  # 2026-01-01, in seconds of Unix time


def fence_of(epoch: int, attempt: int) -> int:
    return epoch * ATTEMPTS + attempt


def attempt_of(fence: int) -> int:
    return fence % ATTEMPTS


def next_epoch(epoch: int, now: Instant) -> int:
    """Return the number of the epoch that begins now. It goes by the clock, because the copy may not know the last one either."""
    return max(epoch + 1, now // SECOND - _FIRST)
