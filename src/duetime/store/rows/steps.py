"""Steps and signals as both SQL stores keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.model.steps import SignalRecord, StepKind, StepRecord

_decode_children = msgspec.json.Decoder(tuple[str, ...]).decode


def write_children(children: Sequence[str]) -> str | None:
    return msgspec.json.encode(list(children)).decode() if children else None


def read_children(text: str | None) -> tuple[str, ...]:
    return () if text is None else _decode_children(text)


def read_step(row: Sequence[Any]) -> StepRecord:
    name, kind, attempt, at, done, late, data, signal, wake_at, children = row
    return StepRecord(
        name=name,
        kind=StepKind(kind),
        attempt=attempt,
        at=at,
        done=bool(done),
        late=bool(late),
        data=None if data is None else data.encode(),
        signal=signal,
        wake_at=wake_at,
        children=read_children(children),
    )


def read_signal(row: Sequence[Any]) -> SignalRecord:
    number, name, signal_id, data, sent_at, sent_by, keep_until, task = row
    return SignalRecord(
        number=number,
        name=name,
        id=signal_id,
        data=data.encode(),
        sent_at=sent_at,
        sent_by=sent_by,
        keep_until=keep_until,
        task=task,
    )
