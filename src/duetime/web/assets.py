"""Styles and scripts, under addresses that have their content's hash and therefore never change."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources

import msgspec

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_SCRIPT_COMMENTS = re.compile(rb"^ *(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_INDENTATION = re.compile(rb"^[ ]+", re.MULTILINE)
HEADERS = {
    "cache-control": "public, max-age=31536000, immutable",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class Asset(msgspec.Struct, frozen=True):
    """One file. `media` is its content type."""

    name: str
    data: bytes
    media: str


class Assets(msgspec.Struct, frozen=True):
    """All files. Scripts import each other by relative addresses, so all are below one hash."""

    digest: str
    files: dict[str, Asset]


@functools.cache
def assets() -> Assets:
    """Read all files, once: there are few and they are small."""
    files = {}
    for each in sorted(resources.files("duetime.web").joinpath("assets").iterdir(), key=lambda each: each.name):
        kind = each.name.rpartition(".")[2]
        if kind in _KINDS:
            files[each.name] = Asset(each.name, _bare(each.read_bytes(), kind), _KINDS[kind])
    whole = hashlib.blake2b(digest_size=8)
    for file in files.values():
        whole.update(file.name.encode() + b"\0" + file.data)
    return Assets(whole.hexdigest(), files)


def _bare(data: bytes, kind: str) -> bytes:
    """Return a file without comments on lines of their own and without indentation: a tenth of the first load."""
    return _INDENTATION.sub(b"", _SCRIPT_COMMENTS.sub(b"", data) if kind == "js" else data)
