"""The role of the seam that is about artifacts; a part of `store.control`. A store has facts about them; their bytes are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.artifacts import Artifact, ArtifactKind, Upload


class SeenArtifact(msgspec.Struct, frozen=True):
    """What somebody knew who decided that a version is not needed: the version of all stored targets, and the versions there were."""

    targets: int
    versions: tuple[int, ...]


class ArtifactGone(Enum):
    """Why a version was not removed."""

    UNKNOWN = "unknown"
    CHANGED = "changed"


class ArtifactStore(Protocol):
    """Where versions of artifacts and uploads live. A version never changes, and its number is never given to another one."""

    async def add_upload(self, upload: Upload) -> None:
        """Store an upload that has no version yet. A repeat changes nothing."""
        ...

    async def upload(self, id: str) -> Upload | None:
        """Return an upload, also one whose time is over."""
        ...

    async def finish_upload(self, id: str, kind: ArtifactKind) -> Artifact | None:
        """Make an upload the next version of its artifact: 1, or one more than there ever was. None if there is no such upload.

        If the newest version has the same bytes, kind, file and run already, the upload becomes that one. A repeat returns the same
        version, or None if it was removed meanwhile.
        """
        ...

    async def artifacts(self, name: str | None = None) -> list[Artifact]:
        """Return the versions of one artifact, or of all by name, the newest first."""
        ...

    async def artifact(self, name: str, version: int | None = None) -> Artifact | None:
        """Return a version, or the newest one."""
        ...

    async def remove_artifact(self, name: str, version: int, seen: SeenArtifact | None = None) -> Artifact | ArtifactGone:
        """Remove a version and return it; UNKNOWN if there is none.

        With `seen`, CHANGED if stored targets or the versions of this artifact are not as the caller has seen them, and nothing is changed.
        Nothing can come between that look and the removal.
        """
        ...

    async def needs_blob(self, sha256: str) -> bool:
        """Return whether a version has these bytes, or an upload that has no version yet is to bring them."""
        ...

    async def ended_uploads(self, before: Instant, limit: int) -> list[str]:
        """Return the ids of uploads that expired before an instant, finished or not, the first to expire first."""
        ...

    async def remove_uploads(self, ids: Sequence[str]) -> None:
        """Forget uploads."""
        ...
