"""When a task that failed runs again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.rules.reading import duration_text

DEFAULT_TRIES = 5

MOST_SUMMED = 10_000  # tries whose delays are added up
MOST_NAMED = 6  # delays that a policy in words names one by one

REPEATS_AS_ASKED = 10
REPEAT_STEP = 0.1  # seconds
LONGEST_REPEAT_PAUSE = 60.0  # seconds


def repeat_pause(repeats: int) -> float:
    """Return the least seconds before a task runs again of which so many attempts have used up no try.

    No policy bounds these attempts: RetryLater, a shutdown, a lost worker. The first ten come as soon as they are asked for, each later one
    at least 0.1 s later than the one before it, up to a minute. A handler that asks for no delay is run 10 times at once, 45 times in the
    first minute and 278 times in the first hour; one that polls every 5 s is not slowed down before its sixtieth look.
    """
    return min(max(0, repeats - REPEATS_AS_ASKED) * REPEAT_STEP, LONGEST_REPEAT_PAUSE)


_OTHER_NAMES = dict.fromkeys(("attempts", "max_attempts", "max_retries", "max_tries", "retries"), "tries")


class _SaysName(msgspec.StructMeta):
    """Makes the error about an option that other systems have say what it is called here."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        for name in options.keys() & _OTHER_NAMES.keys():
            raise TypeError(f"RetryPolicy has no option {name!r}: write {_OTHER_NAMES[name]}=, which counts the first try too")
        return super().__call__(*args, **options)


class StoredRetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, metaclass=_SaysName):
    """The part of a retry policy that can be stored; `RetryPolicy` explains it."""

    tries: int | None = None
    base: Seconds = 1.0
    factor: float = 2.0
    cap: Seconds = 300.0
    jitter: float = 0.5
    delays: Sequence[Seconds] | None = None
    within: Seconds | None = None

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


class RetryPolicy(StoredRetry, frozen=True, kw_only=True):
    """How often, how soon and for which errors a task is tried again.

    A try is an attempt that ended Failed or TimedOut; RetryLater, a lost worker and a shutdown use up none. `tries` is how
    many there are in all, the first included. The delay before try n+1 is `base * factor**(n-1)`, at most `cap`, or the n-th
    of `delays` (the last one repeats). `jitter` is the share of the delay that is random, so that tasks which failed together
    do not come back together. No retry is due later than `within` after the task's due time. `only` and `never` are exception
    types; they live in code and are not stored.
    """

    only: tuple[type[BaseException], ...] = ()
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    def lasts(self) -> float:
        """The most seconds between the first try and the beginning of the last one, without what tries take themselves."""
        waits = sum(self.delay(used, 0.0) or 0.0 for used in range(1, min(self.max_tries, MOST_SUMMED)))
        return waits if self.within is None else min(waits, to_seconds(self.within))

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


def retry_text(numbers: Mapping[str, Any]) -> str:
    """Return a stored policy in words: "5 tries, the second after 1 second, doubling up to 8 seconds, each up to 50 % sooner".

    It says what will happen: a cap that no delay reaches is not mentioned. What a newer Duetime has stored besides is left out.
    """
    policy = RetryPolicy(**{name: numbers[name] for name in StoredRetry.__struct_fields__ if name in numbers})
    tries = policy.max_tries
    if tries == 1:
        return "1 try, no retry"
    delays = [policy.delay(used, 0.0) or 0.0 for used in range(1, min(tries, 1_000))]
    parts = [f"{tries:,} tries", _delays_text(policy, delays)]
    if policy.jitter and any(delays):
        parts.append(f"{'each ' if tries > 2 else ''}up to {policy.jitter * 100:g} % sooner")
    if policy.within is not None:
        parts.append(f"none later than {_span(to_seconds(policy.within))} after it was due")
    return ", ".join(parts)


def _delays_text(policy: RetryPolicy, delays: list[float]) -> str:
    if len(delays) == 1:
        return f"the second {_after(delays[0])}"
    if len(set(delays)) == 1:
        return f"each {_after(delays[0])}"
    if policy.delays is None:
        growth = "doubling" if policy.factor == 2 else f"each {policy.factor:g} times as long"
        return f"the second {_after(delays[0])}, {growth} up to {_span(delays[-1])}"
    named = delays[: min(len(policy.delays), MOST_NAMED)]
    if len(named) == len(delays):
        more = ""
    elif len(policy.delays) <= MOST_NAMED:
        more = f", then {_span(delays[-1])} each time"
    else:
        more = f" and so on, at last {_span(delays[-1])}"
    return f"after {', '.join(map(_span, named))}{more}"


def _after(seconds: float) -> str:
    return f"after {_span(seconds)}" if seconds >= 0.000_5 else "at once"


def _span(seconds: float) -> str:
    return duration_text(seconds) or "0 seconds"
