"""Artifacts over HTTP: the bytes go to the address that the server gives, which may be that of a bucket."""

from __future__ import annotations

import asyncio
import builtins
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from duetime.client.artifacts import ArtifactInfo, Artifacts, NewUpload, one_version
from duetime.errors import InvalidValue
from duetime.model.artifacts import check_artifact_name, check_file_name, check_note, check_run, read_reference
from duetime.remote.address import part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.artifacts import ArtifactList, UploadBody

COMMIT_WITHIN = 600.0  # seconds in which a server must have read and unpacked what was uploaded


class RemoteArtifacts(Artifacts):
    """`app.artifacts` over HTTP. The token needs the scope admin."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(
        self,
        name: str,
        path: str | Path,
        *,
        run: str | Sequence[str] = (),
        note: str = "",
        unpack: bool = True,
        by: str | None = None,
    ) -> ArtifactInfo:
        path, address = Path(path), _path(check_artifact_name(name))
        facts = {"file": check_file_name(path.name), "run": list(check_run(run)), "note": check_note(note), "unpack": unpack}
        await self._opened()
        try:
            sha256, size = await asyncio.to_thread(_hash, path)
        except OSError as error:
            raise InvalidValue(f"{path} cannot be read: {error.strerror or error}") from None
        if size == 0:
            raise InvalidValue(f"{path} is empty")
        body = UploadBody(sha256=sha256, size=size, **facts)  # type: ignore[arg-type]
        upload = await self._transport.ask(NewUpload, "POST", f"{address}/uploads", body=body, again=True)
        await self._transport.upload(upload.url, path, size)
        return await self._transport.ask(
            ArtifactInfo, "POST", f"{address}/uploads/{part(upload.id)}/commit", again=True, wait=COMMIT_WITHIN
        )

    async def get(self, reference: str) -> ArtifactInfo:
        name, version = read_reference(reference)
        await self._opened()
        return await self._transport.ask(ArtifactInfo, "GET", f"{_path(name)}/versions/{version or 'newest'}")

    async def list(self, name: str | None = None) -> builtins.list[ArtifactInfo]:
        path = "/v1/artifacts" if name is None else _path(check_artifact_name(name))
        await self._opened()
        return (await self._transport.ask(ArtifactList, "GET", path)).items

    async def restore(self, reference: str, *, by: str | None = None) -> ArtifactInfo:
        path = _version(reference)
        await self._opened()
        return await self._transport.ask(ArtifactInfo, "POST", f"{path}/restore", again=True)

    async def delete(self, reference: str, *, force: bool = False) -> ArtifactInfo:
        path = _version(reference)
        await self._opened()
        return await self._transport.ask(ArtifactInfo, "DELETE", path, query=query_params({"force": force or None}))


def _path(name: str) -> str:
    return f"/v1/artifacts/{part(name)}"


def _version(reference: str) -> str:
    name, version = one_version(reference)
    return f"{_path(name)}/versions/{version}"


def _hash(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.tell()
