"""`app.artifacts`: uploaded programs in versions that never change. Commands name them, and workers fetch and run them."""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Protocol

import msgspec

from duetime.artifacts.blobs import BlobMissing, Blobs, blob_key, upload_key
from duetime.artifacts.folder import FolderBlobs
from duetime.artifacts.receiving import WrongContent, copy_and_hash, receive
from duetime.clock import SECOND, to_datetime
from duetime.errors import ArtifactNotFound, Conflict, InvalidValue
from duetime.model.artifacts import (
    UPLOAD_WITHIN,
    Artifact,
    ArtifactKind,
    Reference,
    Upload,
    check_artifact_name,
    check_file_name,
    check_note,
    check_run,
    check_sha256,
    check_size,
    needed_by,
    read_reference,
)
from duetime.model.wording import count, listed
from duetime.store import Store
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.targets.stored.definitions import artifact_of

MOST_ARTIFACTS = 10_000  # versions of all artifacts together
MOST_NAMED = 10  # handlers in a message
ENDED_AT_ONCE = 100
AFTER_THE_END = 60 * SECOND  # for which an upload that began in time may still go on


def temporary_folder() -> AbstractContextManager[str]:
    """Return a folder that is removed at the end of the block."""
    import tempfile  # every program would pay for it

    return tempfile.TemporaryDirectory(prefix="duetime-")


class ArtifactInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an artifact. `versions` is how many there are of its name.

    `kind` says whether it is unpacked where it runs ("tar", "zip") or used as it is ("file"). `file` is how the uploaded file was
    called, and `run` what commands run that do not say it themselves.
    """

    name: str
    version: int
    versions: int
    sha256: str
    size: int
    kind: ArtifactKind
    file: str
    run: tuple[str, ...]
    note: str
    made_at: datetime
    made_by: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}, {self.size:,} bytes, SHA-256 {self.sha256[:12]}…"


class NewUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is to come. Whoever has `url` may PUT the bytes there until `expires_at`, without a token.

    An address without a host is one of the server that answered. `commit` then makes a version of what was uploaded.
    """

    id: str
    url: str
    expires_at: datetime


class Artifacts(Protocol):
    """Artifacts by name."""

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
        """Store a file as the next version: an archive (.tar, .tar.gz, .zip), which is unpacked where it runs, or a single program.

        `run` is what to run, as a list or as a line: `python main.py`. `unpack=False` keeps an archive as it is, such as a .jar.
        To put what the newest version is already changes nothing. `by` is who puts it, by default the user of this program; a server
        records the name of the token. Raises InvalidValue for an archive that is not safe to unpack.
        """
        ...

    async def get(self, reference: str) -> ArtifactInfo:
        """Return a version, `monthly@3`, or the newest one, `monthly`. Raises ArtifactNotFound."""
        ...

    async def list(self, name: str | None = None) -> list[ArtifactInfo]:
        """Return the newest version of each artifact by name; or all versions of one, the newest first."""
        ...

    async def restore(self, reference: str, *, by: str | None = None) -> ArtifactInfo:
        """Make an earlier version the newest one again, under a new number: `restore("monthly@2")` rolls back."""
        ...

    async def delete(self, reference: str, *, force: bool = False) -> ArtifactInfo:
        """Remove a version, `monthly@3`, and return what it was. Its number is not used again.

        Raises Conflict if stored targets name it, or follow the artifact of which it is the last version, unless it is forced. Whether a
        handler that is declared by code names it is not known.
        """
        ...


