"""Secrets: how they are named in definitions, how they are stored, and the keys that seal them."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.task import check_name

KEY_BYTES = 32
MAX_SECRET = 65_536  # bytes of a value in UTF-8
MOST_VERSIONS = 10  # live ones of one secret: who puts it more often than that within its grace loses the oldest

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,40}", re.ASCII)
_HOW = 'write "<id>:<32 bytes in base64>", several separated by spaces, the one that encrypts first; `duetime secrets new-key` makes one'


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "secret"}):
    """The name of a stored secret, to be written where its value is needed: `Bearer(Secret("billing"))`, in JSON `{"secret": "billing"}`.

    It holds no value. The worker reads that when an attempt uses it.
    """

    name: str

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a secret")

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


class SecretVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a stored secret, without its value. `key` is the id of the key that sealed it.

    The newest version has no `until_at`. An older one is good until then.
    """

    name: str
    version: int
    key: str
    created_at: Instant
    created_by: str
    until_at: Instant | None = None


class SealedSecret(SecretVersion, frozen=True, kw_only=True):
    """The same with its value, sealed: text that only the key can open."""

    sealed: str


class SecretKey(NamedTuple):
    """A key that seals secrets."""

    id: str
    data: bytes

    def __repr__(self) -> str:
        return f"SecretKey({self.id!r}, …)"


def read_keys(text: str, name: str = "secret_keys") -> tuple[SecretKey, ...]:
    """Read `2026b:<base64> 2026a:<base64>`. The first key encrypts, all decrypt. No message shows a key."""
    keys: dict[str, SecretKey] = {}
    for number, part in enumerate(text.split(), 1):
        id, _, encoded = part.partition(":")
        if not _KEY_ID.fullmatch(id) or not encoded:
            raise InvalidValue(f"{name}: key {number} has no id of 1 to 40 letters, digits, '.', '_' or '-' before a colon; {_HOW}")
        try:
            data = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if len(data) != KEY_BYTES:
            raise InvalidValue(f"{name}: the key {id} is not {KEY_BYTES} bytes in base64; {_HOW}")
        if id in keys:
            raise InvalidValue(f"{name}: two keys have the id {id}; give each its own")
        keys[id] = SecretKey(id, data)
    if not keys:
        raise InvalidValue(f"{name} has no key; {_HOW}")
    return tuple(keys.values())


def write_key(key: SecretKey) -> str:
    """Write a key as `read_keys` reads it."""
    return f"{key.id}:{base64.b64encode(key.data).decode()}"


def check_value(value: str) -> str:
    """Check the value of a secret: text of 1 to 65,536 bytes. No message shows it."""
    if not isinstance(value, str):
        raise InvalidValue(f"value must be text, got {type(value).__name__}; write binary data in base64")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidValue("value must be text that UTF-8 can hold; write binary data in base64") from None
    if not 1 <= size <= MAX_SECRET:
        raise InvalidValue(f"value must have 1 to {MAX_SECRET:,} bytes in UTF-8, got {size:,}")
    return value
