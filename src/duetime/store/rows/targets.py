"""Stored targets as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.model.targets import NewTarget, StoredTarget


def read_target_row(row: Sequence[Any]) -> StoredTarget:
    """Turn the columns into a target."""
    name, kind, definition, version, changed_at, changed_by, shadowed = row
    return StoredTarget(
        name=name,
        kind=kind,
        definition=definition.encode(),
        version=version,
        changed_at=changed_at,
        changed_by=changed_by,
        shadowed=bool(shadowed),
    )


def is_stored(target: NewTarget, stored: StoredTarget | None) -> bool:
    """Return whether exactly this is in force already."""
    return stored is not None and not stored.shadowed and (stored.kind, stored.definition) == (target.kind, target.definition)


def is_as_seen(stored: StoredTarget | None, seen: int | None) -> bool:
    return seen is None or seen == (0 if stored is None else stored.version)