class LocalArtifacts(Artifacts):
    """Artifacts of a store. Without `blobs` none can be put."""

    def __init__(
        self, store: Store, blobs: Callable[[], Blobs | None], *, cap: int, user: str, opened: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._cap = cap
        self._user = user
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
        path = Path(path)
        new = self._new(name, file=path.name, run=run, note=note, unpack=unpack, by=by)
        await self._opened()
        self.kept()
        with temporary_folder() as folder:
            copy = Path(folder) / "content"
            try:
                sha256, size = await asyncio.to_thread(copy_and_hash, path, copy, self._cap)
            except OSError as error:
                raise InvalidValue(f"{path} cannot be read: {error.strerror or error}") from None
            upload = await self._begin(msgspec.structs.replace(new, sha256=sha256, size=check_size(size, self._cap)))
            return await self._keep(upload, copy)

    async def get(self, reference: str) -> ArtifactInfo:
        name, version = wanted = read_reference(reference)
        await self._opened()
        found = await self._store.artifacts(name)
        for each in found:
            if version in (None, each.version):
                return _info(each, len(found))
        raise _unknown(wanted)

    async def list(self, name: str | None = None) -> builtins.list[ArtifactInfo]:
        if name is not None:
            check_artifact_name(name)
        await self._opened()
        groups = [builtins.list(group) for _, group in groupby(await self._store.artifacts(name), key=lambda each: each.name)]
        if name is None:
            return [_info(group[0], len(group)) for group in groups]
        if not groups:
            raise _unknown(Reference(name, None))
        return [_info(each, len(groups[0])) for each in groups[0]]

    async def restore(self, reference: str, *, by: str | None = None) -> ArtifactInfo:
        name, version = one_version(reference)
        await self._opened()
        found = await self._store.artifact(name, version)
        if found is None:
            raise _unknown(Reference(name, version))
        new = self._new(name, file=found.file, run=found.run, note=f"version {version} again", unpack=found.kind != "file", by=by)
        upload = msgspec.structs.replace(new, sha256=found.sha256, size=found.size, expires_at=new.made_at)
        await self._store.add_upload(upload)
        if await self._store.artifact(name, version) is None:  # only now its bytes are safe from a delete
            await self._store.remove_uploads([upload.id])
            raise _unknown(Reference(name, version))
        return await self._finish(upload, found.kind)

    async def delete(self, reference: str, *, force: bool = False) -> ArtifactInfo:
        name, version = one_version(reference)
        await self._opened()
        removed: Artifact | ArtifactGone = ArtifactGone.CHANGED
        while removed is ArtifactGone.CHANGED:  # others put targets or remove versions at the same moment: look again
            seen = None if force else await self._not_needed(name, version)
            removed = await self._store.remove_artifact(name, version, seen)
        if not isinstance(removed, Artifact):
            raise _unknown(Reference(name, version))
        blobs = self._blobs()
        if blobs is not None and not await self._store.needs_blob(removed.sha256):
            await blobs.delete(blob_key(removed.sha256))
        return _info(removed, len(await self._store.artifacts(name)))

    async def _not_needed(self, name: str, version: int) -> SeenArtifact:
        """Raise Conflict if stored targets need a version; otherwise return what that was judged by."""
        before = (await self._store.target_versions()).version  # first: whatever changes after it makes the removal look again
        versions = [each.version for each in await self._store.artifacts(name)]
        commands = [each for each in await self._store.targets() if each.kind == "command"]
        needing = needed_by(Reference(name, version), versions, {each.name: artifact_of(each.definition) for each in commands})
        if needing:
            more = [f"{len(needing) - MOST_NAMED:,} more"] if len(needing) > MOST_NAMED else []
            by = f"{count(len(needing), 'stored handler')}, {listed([*needing[:MOST_NAMED], *more])}"
            raise Conflict(
                f"{name}@{version} is needed by {by}: without it their tasks fail. Change them first (`duetime handlers put`), or "
                "force=true removes it all the same. Handlers that are declared by code are not known here: look for it in your programs"
            )
        return SeenArtifact(before, tuple(versions))

    async def missing(self) -> builtins.list[str]:
        """Return the versions whose bytes are not where they should be; none if nothing says where that is."""
        await self._opened()
        blobs, there = self._blobs(), dict[str, bool]()
        found = [] if blobs is None else await self._store.artifacts()
        for each in found:
            if blobs is not None and each.sha256 not in there:
                there[each.sha256] = await blobs.exists(blob_key(each.sha256))
        return [each.reference for each in found if not there[each.sha256]]

    # ---- uploads by others ----

    async def begin(
        self,
        name: str,
        *,
        sha256: str,
        size: int,
        file: str,
        run: str | Sequence[str] = (),
        note: str = "",
        unpack: bool = True,
        by: str | None = None,
    ) -> NewUpload:
        """Return an address to which somebody may upload content. An address without a host stands for `receive`."""
        new = self._new(name, file=file, run=run, note=note, unpack=unpack, by=by)
        new = msgspec.structs.replace(new, sha256=check_sha256(sha256), size=check_size(size, self._cap))
        await self._opened()
        blobs = self.kept()
        secret = secrets.token_urlsafe(32)
        url = await blobs.upload_url(upload_key(new.id), UPLOAD_WITHIN)
        upload = await self._begin(msgspec.structs.replace(new, signature=_digest(secret)))
        return NewUpload(id=upload.id, url=url or f"/v1/uploads/{upload.id}?signature={secret}", expires_at=to_datetime(upload.expires_at))

    async def signed(self, id: str, signature: str) -> Upload:
        """Return the upload that an address stands for. Raises ArtifactNotFound for a wrong one, Conflict if its time is over."""
        await self._opened()
        upload = await self._store.upload(id)
        if upload is None or not upload.signature or not hmac.compare_digest(upload.signature, _digest(signature)):
            raise ArtifactNotFound("this is not the address of an upload: it is wrong, or its time has long been over")
        self._refuse_ended(upload)
        if upload.version is not None:
            raise Conflict(f"this upload was committed as version {upload.version}; begin another one")
        return upload

    async def receive(self, upload: Upload, pieces: AsyncIterator[bytes]) -> None:
        """Keep what arrives for an upload until it is committed. A repeat replaces it."""
        blobs = self.kept()
        if not isinstance(blobs, FolderBlobs):
            raise Conflict(f"uploads go to {blobs.url} directly; use the address that was given")
        await blobs.receive(upload_key(upload.id), pieces)

    async def commit(self, name: str, id: str) -> ArtifactInfo:
        """Make a version of what was uploaded, if it is what was announced. A repeat returns the same version."""
        await self._opened()
        upload = await self._store.upload(id)
        if upload is None or upload.name != name:
            raise ArtifactNotFound(f"the artifact {name!r} has no upload {id!r}; begin one with POST /v1/artifacts/{{name}}/uploads")
        if upload.version is not None:
            return await self.get(f"{name}@{upload.version}")
        self._refuse_ended(upload)
        blobs = self.kept()
        with temporary_folder() as folder:
            copy = Path(folder) / "content"
            try:
                await receive(blobs.read(upload_key(id)), copy, sha256=upload.sha256, size=upload.size)
            except BlobMissing:
                raise Conflict("nothing was uploaded yet; PUT the bytes to the address of the upload first") from None
            except WrongContent as wrong:
                raise Conflict(f"what was uploaded is not what was announced: {wrong}; upload it again") from None
            made = await self._keep(upload, copy)
        await blobs.delete(upload_key(id))
        return made

    # ---- parts ----

    def kept(self) -> Blobs:
        """Return where bytes are kept. Raises Conflict if nothing says where."""
        blobs = self._blobs()
        if blobs is None:
            raise Conflict(
                "nothing says where artifacts are kept: set DUETIME_ARTIFACTS to a folder that all workers reach "
                "(file:///var/lib/duetime/artifacts) or to a bucket (s3://bucket/prefix)"
            )
        return blobs

    def _new(self, name: str, *, file: str, run: str | Sequence[str], note: str, unpack: bool, by: str | None) -> Upload:
        """Check what is announced. Its hash and size come later."""
        now = self._store.now()
        return Upload(
            id=secrets.token_hex(16),
            name=check_artifact_name(name),
            sha256="",
            size=0,
            file=check_file_name(file),
            run=check_run(run),
            note=check_note(note),
            unpack=unpack,
            signature="",
            made_at=now,
            made_by=by or self._user,
            expires_at=now + round(UPLOAD_WITHIN * SECOND),
        )

    async def _begin(self, upload: Upload) -> Upload:
        await self._remove_ended()
        if len(await self._store.artifacts()) >= MOST_ARTIFACTS:
            raise Conflict(f"there are {MOST_ARTIFACTS:,} versions of artifacts already; delete those that nobody uses")
        await self._store.add_upload(upload)
        return upload

    async def _remove_ended(self) -> None:
        """Remove what was uploaded and never committed, and what was uploaded again after a commit."""
        blobs = self.kept()
        ended = await self._store.ended_uploads(self._store.now() - AFTER_THE_END, ENDED_AT_ONCE)
        for id in ended:
            await blobs.delete(upload_key(id))
        await self._store.remove_uploads(ended)

    def _refuse_ended(self, upload: Upload) -> None:
        if upload.expires_at <= self._store.now():
            raise Conflict(f"the time of this upload was over at {to_datetime(upload.expires_at):%H:%M:%S} UTC; begin another one")

    async def _keep(self, upload: Upload, path: Path) -> ArtifactInfo:
        """Make a version of a file whose hash is known to be right."""
        from duetime.artifacts.unpacking import UnsafeArchive, check, kind_of  # a program that only submits tasks does not need it

        try:
            kind = await asyncio.to_thread(kind_of, path, unpack=upload.unpack)
            await asyncio.to_thread(check, path, kind)
        except UnsafeArchive as error:
            raise InvalidValue(f"{upload.file} cannot be an artifact: {error}") from None
        blobs = self.kept()
        await blobs.write(blob_key(upload.sha256), path)
        made = await self._finish(upload, kind)
        if not await blobs.exists(blob_key(upload.sha256)):  # somebody deleted the last version with these bytes at the same moment
            await blobs.write(blob_key(upload.sha256), path)
        return made

    async def _finish(self, upload: Upload, kind: ArtifactKind) -> ArtifactInfo:
        made = await self._store.finish_upload(upload.id, kind)
        if made is None:
            raise Conflict("the upload was removed at the same moment; begin another one")
        return _info(made, len(await self._store.artifacts(made.name)))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def one_version(reference: str) -> tuple[str, int]:
    """Read a reference that must name a version."""
    name, version = read_reference(reference)
    if version is None:
        raise InvalidValue(f"say which version is meant, such as {name}@1; `duetime artifacts show {name}` lists them")
    return name, version


def _unknown(reference: Reference) -> ArtifactNotFound:
    if reference.version is None:
        return ArtifactNotFound(f"there is no artifact {reference.name!r}; `duetime artifacts` lists all")
    return ArtifactNotFound(f"there is no artifact {str(reference)!r}; `duetime artifacts show {reference.name}` lists its versions")


def _info(artifact: Artifact, versions: int) -> ArtifactInfo:
    return ArtifactInfo(
        name=artifact.name,
        version=artifact.version,
        versions=versions,
        sha256=artifact.sha256,
        size=artifact.size,
        kind=artifact.kind,
        file=artifact.file,
        run=artifact.run,
        note=artifact.note,
        made_at=to_datetime(artifact.made_at),
        made_by=artifact.made_by,
    )
