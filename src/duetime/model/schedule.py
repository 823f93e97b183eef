"""Schedules: stored rules that create tasks, one per occurrence.

A `ScheduleSpec` is what people want. A `ScheduleRecord` is what a store holds: the spec, and the state that firing changes.
Every write of a record increments its `version` and succeeds only if nobody else has written it meanwhile. So each planned instant is
accounted for exactly once, however many processes fire the schedule. `model.firing` decides, a store only writes.
"""

from __future__ import annotations

import hashlib
import zlib
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from duetime.clock import MILLISECOND, Instant
from duetime.model.rules import Plan, Rule
from duetime.model.task import DEFAULT_PRIORITY, ErrorInfo, State

DEFAULT_GRACE = 10.0  # seconds for which an occurrence is only late, not missed
MOST_RUNS = 1_000  # live runs that a schedule remembers; further occurrences wait or are skipped

RunKind: TypeAlias = Literal["rule", "trigger", "backfill"]

if TYPE_CHECKING:
    RawOrNone: TypeAlias = msgspec.Raw | None
else:
    RawOrNone = msgspec.Raw  # msgspec decodes no union with Raw; None is the default, which is neither written nor read


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule does and when. `payload` and `retry` are JSON. `missed` and `overlap` are policies as `model.policies` reads them."""

    handler: str
    rule: Rule
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    calendars: tuple[str, ...] = ()  # names of day calendars that must permit an occurrence
    start_at: Instant | None = None
    end_at: Instant | None = None
    count: int | None = None  # occurrences in all
    jitter: float = 0.0  # seconds by which a task may be due later than planned, the same for the same occurrence
    missed: str = "latest"
    overlap: str = "skip"
    grace: float = DEFAULT_GRACE
    pause_after: int | None = None  # failed runs in a row
    collection: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: float | None = None
    retry: RawOrNone = None
    expires_in: int | None = None  # microseconds after the due time
    meta: dict[str, str] = {}
    note: str = ""


class Pause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why and since when a schedule does not fire. `automatic`: after too many failed runs."""

    at: Instant
    by: str = ""
    note: str = ""
    automatic: bool = False


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A task of a schedule that had not ended at the last step."""

    task: str
    planned_at: Instant
    kind: RunKind = "rule"


class LastRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the last run ended. A large `result` is left out; the task has it."""

    task: str
    state: State
    planned_at: Instant
    finished_at: Instant
    started_at: Instant | None = None
    result: RawOrNone = None
    error: ErrorInfo | None = None
    worker: str | None = None


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changes while a schedule lives. Everything planned up to `cursor` is accounted for."""

    cursor: Instant
    paused: Pause | None = None
    fired: int = 0  # occurrences of the rule that became tasks
    missed: int = 0  # occurrences that did not
    failures: int = 0  # failed runs in a row, the latest ones
    ended_at: Instant | None = None  # when the rule's last run ended, or another instant from which a delay counts; None while one runs
    runs: tuple[Run, ...] = ()
    last: LastRun | None = None
    cancel: tuple[str, ...] = ()  # tasks that the overlap policy cancels and that have not been cancelled yet
    fired_at: Instant | None = None  # when a task was last made
    planned_at: Instant | None = None  # the last occurrence that became a task
    paced_at: Instant | None = None  # the latest due time of a task that the rate of catching up has spread
    declaration: str = ""  # the fingerprint of what code declared last; operators' changes do not affect it


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule. `id` is random: a schedule that is deleted and created again under its name is another one.

    `next_at` is when to look at it again: its next occurrence, or the present if something is left to do; None if nothing is planned.
    `revision` counts changes of the spec. `declared` is the revision of the program that declared it, None if no program did.
    """

    name: str
    id: str
    version: int
    revision: int
    spec: ScheduleSpec
    state: ScheduleState
    next_at: Instant | None
    declared: int | None = None
    created_at: Instant = 0
    changed_at: Instant = 0
    changed_by: str = ""


class SkipReason(StrEnum):
    """Why an occurrence became no task."""

    MISSED = "missed"  # nobody fired it in time, and the policy for missed ones skips it
    OVERLAP = "overlap"  # an earlier run had not ended
    PAUSED = "paused"  # it fell into a pause that was not caught up with
    CHANGED = "changed"  # the schedule was changed before it was fired
    FULL = "full"  # the policy's cap was reached


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Occurrences that became no task: `count` of them from `planned_at` to `until_at`."""

    schedule: str
    planned_at: Instant
    until_at: Instant
    count: int
    reason: SkipReason
    at: Instant  # when this was decided
    note: str = ""


class Ends(msgspec.Struct, frozen=True):
    """Which runs of a schedule have ended."""

    ended: tuple[LastRun, ...] = ()  # in the order of their ends
    gone: tuple[str, ...] = ()  # runs that are not stored any more: they have ended in an unknown way


class ScheduleFacts(msgspec.Struct, frozen=True):
    """What firing needs to know of a schedule besides its record: its plan, and which of its runs have ended."""

    plan: Plan
    ends: Ends = Ends()


def occurrence_id(schedule_id: str, planned_at: Instant, kind: RunKind = "rule", number: int = 0) -> str:
    """Derive the id of an occurrence's task: a UUID of version 7 whose time is the planned one and whose shard is the schedule's."""
    digest = hashlib.blake2b(f"{schedule_id}\0{planned_at}\0{kind}\0{number}".encode(), digest_size=8).hexdigest()
    return f"{_time_of(planned_at)}-7{_shard_of(schedule_id)}-{_VARIANT[digest[0]]}{digest[1:4]}-{digest[4:]}"


_VARIANT = {f"{nibble:x}": f"{8 | nibble & 3:x}" for nibble in range(16)}  # the variant: its first two bits are always 10


@lru_cache(maxsize=4_096)  # schedules that fire together share their instant
def _time_of(planned_at: Instant) -> str:
    milliseconds = max(planned_at // MILLISECOND, 0)
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}"


@lru_cache(maxsize=16_384)
def _shard_of(schedule_id: str) -> str:
    return f"{zlib.crc32(schedule_id.encode()) & 0xFFF:03x}"


def encode(value: ScheduleSpec | ScheduleState) -> bytes:
    return _encoder.encode(value)


def decode_spec(text: bytes | str) -> ScheduleSpec:
    return _spec_decoder.decode(text)


def decode_state(text: bytes | str) -> ScheduleState:
    return _state_decoder.decode(text)


_encoder = msgspec.json.Encoder()
_spec_decoder: msgspec.json.Decoder[ScheduleSpec] = msgspec.json.Decoder(ScheduleSpec)
_state_decoder: msgspec.json.Decoder[ScheduleState] = msgspec.json.Decoder(ScheduleState)
