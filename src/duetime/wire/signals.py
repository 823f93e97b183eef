"""Signals in JSON."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.clock import to_datetime, to_instant
from duetime.model.steps import KEPT, LONGEST_KEPT, SignalRecord
from duetime.wire.fields import Instant, Name, TaskId


class SendSignalBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A signal. One with the same name and id is the same one, as long as it is kept, `keep` seconds."""

    value: Any = None
    id: Name | UnsetType = UNSET
    keep: Annotated[float, Meta(ge=1, le=LONGEST_KEPT)] = KEPT


class SignalSent(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is stored; `new` unless it was there already."""

    name: str
    id: str
    new: bool


class SignalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is kept. `task`: who got it."""

    number: int
    name: str
    id: str
    value: Any
    sent_at: Instant
    sent_by: str
    keep_until: Instant
    task: TaskId | None


class SignalList(msgspec.Struct, frozen=True):
    """Kept signals, the oldest first. `next`: the cursor of the next page, null at the end."""

    items: list[SignalAnswer]
    next: str | None


class SignalsDeleted(msgspec.Struct, frozen=True):
    """How many signals were forgotten."""

    deleted: int


class SignalsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which signals to list."""

    name: Name | UnsetType = UNSET
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,18}$", description="The `next` of the page before.")] = "0"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class DeleteSignalsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which signals of a name to forget: all, or the one with this id."""

    id: Name | UnsetType = UNSET


def signal_answer(record: SignalRecord) -> SignalAnswer:
    return SignalAnswer(
        number=record.number,
        name=record.name,
        id=record.id,
        value=msgspec.json.decode(record.data),
        sent_at=to_datetime(record.sent_at),
        sent_by=record.sent_by,
        keep_until=to_datetime(record.keep_until),
        task=record.task,
    )


def record_of(answer: SignalAnswer) -> SignalRecord:
    return SignalRecord(
        number=answer.number,
        name=answer.name,
        id=answer.id,
        data=msgspec.json.encode(answer.value),
        sent_at=to_instant(answer.sent_at),
        sent_by=answer.sent_by,
        keep_until=to_instant(answer.keep_until),
        task=answer.task,
    )
