"""The course of an alert: what is kept of each (rule, subject), and when somebody is told.

`advance` takes what is kept and what was just seen, and returns what to keep and what to tell. Evaluators write that by compare-and-set,
so of any number of them one tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from duetime.clock import MINUTE, SECOND, Instant, to_seconds
from duetime.model.alerts.conditions import kind_of
from duetime.model.alerts.rule import StoredRule

FLAPPING = 3  # beginnings within FLAP_WITHIN after which it is told once that it comes and goes
FLAP_WITHIN = 60 * MINUTE
FRESH = MINUTE  # how old the sentence of an alert may get; each writing costs one

AlertStateName = Literal["pending", "firing", "recovered"]


class ChangeKind(StrEnum):
    """What is told of an alert."""

    FIRING = "firing"
    WORSE = "worse"
    REPEATED = "repeated"
    RECOVERED = "recovered"
    FLAPPING = "flapping"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a subject that a condition holds for: a sentence, and how grave it is (higher is worse)."""

    subject: str
    text: str
    level: int = 0


class AlertState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a rule and a subject while it is not just well.

    `told` is what people know: nothing yet, that it fires, or that it flaps. `fired` are its beginnings of the last hour; for that long it
    is kept after it has recovered. `condition` is the word for what it is about.
    """

    rule: str
    rule_id: str
    subject: str
    state: AlertStateName
    since: Instant
    text: str
    text_at: Instant
    level: int = 0
    told: Literal["", "firing", "flapping"] = ""
    told_at: Instant = 0
    told_level: int = 0
    fired: tuple[Instant, ...] = ()
    acknowledged_by: str = ""
    acknowledged_at: Instant | None = None
    condition: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that is told: which rule, about what, in a sentence."""

    kind: ChangeKind
    rule: str
    subject: str
    text: str
    at: Instant
    since: Instant
    note: str = ""


class Step(NamedTuple):
    """What to keep, None for nothing any more, and what to tell."""

    state: AlertState | None
    change: Change | None


def advance(stored: StoredRule, state: AlertState | None, seen: Observation | None, subject: str, now: Instant) -> Step:
    """Return the next step of one subject. `seen` is None if the condition does not hold for it."""
    if state is not None and state.rule_id != stored.id:
        state = None  # of a rule that had this name before
    if state is not None and state.since > now:  # the store's clock was set back
        state = msgspec.structs.replace(state, since=now, told_at=min(state.told_at, now), text_at=min(state.text_at, now))
    if seen is None:
        return _not_seen(stored, state, now)
    if state is None or state.state == "recovered":
        state = _beginning(stored, state, seen, subject, now)
    if state.state == "pending":
        if now - state.since < round(to_seconds(stored.rule.sustained, "sustained") * SECOND):
            return Step(_with_text(state, seen, now), None)
        state = _firing(state, now)
    return _tell(stored, _with_text(state, seen, now), now)


def _beginning(stored: StoredRule, before: AlertState | None, seen: Observation, subject: str, now: Instant) -> AlertState:
    known = {} if before is None else {"told": before.told, "told_at": before.told_at, "fired": before.fired}
    return AlertState(
        rule=stored.rule.name,
        rule_id=stored.id,
        subject=subject,
        state="pending",
        since=now,
        text=seen.text,
        text_at=now,
        level=seen.level,
        condition=kind_of(stored.rule.when),
        **known,  # type: ignore[arg-type]
    )


def _firing(state: AlertState, now: Instant) -> AlertState:
    recent = tuple(at for at in state.fired if now - FLAP_WITHIN < at <= now)
    return msgspec.structs.replace(state, state="firing", since=now, fired=(*recent[-FLAPPING:], now))


def _with_text(state: AlertState, seen: Observation, now: Instant) -> AlertState:
    if now - state.text_at < FRESH and seen.level == state.level:
        return state
    return msgspec.structs.replace(state, text=seen.text, text_at=now, level=seen.level)


