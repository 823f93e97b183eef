"""Where a worker unpacks artifacts: one entry per content, for all workers of a user on a machine.

    <hash>-<kind>/files     what was unpacked, read-only; an entry is there as a whole or not at all
    <hash>-<kind>/size      the bytes that it takes
    <hash>-<kind>.lock      held shared by attempts that use the entry, alone by whoever makes or removes it; last changed at its last use
    <hash>-<kind>.….part    an entry that is being made, or that a process which died has left

What is fetched is hashed before anything of it is unpacked. After that an entry is trusted: whoever can write to this folder can run
code as the worker anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from duetime.artifacts.blobs import BlobMissing, Blobs, blob_key
from duetime.artifacts.receiving import WrongContent, receive
from duetime.model.artifacts import Artifact
from duetime.runtime.folders import remove_folder

LOOK_EVERY = 0.05  # seconds between two looks at a lock that another process holds
FILES, SIZE, FILE = "files", "size", "file"


class Unusable(Exception):
    """An artifact cannot be run. `kind` names the error; `fatal`: it would fail again."""

    def __init__(self, kind: str, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.fatal = fatal


def default_folder() -> Path:
    """Return the folder in the user's cache."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "duetime" / "artifacts"
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path.home() / ".cache" / "duetime" / "artifacts"
    return Path(tempfile.gettempdir()) / f"duetime-{os.getuid()}" / "artifacts"


class ArtifactCache:
    """The entries of one folder. More than `cap` bytes are not kept, but for what is in use."""

    def __init__(self, folder: Path, cap: int, blobs: Blobs) -> None:
        self._folder = folder
        self._cap = cap
        self._blobs = blobs
        self._making: dict[str, asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def using(self, artifact: Artifact) -> AsyncIterator[Path]:
        """Yield the unpacked files; they stay as long as the block lasts. Raises Unusable."""
        name = f"{artifact.sha256}-{artifact.kind}"
        while True:
            lock = await self._locked(name, fcntl.LOCK_SH)
            if (self._folder / name).is_dir():
                break
            os.close(lock)
            await self._make_once(name, artifact)
        try:
            os.utime(lock)
            yield self._folder / name / FILES
        finally:
            os.close(lock)

    async def close(self) -> None:
        """Stop what is being fetched."""
        for task in list(self._making.values()):
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def _make_once(self, name: str, artifact: Artifact) -> None:
        """Make an entry, together with all who want the same. An attempt that stops waiting does not stop it: the next one needs it too."""
        task = self._making.get(name)
        if task is None:
            task = self._making[name] = asyncio.create_task(self._make(name, artifact))
            task.add_done_callback(lambda _: self._making.pop(name, None))
        await asyncio.shield(task)

    async def _make(self, name: str, artifact: Artifact) -> None:
        lock = await self._locked(name, fcntl.LOCK_EX)
        # a name of its own: a thread that unpacks cannot be stopped, and must not write into what somebody makes after it
        part = self._folder / f"{name}.{secrets.token_hex(8)}.part"
        try:
            if (self._folder / name).is_dir():
                return
            await asyncio.to_thread(self._remove_parts, name)
            part.mkdir(mode=0o700)
            try:
                await receive(self._blobs.read(blob_key(artifact.sha256)), part / "blob", sha256=artifact.sha256, size=artifact.size)
            except BlobMissing as missing:
                raise Unusable("ArtifactMissing", f"the bytes of {artifact.reference} are gone: {missing}", fatal=False) from None
            except WrongContent as wrong:
                told = f"the bytes of {artifact.reference} in {self._blobs.url} were changed, and are not run: {wrong}"
                raise Unusable("ArtifactTampered", told, fatal=True) from None
            await asyncio.to_thread(_unpack, part, artifact)
            part.rename(self._folder / name)
        except OSError as error:
            raise Unusable(
                "ArtifactUnavailable", f"{artifact.reference} cannot be unpacked in {self._folder}: {error}", fatal=False
            ) from None
        finally:
            await asyncio.shield(asyncio.to_thread(remove_folder, part))
            os.close(lock)
        await asyncio.to_thread(self._evict)

    # ---- locks ----

    async def _locked(self, name: str, how: int) -> int:
        """Return a descriptor that holds the lock of an entry."""
        self._check_folder()
        while (lock := self._try_lock(name, how)) is None:  # noqa: ASYNC110  # another process may hold it, which cannot tell
            await asyncio.sleep(LOOK_EVERY)
        return lock

    def _try_lock(self, name: str, how: int) -> int | None:
        path = self._folder / f"{name}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == os.stat(path).st_ino:  # otherwise it was removed, and others have a new one
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def _check_folder(self) -> None:
        """Make the folder, and refuse one into which others can write: they could change what runs."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.stat()
        except OSError as error:
            raise Unusable(
                "ArtifactUnavailable", f"the folder for artifacts, {self._folder}, cannot be used: {error}", fatal=False
            ) from None
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            told = (
                f"others can write to {self._folder}, and so change what runs; set DUETIME_ARTIFACT_CACHE to a folder of the worker's own"
            )
            raise Unusable("ArtifactUnavailable", told, fatal=False)

    # ---- removing ----

    def _remove_parts(self, name: str) -> None:
        for left in self._folder.glob(f"{name}.*.part"):
            remove_folder(left)

    def _evict(self) -> None:
        """Remove the entries that were not used for the longest time, and what processes that died have left."""
        for left in {path.name.partition(".")[0] for path in self._folder.glob("*.part")}:
            if (lock := self._try_lock(left, fcntl.LOCK_EX)) is not None:
                self._remove_parts(left)
                os.close(lock)
        entries = []
        for entry in self._folder.iterdir():
            with contextlib.suppress(OSError, ValueError):  # others remove entries too
                entries.append((entry.with_name(f"{entry.name}.lock").stat().st_mtime, int((entry / SIZE).read_text()), entry.name))
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self._cap:
                return
            if (lock := self._try_lock(name, fcntl.LOCK_EX)) is None:
                continue
            with contextlib.suppress(OSError):
                part = self._folder / f"{name}.{secrets.token_hex(8)}.part"
                (self._folder / name).rename(part)
                remove_folder(part)
                total -= size
            (self._folder / f"{name}.lock").unlink(missing_ok=True)
            os.close(lock)


def _unpack(part: Path, artifact: Artifact) -> None:
    from duetime.artifacts.unpacking import UnsafeArchive, unpack

    files = part / FILES
    files.mkdir()
    try:
        size = unpack(part / "blob", artifact.kind, FILE, files)
    except UnsafeArchive as error:
        raise Unusable("ArtifactUnsafe", f"{artifact.reference} is not unpacked: {error}", fatal=True) from None
    (part / "blob").unlink()
    (part / SIZE).write_text(str(size))
    _flush(part)


def _flush(folder: Path) -> None:
    """Have the kernel write everything, so that an entry is whole after a loss of power too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        if syncfs is None or syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)
