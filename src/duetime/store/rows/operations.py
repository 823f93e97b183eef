"""Operations as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.clock import LATEST, Instant
from duetime.model.operation import Operation, OperationProgress, OperationSpec, OperationState
from duetime.store.values import Edit

FROM_THE_LATEST: tuple[Instant, str] = (LATEST, "")

_spec = msgspec.json.Decoder(OperationSpec).decode
_progress = msgspec.json.Decoder(OperationProgress).decode
_batch = msgspec.json.Decoder(tuple[str, ...]).decode


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def new_row(operation: Operation, now: Instant | None) -> list[Any]:
    """Return the columns of an operation that starts."""
    texts = [_json(part) for part in (operation.spec, operation.progress, operation.batch)]
    return [operation.id, operation.state.value, operation.version, now, operation.ended_at, *texts]


def next_row(operation: Operation) -> list[Any]:
    """Return the columns that change, and then the id and the version before."""
    texts = [_json(part) for part in (operation.spec, operation.progress, operation.batch)]
    return [operation.state.value, operation.version, operation.ended_at, *texts, operation.id, operation.version - 1]


def read_row(row: Sequence[Any]) -> Operation:
    name, state, version, started_at, ended_at, spec, progress, batch = row
    return Operation(
        id=name,
        spec=_spec(spec),
        state=OperationState(state),
        version=version,
        started_at=started_at,
        ended_at=ended_at,
        progress=_progress(progress),
        batch=_batch(batch),
    )


def edits_of(operation: Operation) -> list[Edit]:
    """Return what an edit says about each task of the batch."""
    changes = operation.spec.changes
    assert changes is not None
    return [Edit(id=task, due_at=changes.due_at, priority=changes.priority, collection=changes.collection) for task in operation.batch]