def _tell(stored: StoredRule, state: AlertState, now: Instant) -> Step:
    """Return what is told of an alert that fires."""
    if is_silent(stored, now):
        return Step(state, None)
    if state.told == "flapping":
        calm = now - state.since >= FLAP_WITHIN
        return _told(stored, state, ChangeKind.FIRING, now) if calm else Step(state, None)
    if not state.told:
        kind = ChangeKind.FLAPPING if len(state.fired) > FLAPPING else ChangeKind.FIRING
        return _told(stored, state, kind, now)
    if state.level > state.told_level:
        return _told(stored, state, ChangeKind.WORSE, now)
    repeat = stored.rule.repeat
    if repeat is not None and state.acknowledged_at is None and now - state.told_at >= round(to_seconds(repeat, "repeat") * SECOND):
        return _told(stored, state, ChangeKind.REPEATED, now)
    return Step(state, None)


def _told(stored: StoredRule, state: AlertState, kind: ChangeKind, now: Instant) -> Step:
    told: Literal["firing", "flapping"] = "flapping" if kind is ChangeKind.FLAPPING else "firing"
    text = state.text
    if kind is ChangeKind.FLAPPING:
        text = f"{text} It has begun {len(state.fired)} times within an hour; its changes are not told until it stays as it is for an hour."
    after = msgspec.structs.replace(state, told=told, told_at=now, told_level=state.level)
    return Step(after, _change(stored, state, kind, text, now))


def _not_seen(stored: StoredRule, state: AlertState | None, now: Instant) -> Step:
    if state is None or state.state == "pending":
        # what was only pending has never been told; what is known of earlier beginnings goes with it if it is old
        if state is not None and state.fired and now - state.fired[-1] < FLAP_WITHIN:
            return Step(msgspec.structs.replace(state, state="recovered", since=state.fired[-1]), None)
        return Step(None, None)
    if state.state == "firing":
        state = msgspec.structs.replace(state, state="recovered", since=now, acknowledged_by="", acknowledged_at=None)
    old = now - state.since >= FLAP_WITHIN
    if state.told == "firing" and not is_silent(stored, now):
        return Step(msgspec.structs.replace(state, told=""), _change(stored, state, ChangeKind.RECOVERED, f"Over: {state.text}", now))
    if state.told == "flapping" and old and not is_silent(stored, now):
        return Step(None, _change(stored, state, ChangeKind.RECOVERED, f"Over, for an hour now: {state.text}", now))
    return Step(None if old and not state.told else state, None)


def _change(stored: StoredRule, state: AlertState, kind: ChangeKind, text: str, now: Instant) -> Change:
    return Change(kind=kind, rule=stored.rule.name, subject=state.subject, text=text, at=now, since=state.since, note=stored.rule.note)


def is_silent(stored: StoredRule, now: Instant) -> bool:
    """Return whether nothing is told of a rule now: it is muted, or these are its quiet hours."""
    return (stored.muted_until is not None and now < stored.muted_until) or stored.rule.is_quiet(now)


# ---- how much a channel is told ----

AT_ONCE = 10  # messages of a channel in a minute; more changes than that go into one
MOST_LISTED = 100  # changes that one message lists


class Pace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a channel was told in the last minute, and what waits for the next message of many changes."""

    sent: tuple[Instant, ...] = ()
    waiting: tuple[Change, ...] = ()
    more: int = 0  # changes that wait and are not listed


class Paced(NamedTuple):
    """What to keep of a channel's pace, and the changes of each message that is due now, with how many are not listed."""

    pace: Pace
    messages: Sequence[tuple[tuple[Change, ...], int]]


def paced(pace: Pace, changes: Sequence[Change], now: Instant) -> Paced:
    """Divide changes into messages: one each while they are few, and one for all of them once there are more than ten in a minute."""
    sent = tuple(at for at in pace.sent if now - MINUTE < at <= now)
    waiting, more = (*pace.waiting, *changes), pace.more
    if not waiting:
        return Paced(Pace(sent) if sent else Pace(), ())
    if len(waiting) <= AT_ONCE - len(sent) and not more:
        return Paced(Pace((*sent, *([now] * len(waiting)))), [((each,), 0) for each in waiting])
    listed, more = waiting[:MOST_LISTED], more + max(0, len(waiting) - MOST_LISTED)
    if len(sent) >= AT_ONCE:  # the minute is full
        return Paced(Pace(sent, listed, more), ())
    return Paced(Pace((*sent, *([now] * (AT_ONCE - len(sent))))), [(listed, more)])
