"""Secrets as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from duetime.model.secrets import MOST_VERSIONS, SealedSecret, SecretVersion


def secret_row(secret: SealedSecret) -> list[Any]:
    """Return the columns of a version in the order of the statements."""
    return [secret.name, secret.version, secret.key, secret.sealed, secret.created_at, secret.created_by, secret.until_at]


def read_version_row(row: Sequence[Any]) -> SecretVersion:
    """Turn the columns without the value into a version."""
    name, version, key, created_at, created_by, until_at = row
    return SecretVersion(name=name, version=version, key=key, created_at=created_at, created_by=created_by, until_at=until_at)


def read_sealed_rows(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> list[list[SealedSecret]]:
    """Turn the columns, followed by the value, into the versions of each name."""
    found: dict[str, list[SealedSecret]] = {name: [] for name in names}
    for name, version, key, created_at, created_by, until_at, sealed in rows:
        found[name].append(
            SealedSecret(
                name=name, version=version, key=key, created_at=created_at, created_by=created_by, until_at=until_at, sealed=sealed
            )
        )
    return [found[name] for name in names]


def put_decision(secret: SealedSecret, stored: Sequence[Sequence[Any]]) -> bool | None:
    """Return whether a put is already answered, given (version, sealed, live) of the stored versions, the newest first: None if not."""
    live = [(version, sealed) for version, sealed, is_live in stored if is_live]
    if (secret.version, secret.sealed) in live:
        return True
    newest = live[0][0] if live else 0
    return None if secret.version == newest + 1 else False


def oldest_removed(secret: SealedSecret) -> int:
    """Return the version up to which all are removed, so that no more than MOST_VERSIONS are left."""
    return secret.version - MOST_VERSIONS
