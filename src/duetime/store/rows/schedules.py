"""Schedules as rows of a table: what has columns of its own, and what is stored as text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from duetime.clock import SECOND, Instant
from duetime.errors import InvalidValue
from duetime.model.rules import AfterEnd, DayCalendar, Rule, Union
from duetime.model.schedule import ScheduleRecord, ScheduleSpec, Skip, SkipReason, decode_spec, decode_state, encode
from duetime.store.schedules import DutyLease, ScheduleWrite

LONGEST_LEASE = 60.0  # seconds for which a process may take the lease of a duty
SHORT_SPEC = 10_000  # characters of a spec that is kept in memory after it was read
LAST_CHARACTER = "\U0010ffff"


class ScheduleRow(NamedTuple):
    """A schedule as it is written; the version is the one that it will have. The order is that of the columns in the statements."""

    name: str
    version: int
    id: str
    handler: str
    collection: str
    revision: int
    next_at: Instant | None
    waits: bool
    paused: bool
    declared: int | None
    created_at: Instant
    changed_at: Instant
    changed_by: str
    spec: str
    state: str


def row_of(name: str, record: ScheduleRecord, version: int) -> ScheduleRow:
    spec, state = record.spec, record.state
    return ScheduleRow(
        *(name, version, record.id, spec.handler, spec.collection or "", record.revision, record.next_at),
        *(waits(spec.rule), state.paused is not None, record.declared, record.created_at, record.changed_at, record.changed_by),
        *(encode(spec).decode(), encode(state).decode()),
    )


def read_schedule(row: Sequence[Any]) -> ScheduleRecord:
    """Turn name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec and state into a record."""
    name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state = row
    return ScheduleRecord(
        name=name,
        id=id,
        version=version,
        revision=revision,
        spec=_read_spec(spec),
        state=decode_state(state),
        next_at=next_at,
        declared=declared,
        created_at=created_at,
        changed_at=changed_at,
        changed_by=changed_by,
    )


def size_of(row: Sequence[Any]) -> int:
    """Return how large the spec in such a row is; it has the payload."""
    return len(row[9])


def _read_spec(text: str) -> ScheduleSpec:
    # four thousand long ones would be gigabytes
    return _read_short_spec(text) if len(text) <= SHORT_SPEC else decode_spec(text)


# A schedule that fires often is read again and again, with a new state and the same spec.
@functools.lru_cache(maxsize=4_096)
def _read_short_spec(text: str) -> ScheduleSpec:
    return decode_spec(text)


def waits(rule: Rule) -> bool:
    """Return whether a rule depends on the end of the last run."""
    if isinstance(rule, Union):
        return any(isinstance(part, AfterEnd) for part in rule.parts)
    return isinstance(rule, AfterEnd)


def check_names(writes: Sequence[ScheduleWrite]) -> None:
    names = [write.name for write in writes]
    if len(set(names)) < len(names):
        twice = min(name for name in names if names.count(name) > 1)
        raise InvalidValue(f"a schedule can be written once per call, but {twice!r} comes twice; write it in two calls")


def earliest(writes: Sequence[ScheduleWrite]) -> Instant | None:
    """Return when the first of these schedules is to be looked at, if any is."""
    return min((write.record.next_at for write in writes if write.record is not None and write.record.next_at is not None), default=None)


def end_of_prefix(prefix: str) -> str | None:
    """Return the first text, by code points, that sorts after every text with this prefix; None if there is none."""
    prefix = prefix.rstrip(LAST_CHARACTER)
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no characters


def read_skip(row: Sequence[Any]) -> Skip:
    schedule, planned_at, until_at, count, reason, at, note = row
    return Skip(schedule=schedule, planned_at=planned_at, until_at=until_at, count=count, reason=SkipReason(reason), at=at, note=note)


write_calendar = msgspec.json.Encoder().encode
read_calendar = msgspec.json.Decoder(DayCalendar).decode


def lease_micros(seconds: float) -> int:
    """Check the length of a lease and return it in microseconds."""
    if not 0 < seconds <= LONGEST_LEASE:
        raise InvalidValue(
            f"the lease of a duty lasts more than 0 and at most {LONGEST_LEASE:.0f} s, got {seconds}; take it again before it is over"
        )
    return round(seconds * SECOND)


def is_over(until_at: Instant, now: Instant) -> bool:
    """Return whether a lease is over, or ends so far ahead that the clock must have been set back since."""
    return not now < until_at <= now + round(LONGEST_LEASE * SECOND)


def read_duty_leases(rows: Sequence[Sequence[Any]], now: Instant) -> dict[str, DutyLease]:
    return {name: DutyLease(not is_over(until_at, now), holder, until_at, now) for name, holder, until_at in rows}
