"""Failures of the same kind: the fingerprint that they share, and the group that is kept of them.

A fingerprint stands for a handler, the type of its error and where the error came from. Every failing attempt adds to a tally, which
is folded into groups from time to time, so that attempts that fail at once never wait for one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from duetime.clock import DAY, MINUTE, Instant
from duetime.errors import InvalidValue
from duetime.model.outcome import Outcome
from duetime.model.task import ErrorInfo, State

FINE = 5 * MINUTE  # the width of a bucket, for two days
COARSE = 60 * MINUTE  # and after that
FINE_FOR = 2 * DAY
KEPT_FOR = 92 * DAY
MOST_GROUPS = 10_000  # an error's type and message come from outside, so there may be any number of kinds
NEW_FOR = DAY
QUIET_FOR = 3 * DAY  # a kind that was not seen for so long and is seen again is worth a look
BARS = 24  # of a trend
MAX_SAMPLE = 300  # characters of a group's message

_FAILING = frozenset({Outcome.FAILED, Outcome.FATAL, Outcome.TIMED_OUT, Outcome.LOST})
_FINGERPRINT = re.compile("[0-9a-f]{16}")
_LOCATION = re.compile(r"(.*):\d+ in (.*)", re.DOTALL)
_PYTHON_FRAME = re.compile(r'^ *File "([^"\n]+)", line \d+, in (\S+)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]")
_VARIABLE = re.compile(
    r"""
      [0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}  # a UUID
    | \d{4}-\d\d-\d\d(?:[T ]\d\d:[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?  # a date, or an instant
    | \b0x[0-9A-Fa-f]+\b  # an address in memory
    | \b(?=[A-Za-z_]*\d)\w{8,}\b  # an id: letters and digits
    | (?<!\w)\d+(?:[.,:]\d+)*  # a number
    """,
    re.VERBOSE,
)
_encode = msgspec.json.Encoder().encode


class Kind(msgspec.Struct, frozen=True, gc=False):
    """What is told of failures with one fingerprint: of whose code, and what its error says, with numbers and ids blanked."""

    handler: str
    type: str
    message: str
    location: str


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Failing attempts that were written together: how many, and how many tasks failed with them."""

    fingerprint: str
    at: Instant
    attempts: int
    tasks: int
    sample: str
    kind: Kind


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """Failures of one kind in a span of time that begins at `at`."""

    at: Instant
    attempts: int
    tasks: int


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a kind of failure beside its counts. `sample` is the last task; `again_at`: seen again after days of quiet."""

    kind: Kind
    first_at: Instant
    last_at: Instant
    sample: str
    again_at: Instant | None = None


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind, as a store returns them: with the counts since an instant, oldest first."""

    fingerprint: str
    facts: GroupFacts
    buckets: Sequence[Bucket] = ()
    muted_until_at: Instant | None = None
    muted_by: str = ""


def is_failing(outcome: Outcome, state: State) -> bool:
    """Return whether an attempt that ended so failed. One that asks for a later run has not, unless that was its last."""
    return outcome in _FAILING or state is State.FAILED


def fingerprint(handler: str, error: ErrorInfo, detail: bytes | None) -> str:
    """Return what failures of the same kind share, as 16 hexadecimal digits."""
    digest = blake2b(_encode((handler, error.type, origin(error, detail))), digest_size=8)
    return digest.hexdigest()


def check_fingerprint(text: str) -> str:
    if not isinstance(text, str) or _FINGERPRINT.fullmatch(text) is None:
        raise InvalidValue(f"fingerprint must be 16 hexadecimal digits, as `duetime failures` lists them, got {str(text)[:80]!r}")
    return text


def origin(error: ErrorInfo, detail: bytes | None = None) -> str:
    """Return where an error came from, without what differs from one failure to the next.

    A command is known by its exit code or signal. The type of a request's or a message's error says it all: the status, the phase, the
    kind of refusal. Of code it is the innermost frame of the user's own, file and function without the line, which moves with every edit;
    an error that somebody else reported may have it in its traceback. Without any of these the message has to do.
    """
    if detail is not None:
        facts = msgspec.json.decode(detail)
        return str(facts.get("signal") or facts.get("exit_code", ""))
    if error.location:
        found = _LOCATION.fullmatch(error.location)
        return blanked(error.location) if found is None else f"{found[1]}:{found[2]}"
    frames = _PYTHON_FRAME.findall(error.traceback)
    own = [frame for frame in frames if _INSTALLED.search(frame[0]) is None]
    if frames:
        return ":".join((own or frames)[-1])
    return blanked(error.message)


def blanked(message: str) -> str:
    """Return the first line of a message with `#` for numbers, dates and ids, and not too long."""
    # cut before, because a message may be long, and after a little more, so that a number at the end is blanked whole
    line = message[: 2 * MAX_SAMPLE].strip().partition("\n")[0]
    text = _VARIABLE.sub("#", line)
    return text if len(text) <= MAX_SAMPLE else text[: MAX_SAMPLE - 1] + "…"


def kind_of(handler: str, error: ErrorInfo) -> Kind:
    return Kind(handler, error.type, blanked(error.message), error.location)


def bucket_of(at: Instant, width: int = FINE) -> Instant:
    return at - at % width


def fold(known: GroupFacts | None, tallies: Iterable[Tally]) -> GroupFacts:
    """Return what is known of a kind after some more of its failures; at least one if nothing is known."""
    facts = known
    for tally in sorted(tallies, key=lambda tally: tally.at):
        if facts is None:
            facts = GroupFacts(kind=tally.kind, first_at=tally.at, last_at=tally.at, sample=tally.sample)
            continue
        facts = GroupFacts(
            kind=tally.kind,
            first_at=min(facts.first_at, tally.at),
            last_at=max(facts.last_at, tally.at),
            sample=tally.sample,
            again_at=tally.at if tally.at - facts.last_at >= QUIET_FOR else facts.again_at,
        )
    assert facts is not None, "nothing is known, and there is nothing to add"
    return facts


def is_new(facts: GroupFacts, now: Instant) -> bool:
    """Return whether a kind was first seen within the last day."""
    return now - facts.first_at < NEW_FOR


def is_again(facts: GroupFacts, now: Instant) -> bool:
    """Return whether a kind was seen again within the last day, after it had been quiet for three."""
    return facts.again_at is not None and now - facts.again_at < NEW_FOR


def trend(buckets: Iterable[Bucket], since: Instant, until: Instant, bars: int = BARS) -> list[int]:
    """Return the failing attempts in equal parts of a span, oldest first. A bucket counts where it begins, or in the first part."""
    width = max(1, -(-(until - since) // bars))
    counts = [0] * bars
    for bucket in buckets:
        counts[min(max(0, (bucket.at - since) // width), bars - 1)] += bucket.attempts
    return counts
