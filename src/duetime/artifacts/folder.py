"""Blobs in a folder, for one machine or a shared file system."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import IO

from duetime.artifacts.blobs import BlobMissing
from duetime.errors import StoreUnavailable
from duetime.runtime.permissions import make_folder, share

PIECE = 1 << 18


class FolderBlobs:
    """Blobs as files. Who may read the folder may read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def url(self) -> str:
        return f"file://{self._folder}"

    async def upload_url(self, key: str, seconds: float) -> str | None:
        return None

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        with self._translated():
            try:
                file = await asyncio.to_thread(self._path(key).open, "rb")
            except FileNotFoundError:
                raise BlobMissing(f"there is no blob {key} in {self.url}") from None
            with file:
                while piece := await asyncio.to_thread(file.read, PIECE):
                    yield piece

    async def write(self, key: str, path: Path) -> None:
        with self._translated():
            await asyncio.to_thread(self._write, key, path)

    def _write(self, key: str, path: Path) -> None:
        with self._new(key) as target, path.open("rb") as source:
            shutil.copyfileobj(source, target, PIECE)

    async def receive(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        """Store what arrives in pieces, once all of it has."""
        with self._translated(), self._new(key) as target:
            async for piece in pieces:
                await asyncio.to_thread(target.write, piece)

    @contextlib.contextmanager
    def _new(self, key: str) -> Iterator[IO[bytes]]:
        """Yield a file that becomes the blob when the block ends without an error."""
        path = self._path(key)
        make_folder(path.parent, self._folder)
        new = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
        try:
            with new.open("xb") as file:
                share(new, self._folder)
                yield file
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            new.unlink(missing_ok=True)

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._path(key).exists)

    async def delete(self, key: str) -> None:
        with self._translated():
            await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"the artifacts in {self._folder} cannot be read or written: {error.strerror or error}") from None
