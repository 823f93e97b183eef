"""When a task that failed runs again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue

DEFAULT_TRIES = 5


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, how soon and for which errors a task is tried again.

    A try is an attempt that ended Failed or TimedOut; RetryLater, a lost worker and a shutdown use up none. `tries` is how
    many there are in all, the first included. The delay before try n+1 is `base * factor**(n-1)`, at most `cap`, or the n-th
    of `delays` (the last one repeats). `jitter` is the share of the delay that is random, so that tasks which failed together
    do not come back together. No retry is due later than `within` after the task's due time. `only` and `never` are exception
    types; they live in code and are not stored.
    """

    tries: int | None = None
    base: Seconds = 1.0
    factor: float = 2.0
    cap: Seconds = 300.0
    jitter: float = 0.5
    delays: Sequence[Seconds] | None = None
    within: Seconds | None = None
    only: tuple[type[BaseException], ...] = ()
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.tries is not None and (isinstance(self.tries, bool) or not isinstance(self.tries, int) or self.tries < 1):
            raise InvalidValue(f"tries must be a whole number of at least 1 (the first one included), got {self.tries!r}")
        if to_seconds(self.base, "base") < 0 or to_seconds(self.cap, "cap") < 0:
            raise InvalidValue(f"base and cap must not be negative, got base={self.base}, cap={self.cap}")
        if not 1 <= self.factor <= 100:
            raise InvalidValue(f"factor must lie between 1 and 100, got {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise InvalidValue(f"jitter must lie between 0 and 1, got {self.jitter}")
        if self.delays is not None and (not self.delays or any(to_seconds(delay, "delays") < 0 for delay in self.delays)):
            raise InvalidValue(f"delays must name at least one delay and none negative, got {list(self.delays)}")
        if self.within is not None and to_seconds(self.within, "within") <= 0:
            raise InvalidValue(f"within must be positive, got {self.within}")
        for kind in (*self.only, *self.never):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidValue(f"only and never take exception types, got {kind!r}")

    @classmethod
    def none(cls) -> Self:
        """Try once, never retry."""
        return cls(tries=1)

    @classmethod
    def fixed(cls, delay: Seconds, *, tries: int = DEFAULT_TRIES) -> Self:
        """Wait the same time before each try."""
        return cls(tries=tries, delays=(delay,), jitter=0.0)

    @classmethod
    def ladder(cls, *delays: Seconds) -> Self:
        """Wait the given times, one before each retry, then give up."""
        return cls(delays=delays, jitter=0.0)

    @property
    def max_tries(self) -> int:
        """`tries`, or its default: five, or one more than there are `delays`."""
        if self.tries is not None:
            return self.tries
        return DEFAULT_TRIES if self.delays is None else len(self.delays) + 1

    def accepts(self, error: BaseException) -> bool:
        """Return whether an exception of this kind is worth another try."""
        if self.only and not isinstance(error, self.only):
            return False
        return not isinstance(error, self.never)

    def delay(self, tries: int, chance: float) -> float | None:
        """Return the seconds to wait after `tries` used-up tries, or None if there is no further one.

        `chance` is a random number from 0 to 1. It is an argument so that the rule stays pure.
        """
        if tries >= self.max_tries:
            return None
        if self.delays is not None:
            delay = to_seconds(self.delays[min(tries, len(self.delays)) - 1])
        else:
            # the exponent is bounded because factor**tries overflows long before anyone would wait for it
            delay = min(to_seconds(self.base) * self.factor ** min(tries - 1, 64), to_seconds(self.cap))
        return delay * (1 - self.jitter * chance)

    def numbers(self) -> bytes:
        """Return the policy as JSON for a store, without exception types: no name from a store is ever imported."""
        return msgspec.json.encode(
            {
                "tries": self.max_tries,
                "base": to_seconds(self.base),
                "factor": self.factor,
                "cap": to_seconds(self.cap),
                "jitter": self.jitter,
                "delays": None if self.delays is None else [to_seconds(delay) for delay in self.delays],
                "within": None if self.within is None else to_seconds(self.within),
            }
        )

    def with_numbers(self, stored: bytes | str) -> RetryPolicy:
        """Return a policy with stored numbers and the exception types of this one."""
        numbers: dict[str, Any] = msgspec.json.decode(stored)
        return RetryPolicy(**numbers, only=self.only, never=self.never)
