"""The key ring: seals values with the first key and opens them with whichever sealed them. The only code that encrypts.

AES-256-GCM with a random nonce of 96 bits. Name and version are authenticated with the value, so a row that somebody moved to another
name or version in the database does not open.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from duetime.config import Masked
from duetime.errors import MissingExtra, SecretUnreadable
from duetime.model.secrets import KEY_BYTES, SealedSecret, SecretKey, read_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12


class KeyRing:
    """Keys by their ids; the first one encrypts."""

    def __init__(self, keys: Sequence[SecretKey]) -> None:
        self._keys = {key.id: key for key in keys}
        self.first = keys[0].id
        self._ciphers: dict[str, AESGCM] = {}

    @classmethod
    def of(cls, setting: Masked | None) -> KeyRing | None:
        """Return the keys of the setting `secret_keys`; None if it is not set."""
        return None if setting is None else cls(read_keys(setting.reveal()))

    def __repr__(self) -> str:
        return f"<KeyRing {' '.join(self._keys)}>"

    def __contains__(self, id: str) -> bool:
        return id in self._keys

    def seal(self, name: str, version: int, value: str) -> tuple[str, str]:
        """Return the id of the first key, and the value as only that key opens it."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._cipher(self.first).encrypt(nonce, value.encode(), _bound_to(name, version))
        return self.first, base64.b64encode(nonce + data).decode()

    def open(self, secret: SealedSecret) -> str:
        """Return a value. Raises SecretUnreadable if its key is not here, or if it was not sealed with that for this name and version."""
        if secret.key not in self._keys:
            raise unreadable(secret, f"it was sealed with the key {secret.key}, and this process has {', '.join(self._keys)}")
        cipher = self._cipher(secret.key)
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(secret.sealed, validate=True)
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _bound_to(secret.name, secret.version)).decode()
        except (InvalidTag, binascii.Error, ValueError):
            reason = f"the key {secret.key} of this process does not open it: it is another key of that id, or the stored row was changed"
            raise unreadable(secret, reason) from None

    def _cipher(self, id: str) -> AESGCM:
        if id not in self._ciphers:
            self._ciphers[id] = _aes_gcm()(self._keys[id].data)
        return self._ciphers[id]


def new_key(id: str) -> SecretKey:
    """Return a fresh key."""
    return SecretKey(id, os.urandom(KEY_BYTES))


def unreadable(secret: SealedSecret, reason: str) -> SecretUnreadable:
    return SecretUnreadable(
        f"the secret {secret.name!r} cannot be read: {reason}. Add the key to DUETIME_SECRET_KEYS, or put the secret again"
    )


def no_keys(what: str) -> str:
    """Say that something needs keys, and how to get one."""
    return (
        f"{what} without a key: make one with `duetime secrets new-key`, keep it safe, and set DUETIME_SECRET_KEYS to it for this "
        "program and for all workers and servers"
    )


def _aes_gcm() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra("secrets need the package cryptography: pip install 'duetime[secrets]'") from None
    return AESGCM


def _bound_to(name: str, version: int) -> bytes:
    return msgspec.json.encode(["duetime secret", name, version])
