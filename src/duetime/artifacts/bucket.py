"""Blobs in a bucket of an S3-compatible server, through obstore.

Endpoint, region and keys come from the usual variables: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from duetime.artifacts.blobs import BlobMissing
from duetime.errors import StoreUnavailable

PATIENCE = timedelta(seconds=20)  # for which a request is repeated
LONGEST = timedelta(minutes=15)  # for one request, its whole body included


class BucketBlobs:
    """Blobs as objects of a bucket, below a prefix."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._name = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", "")
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={"allow_http": endpoint.startswith("http://"), "connect_timeout": timedelta(seconds=5), "timeout": LONGEST},
            retry_config={"max_retries": 3, "retry_timeout": PATIENCE},
        )

    @property
    def url(self) -> str:
        return self._name

    async def upload_url(self, key: str, seconds: float) -> str | None:
        with self._translated():
            return str(await obstore.sign_async(self._store, "PUT", key, timedelta(seconds=seconds)))

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        with self._translated(key):
            found = await obstore.get_async(self._store, key)
            async for piece in found.stream(min_chunk_size=1 << 20):
                yield bytes(piece)

    async def write(self, key: str, path: Path) -> None:
        with self._translated():
            await obstore.put_async(self._store, key, path)

    async def exists(self, key: str) -> bool:
        try:
            with self._translated(key):
                await obstore.head_async(self._store, key)
        except BlobMissing:
            return False
        return True

    async def delete(self, key: str) -> None:
        with contextlib.suppress(BlobMissing), self._translated(key):
            await obstore.delete_async(self._store, key)

    @contextlib.contextmanager
    def _translated(self, key: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise BlobMissing(f"there is no blob {key} in {self._name}") from None
        except (BaseError, OSError) as error:
            reason = str(error).partition("\n")[0][:300]
            raise StoreUnavailable(
                f"the artifacts in {self._name} cannot be read or written: {reason}; are AWS_ENDPOINT_URL, AWS_REGION and the keys right?"
            ) from None
