"""Artifacts in JSON. `ArtifactInfo` is a version as it is shown, `NewUpload` the address to which its bytes are sent."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.client.artifacts import ArtifactInfo
from duetime.model.artifacts import MAX_ARGUMENT, MAX_FILE_NAME, MAX_NOTE, MOST_ARGUMENTS


class UploadBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What is to be uploaded: its SHA-256 in hexadecimal digits, its size in bytes, and how the file is called.

    `run` is the program and its arguments. Without `unpack` an archive stays as it is.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=1_000_000_000_000)]
    file: Annotated[str, Meta(min_length=1, max_length=MAX_FILE_NAME)]
    run: Annotated[list[Annotated[str, Meta(max_length=MAX_ARGUMENT)]], Meta(max_length=MOST_ARGUMENTS)] = []
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""
    unpack: bool = True


class UploadQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the address of an upload proves."""

    signature: Annotated[str, Meta(max_length=200)] = ""


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whether to remove a version also if stored targets need it."""

    force: bool = False


class ArtifactList(msgspec.Struct, frozen=True):
    """Artifacts by name, or the versions of one, the newest first."""

    items: list[ArtifactInfo]
    next: None = None
