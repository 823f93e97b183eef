"""Artifacts: uploaded programs in versions that never change, and the uploads that become them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.task import check_name

ArtifactKind: TypeAlias = Literal["tar", "zip", "file"]

UPLOAD_WITHIN = 900.0  # seconds for which the address of an upload is good
MOST_ARGUMENTS = 100
MAX_ARGUMENT = 4_096  # characters
MAX_NOTE = 1_000
MAX_FILE_NAME = 255  # bytes: what file systems allow

_BLOBS = "file:///var/lib/duetime/artifacts or s3://bucket/prefix"
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What is uploaded: its hash, its size, how the file is called, and what to run once it is there."""

    name: str
    sha256: str
    size: int
    file: str
    run: tuple[str, ...] = ()
    note: str = ""
    made_at: Instant
    made_by: str


class Upload(Content, frozen=True, kw_only=True):
    """Content that is to come until `expires_at`. `version` is what it has become; None: nothing yet.

    `unpack`: an archive is unpacked where it runs. `signature` is the digest of what the address to upload to has to prove.
    """

    id: str
    unpack: bool
    signature: str
    expires_at: Instant
    version: int | None = None


class Artifact(Content, frozen=True, kw_only=True):
    """One version of an artifact."""

    version: int
    kind: ArtifactKind

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"


class Reference(NamedTuple):
    """An artifact as commands name it: `monthly@3`, or `monthly` for the newest version."""

    name: str
    version: int | None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def read_reference(text: str) -> Reference:
    """Read `monthly` or `monthly@3`."""
    if not isinstance(text, str):
        raise InvalidValue(f"artifact must be text such as 'monthly' or 'monthly@3', got {type(text).__name__}")
    name, separator, version = text.partition("@")
    if separator and not _VERSION.fullmatch(version):
        raise InvalidValue(f"artifact must be a name such as 'monthly', or name and version such as 'monthly@3', got {text!r}")
    return Reference(check_artifact_name(name), int(version) if separator else None)


def needed_by(version: Reference, versions: Collection[int], named: Mapping[str, Reference | None]) -> list[str]:
    """Return which handlers could not run without a version, of those that name artifacts as `named` says.

    They name it, or follow the newest version and there is no other one.
    """
    if version.version not in versions:
        return []
    wanted = {version} if len(versions) > 1 else {version, Reference(version.name, None)}
    return [handler for handler, reference in named.items() if reference in wanted]


def check_artifact_name(name: str) -> str:
    """Check the name of an artifact."""
    if "@" in check_name(name, "the name of an artifact"):
        raise InvalidValue(f"the name of an artifact must not contain '@', which stands before a version, got {name!r}")
    return name


def check_run(run: str | Sequence[str]) -> tuple[str, ...]:
    """Check what an artifact runs: a list of the program and its arguments, or a line of them, read as a shell splits it."""
    if isinstance(run, str):
        try:
            run = shlex.split(run)
        except ValueError as error:
            raise InvalidValue(f"run cannot be read: {error} in {run!r}") from None
    if len(run) > MOST_ARGUMENTS:
        raise InvalidValue(f"run must have at most {MOST_ARGUMENTS} arguments, got {len(run)}")
    for each in run:
        if not isinstance(each, str) or "\0" in each or len(each) > MAX_ARGUMENT:
            raise InvalidValue(f"run must be texts of at most {MAX_ARGUMENT:,} characters without NUL, got {str(each)[:100]!r}")
    return tuple(run)


def check_sha256(digest: str) -> str:
    if not _SHA256.fullmatch(digest):
        raise InvalidValue(f"sha256 must be 64 hexadecimal digits in lower case, got {digest[:100]!r}")
    return digest


def check_size(size: int, cap: int) -> int:
    if not 1 <= size <= cap:
        raise InvalidValue(f"size must be 1 to {cap:,} bytes, got {size:,}; DUETIME_ARTIFACT_CAP says how large an artifact may be")
    return size


def check_file_name(name: str) -> str:
    """Check how the uploaded file is called: a bare name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_FILE_NAME or "/" in name or name in (".", "..") or not name.isprintable():
        raise InvalidValue(f"file must be the name of a file without folders, of 1 to {MAX_FILE_NAME} bytes, got {name[:300]!r}")
    return name


def check_note(note: str) -> str:
    if len(note) > MAX_NOTE or "\0" in note:
        raise InvalidValue(f"note must have at most {MAX_NOTE:,} characters and no NUL, got {len(note):,}")
    return note


def check_blobs_url(url: str, name: str = "artifacts") -> str:
    """Check an address where blobs are kept."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and parts.path != "/":
        return url
    if parts.scheme == "s3" and parts.netloc and not (parts.username or parts.query or parts.fragment):
        return url
    raise InvalidValue(f"{name} must be a folder or a bucket, such as {_BLOBS}, got {url!r}")
