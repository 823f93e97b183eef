"""Where the attempts of a worker get artifacts: the store says which bytes are meant, the cache has them unpacked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from duetime.artifacts.cache import FILE, ArtifactCache, Unusable
from duetime.errors import ArtifactNotFound
from duetime.model.artifacts import Artifact, Reference
from duetime.store.artifacts import ArtifactStore


class Ready(msgspec.Struct, frozen=True):
    """An artifact that can be run: where it is, and what a command finds of it in its own folder, by name."""

    artifact: Artifact
    path: str
    links: Mapping[str, str]


class ArtifactSource(Protocol):
    """Gives artifacts to attempts."""

    def using(self, reference: Reference) -> AbstractAsyncContextManager[Ready]:
        """Yield an artifact, which stays as long as the block lasts. Raises ArtifactNotFound, or Unusable."""
        ...

    async def close(self) -> None:
        """Stop what is being fetched."""
        ...


class NoArtifacts(ArtifactSource):
    """For a worker that was given none."""

    @contextlib.asynccontextmanager
    async def using(self, reference: Reference) -> AsyncIterator[Ready]:
        told = (
            f"the artifact {reference} cannot be fetched: nothing says where artifacts are kept. "
            "Set DUETIME_ARTIFACTS for this worker, as for the server"
        )
        raise Unusable("ArtifactUnavailable", told, fatal=False)
        yield

    async def close(self) -> None:
        """Nothing is open."""


class StoredArtifacts(ArtifactSource):
    """The artifacts of a store. The newest version is looked up for each attempt."""

    def __init__(self, store: ArtifactStore, cache: ArtifactCache) -> None:
        self._store = store
        self._cache = cache

    @contextlib.asynccontextmanager
    async def using(self, reference: Reference) -> AsyncIterator[Ready]:
        found = await self._store.artifact(*reference)
        if found is None:
            raise ArtifactNotFound(f"there is no artifact {str(reference)!r}; put it with `duetime artifacts put`, then retry the task")
        async with self._cache.using(found) as files:
            if found.kind == "file":
                path = str(files / FILE)
                yield Ready(found, path, {found.file: path})
            else:
                yield Ready(found, str(files), {name: str(files / name) for name in os.listdir(files)})

    async def close(self) -> None:
        await self._cache.close()
