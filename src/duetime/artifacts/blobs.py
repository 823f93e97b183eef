"""Where the bytes of artifacts are kept: a folder, or a bucket of an S3-compatible server. A blob is found by its key.

sha256/<hash>     what a version of an artifact is; written once its hash was computed here
uploads/<id>      what somebody uploads, until it is committed or its time is over
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from duetime.errors import MissingExtra
from duetime.model.artifacts import check_blobs_url


class BlobMissing(Exception):
    """There is no such blob."""


class Blobs(Protocol):
    """Where blobs are kept, each written whole or not at all. Raises StoreUnavailable if they cannot be reached, read or written."""

    @property
    def url(self) -> str:
        """Where they are, for people."""
        ...

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return an address to which anybody may PUT the blob within so many seconds; None if there is no such address."""
        ...

    def read(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield a blob in pieces. Raises BlobMissing."""
        ...

    async def write(self, key: str, path: Path) -> None:
        """Store a file, in place of an earlier blob."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> None:
        """Remove a blob, if it is there."""
        ...


def blob_key(sha256: str) -> str:
    return f"sha256/{sha256}"


def upload_key(id: str) -> str:
    return f"uploads/{id}"


def blobs_at(url: str) -> Blobs:
    """Return the blobs at an address; nothing is opened yet."""
    parts = urlsplit(check_blobs_url(url))
    if parts.scheme == "file":
        from duetime.artifacts.folder import FolderBlobs

        return FolderBlobs(Path(unquote(parts.path)))
    try:
        from duetime.artifacts.bucket import BucketBlobs
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MissingExtra("artifacts in a bucket need obstore: pip install 'duetime[artifacts]'") from error
    return BucketBlobs(parts.netloc, parts.path.strip("/"))
