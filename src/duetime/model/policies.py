"""The policies for missed occurrences and for overlapping runs. People write them in a few words.

missed   skip │ latest │ earliest │ all [within DURATION] [at most N] [at N/s│min│h]
overlap  skip │ queue one │ queue all │ cancel │ allow [N]
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, NoReturn

import msgspec

from duetime.clock import SECOND
from duetime.errors import InvalidValue
from duetime.model.rules.reading import read_duration

DEFAULT_AT_MOST: Final = 1_000  # missed occurrences that "all" catches up with
MOST_AT_MOST: Final = 100_000
MOST_ALLOWED: Final = 1_000
LONGEST_WITHIN: Final = 3_660 * 86_400.0
_PER: Final = {"s": SECOND, "min": 60 * SECOND, "h": 3_600 * SECOND}
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))
_ALL = re.compile(r"all(?: within (?P<within>.+?))?(?: at most (?P<most>\S+))?(?: at (?P<rate>[^/\s]+) ?/ ?(?P<per>\S+))?")


class Missed(msgspec.Struct, frozen=True):
    """Which missed occurrences still become tasks. The other fields are for "all".

    `within` is how many seconds ago one may have been planned, `at_most` how many become tasks (the oldest are skipped), and
    `rate` per `per` how fast.
    """

    kind: Literal["skip", "latest", "earliest", "all"]
    within: float | None = None
    at_most: int = DEFAULT_AT_MOST
    rate: int | None = None
    per: str = "min"

    @property
    def interval(self) -> int:
        """Microseconds between the due times of two tasks of missed occurrences."""
        return 0 if self.rate is None else _PER[self.per] // self.rate

    def __str__(self) -> str:
        words: list[str] = [self.kind]
        if self.within is not None:
            words.append(f"within {_written(self.within)}")
        if self.at_most != DEFAULT_AT_MOST:
            words.append(f"at most {self.at_most}")
        if self.rate is not None:
            words.append(f"at {self.rate}/{self.per}")
        return " ".join(words)


class Overlap(msgspec.Struct, frozen=True):
    """What an occurrence does while earlier runs have not ended. `limit` is how many runs "allow" permits at once."""

    kind: Literal["skip", "queue one", "queue all", "cancel", "allow"]
    limit: int | None = None

    def __str__(self) -> str:
        return self.kind if self.limit is None else f"{self.kind} {self.limit}"


@lru_cache(maxsize=4_096)
def read_missed(text: str) -> Missed:
    """Read the policy for missed occurrences."""
    words = _words(text, _refuse_missed)
    if words in ("skip", "latest", "earliest"):
        return Missed(words)  # type: ignore[arg-type]
    match = _ALL.fullmatch(words)
    if match is None:
        _refuse_missed(text)
    within = None if match["within"] is None else round(read_duration(match["within"], "missed: within"), 3)
    if within is not None and not 0.001 <= within <= LONGEST_WITHIN:
        raise InvalidValue(f'missed: within must be between 1 ms and ten years, got {match["within"]!r}; for example "all within 6h"')
    at_most = DEFAULT_AT_MOST if match["most"] is None else _number(match["most"], MOST_AT_MOST, "missed: at most", '"all at most 100"')
    if match["rate"] is None:
        return Missed("all", within, at_most)
    per = match["per"]
    if per not in _PER:
        raise InvalidValue(f'missed: a rate is per s, min or h, got {per!r}; for example "all at 10/min"')
    return Missed("all", within, at_most, _number(match["rate"], 1_000_000, "missed: a rate", '"all at 10/min"'), per)


@lru_cache(maxsize=4_096)
def read_overlap(text: str) -> Overlap:
    """Read the policy for occurrences that come while earlier runs have not ended."""
    words = _words(text, _refuse_overlap)
    if words in ("skip", "queue one", "queue all", "cancel", "allow"):
        return Overlap(words)  # type: ignore[arg-type]
    if words == "cancel the other":
        return Overlap("cancel")
    kind, _, number = words.partition(" ")
    if kind != "allow":
        _refuse_overlap(text)
    return Overlap("allow", _number(number, MOST_ALLOWED, "overlap: allow", '"allow 3"'))


def _words(text: object, refuse: Refuse) -> str:
    return " ".join(text.lower().split()) if isinstance(text, str) else refuse(text)


class Refuse(msgspec.Struct, frozen=True):
    """Raises the error that says what a policy may be."""

    name: str
    allowed: str
    example: str

    def __call__(self, text: object) -> NoReturn:
        raise InvalidValue(f"{self.name} must be {self.allowed}, got {text!r}; for example {self.example}")


_refuse_missed = Refuse(
    "missed", 'skip, latest, earliest or all, which may go on "within 6h", "at most 100" and "at 10/min"', '"all within 6h"'
)
_refuse_overlap = Refuse("overlap", "skip, queue one, queue all, cancel, allow or allow N", '"queue one"')


def _number(text: str, most: int, name: str, example: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= most):
        raise InvalidValue(f"{name} must be a whole number from 1 to {most:,}, got {text!r}; for example {example}")
    return int(digits)


def _written(seconds: float) -> str:
    """Return a duration in its one canonical form: "1h30m"."""
    left, parts = round(seconds * 1_000), []
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)
