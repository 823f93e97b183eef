"""Artifacts and uploads as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.model.artifacts import Artifact, ArtifactKind, Content, Upload

_decode = msgspec.json.Decoder(tuple[str, ...]).decode


def upload_row(upload: Upload) -> list[Any]:
    """Return the columns of a new upload in the order of the statements."""
    return [*_content(upload), upload.id, upload.unpack, upload.signature, upload.expires_at]


def read_upload_row(row: Sequence[Any]) -> Upload:
    *content, id, unpack, signature, expires_at, version = row
    facts = _read_content(content)
    return Upload(**facts, id=id, unpack=bool(unpack), signature=signature, expires_at=expires_at, version=version)


def artifact_row(upload: Upload, version: int, kind: ArtifactKind) -> list[Any]:
    """Return the columns of the version that an upload becomes."""
    return [*_content(upload), version, kind]


def read_artifact_row(row: Sequence[Any]) -> Artifact:
    *content, version, kind = row
    return Artifact(**_read_content(content), version=version, kind=kind)


def same_content(newest: Artifact, upload: Upload, kind: ArtifactKind) -> bool:
    """Return whether an upload brings what the newest version is already."""
    return (newest.sha256, newest.kind, newest.file, newest.run) == (upload.sha256, kind, upload.file, upload.run)


def _content(content: Content) -> list[Any]:
    run = msgspec.json.encode(content.run).decode()
    return [content.name, content.sha256, content.size, content.file, run, content.note, content.made_at, content.made_by]


def _read_content(row: Sequence[Any]) -> dict[str, Any]:
    name, sha256, size, file, run, note, made_at, made_by = row
    return {
        "name": name,
        "sha256": sha256,
        "size": size,
        "file": file,
        "run": _decode(run),
        "note": note,
        "made_at": made_at,
        "made_by": made_by,
    }
