"""Versions of artifacts, and uploads, in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.artifacts import Artifact, ArtifactKind, Upload
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.store.rows.artifacts import artifact_row, read_artifact_row, read_upload_row, same_content, upload_row
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.targets import targets_version


def upload(connection: sqlite3.Connection, id: str) -> Upload | None:
    row = connection.execute(SQL.get_upload, (id,)).fetchone()
    return None if row is None else read_upload_row(row)


def finish_upload(connection: sqlite3.Connection, id: str, kind: ArtifactKind) -> Artifact | None:
    found = upload(connection, id)
    if found is None:
        return None
    if found.version is not None:
        return artifact(connection, found.name, found.version)
    newest = artifact(connection, found.name, None)
    if newest is None or not same_content(newest, found, kind):
        [last] = connection.execute(SQL.last_artifact, (found.name,)).fetchone()
        row = artifact_row(found, last + 1, kind)
        connection.execute(SQL.insert_artifact, row)
        newest = read_artifact_row(row)
    connection.execute(SQL.finish_upload, (newest.version, id))
    return newest


def artifacts(connection: sqlite3.Connection, name: str | None) -> list[Artifact]:
    return [read_artifact_row(row) for row in connection.execute(SQL.all_artifacts, {"name": name})]


def artifact(connection: sqlite3.Connection, name: str, version: int | None) -> Artifact | None:
    if version is None:
        row = connection.execute(SQL.newest_artifact, (name,)).fetchone()
    else:
        row = connection.execute(SQL.get_artifact, (name, version)).fetchone()
    return None if row is None else read_artifact_row(row)


def remove_artifact(connection: sqlite3.Connection, name: str, version: int, seen: SeenArtifact | None) -> Artifact | ArtifactGone:
    if seen is not None:
        versions = tuple(each.version for each in artifacts(connection, name))
        if seen != SeenArtifact(targets_version(connection), versions):
            return ArtifactGone.CHANGED
    found = artifact(connection, name, version)
    if found is None:
        return ArtifactGone.UNKNOWN
    connection.execute(SQL.remove_artifact, (name, version))
    return found


class Artifacts(OpenFile):
    """Where versions of artifacts and uploads live."""

    async def add_upload(self, upload: Upload) -> None:
        await self._write(lambda connection: connection.execute(SQL.insert_upload, upload_row(upload)))

    async def upload(self, id: str) -> Upload | None:
        return await self._read(lambda connection: upload(connection, id))

    async def finish_upload(self, id: str, kind: ArtifactKind) -> Artifact | None:
        return await self._write(lambda connection: finish_upload(connection, id, kind))

    async def artifacts(self, name: str | None = None) -> list[Artifact]:
        return await self._read(lambda connection: artifacts(connection, name))

    async def artifact(self, name: str, version: int | None = None) -> Artifact | None:
        return await self._read(lambda connection: artifact(connection, name, version))

    async def remove_artifact(self, name: str, version: int, seen: SeenArtifact | None = None) -> Artifact | ArtifactGone:
        return await self._write(lambda connection: remove_artifact(connection, name, version, seen))

    async def needs_blob(self, sha256: str) -> bool:
        [needed] = await self._read(lambda connection: connection.execute(SQL.needs_blob, {"sha256": sha256}).fetchone())
        return bool(needed)

    async def ended_uploads(self, before: Instant, limit: int) -> list[str]:
        return await self._read(lambda connection: [id for (id,) in connection.execute(SQL.ended_uploads, (before, limit))])

    async def remove_uploads(self, ids: Sequence[str]) -> None:
        if ids:
            await self._write(lambda connection: connection.execute(SQL.remove_uploads, (msgspec.json.encode(list(ids)).decode(),)))
