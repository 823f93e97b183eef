"""Versions of artifacts, and uploads, in the database."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import Instant
from duetime.model.artifacts import Artifact, ArtifactKind, Upload
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.rows.artifacts import artifact_row, read_artifact_row, read_upload_row, same_content, upload_row
from duetime.store.sql import Statements


async def finish_upload(run: Runner, sql: Statements, id: str, kind: ArtifactKind) -> Artifact | None:
    await run.rows(sql.lock_artifacts)
    rows = await run.rows(sql.get_upload, [id])
    if not rows:
        return None
    upload = read_upload_row(rows[0])
    if upload.version is not None:
        found = await run.rows(sql.get_artifact, [upload.name, upload.version])
        return read_artifact_row(found[0]) if found else None
    stored = await run.rows(sql.newest_artifact, [upload.name])
    newest = read_artifact_row(stored[0]) if stored else None
    if newest is None or not same_content(newest, upload, kind):
        [[last]] = await run.rows(sql.last_artifact, [upload.name])
        row = artifact_row(upload, last + 1, kind)
        await run.rows(sql.insert_artifact, row)
        newest = read_artifact_row(row)
    await run.rows(sql.finish_upload, [newest.version, id])
    return newest


async def remove_artifact(run: Runner, sql: Statements, name: str, version: int, seen: SeenArtifact | None) -> Artifact | ArtifactGone:
    if seen is not None:
        [[targets]] = await run.rows(sql.lock_targets)
        await run.rows(sql.lock_artifacts)
        versions = tuple(read_artifact_row(row).version for row in await run.rows(sql.all_artifacts, [name]))
        if seen != SeenArtifact(targets, versions):
            return ArtifactGone.CHANGED
    rows = await run.rows(sql.remove_artifact, [name, version])
    return read_artifact_row(rows[0]) if rows else ArtifactGone.UNKNOWN


class Artifacts(OpenSchema):
    """Where versions of artifacts and uploads live."""

    async def add_upload(self, upload: Upload) -> None:
        await self._opened.rows(self._sql.insert_upload, upload_row(upload))

    async def upload(self, id: str) -> Upload | None:
        rows = await self._opened.rows(self._sql.get_upload, [id])
        return read_upload_row(rows[0]) if rows else None

    async def finish_upload(self, id: str, kind: ArtifactKind) -> Artifact | None:
        return await self._opened.transaction(lambda run: finish_upload(run, self._sql, id, kind))

    async def artifacts(self, name: str | None = None) -> list[Artifact]:
        return [read_artifact_row(row) for row in await self._opened.rows(self._sql.all_artifacts, [name])]

    async def artifact(self, name: str, version: int | None = None) -> Artifact | None:
        if version is None:
            rows = await self._opened.rows(self._sql.newest_artifact, [name])
        else:
            rows = await self._opened.rows(self._sql.get_artifact, [name, version])
        return read_artifact_row(rows[0]) if rows else None

    async def remove_artifact(self, name: str, version: int, seen: SeenArtifact | None = None) -> Artifact | ArtifactGone:
        return await self._opened.transaction(lambda run: remove_artifact(run, self._sql, name, version, seen))

    async def needs_blob(self, sha256: str) -> bool:
        [[needed]] = await self._opened.rows(self._sql.needs_blob, [sha256])
        return bool(needed)

    async def ended_uploads(self, before: Instant, limit: int) -> list[str]:
        return [id for [id] in await self._opened.rows(self._sql.ended_uploads, [before, limit])]

    async def remove_uploads(self, ids: Sequence[str]) -> None:
        if ids:
            await self._opened.rows(self._sql.remove_uploads, [list(ids)])
