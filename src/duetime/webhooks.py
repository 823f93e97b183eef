"""Sign requests and verify them, as https://www.standardwebhooks.com describes.

A receiver needs `verify` alone:

    received = webhooks.verify(request.headers, body, secret)   # raises WebhookRejected: answer 401
    # received.id is the same for all retries of one task: do its work once

A signature is an HMAC-SHA256 over id, timestamp and body (`v1`). While a secret is replaced there is one signature per secret, and a
receiver may know both: one that matches is enough.

Receivers that must not be able to sign get a public key instead: `new_key_pair()` returns `whsk_…` for the sender and `whpk_…` for the
receiver, and signatures are Ed25519 (`v1a`). They stand wherever a secret does. They need the package cryptography (`duetime[secrets]`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeAlias

from duetime.clock import SECOND, Instant, Seconds, SystemClock, to_datetime, to_instant, to_micros
from duetime.errors import DuetimeError, InvalidValue, MissingExtra

__all__ = ["Headers", "KeyPair", "Received", "WebhookRejected", "new_key_pair", "new_secret", "sign", "verify"]

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300.0  # seconds that the clocks of both sides may differ, and a request may be on its way
_PREFIX, _PRIVATE, _PUBLIC = "whsec_", "whsk_", "whpk_"
_KEY_BYTES = 32  # of an Ed25519 key; a private one may be followed by its public one
_SHORTEST, _LONGEST = 24, 64  # bytes of a secret, as the standard has it
_TIMESTAMP = re.compile(r"[0-9]{1,11}")
# Without full stops: with them, parts of the signed text could be read as others ("a.1" + "2" as "a" + "1.2").
_ID = re.compile(r"[!-\-/-~]{1,255}")


class WebhookRejected(DuetimeError, ValueError):
    """A request that is not genuine, not for this receiver, or too old. The message has no secret in it and may be logged."""


class Received(NamedTuple):
    """A genuine request: its id, the same for all retries, and when it was sent."""

    id: str
    sent_at: datetime


class KeyPair(NamedTuple):
    """A private key, `whsk_…`, to sign with, and the public key that belongs to it, `whpk_…`, to verify with."""

    private: str
    public: str


def new_key_pair() -> KeyPair:
    """Return a new random pair of keys: the private one is the sender's secret, the public one may be known to everybody."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError:
        raise _no_cryptography() from None
    key = Ed25519PrivateKey.generate()
    private, public = key.private_bytes_raw(), key.public_key().public_bytes_raw()
    return KeyPair(*(prefix + base64.b64encode(data).decode() for prefix, data in ((_PRIVATE, private), (_PUBLIC, public))))


def new_secret() -> str:
    """Return a new random secret, `whsec_…`, for sender and receiver."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def sign(id: str, body: bytes, secret: str | Sequence[str], *, now: Instant) -> dict[str, str]:
    """Return the three headers of a request, with one signature per secret or private key.

    While a secret is replaced, give the new one and the old one. `now` is of this attempt; `id` stays the same for all of them.
    """
    if not _ID.fullmatch(id):
        raise InvalidValue(f"the id of a webhook must have 1–255 printable ASCII characters and no full stop, got {id!r}")
    timestamp = str(now // SECOND)
    data = _signed(id, timestamp, body)
    signatures = " ".join(f"{key.version},{base64.b64encode(key.sign(data)).decode()}" for key in _keys(secret))
    return {ID: id, TIMESTAMP: timestamp, SIGNATURE: signatures}


def verify(
    headers: Headers, body: bytes | str, secret: str | Sequence[str], *, tolerance: Seconds = TOLERANCE, now: datetime | None = None
) -> Received:
    """Return the id of a request if it is genuine; raise WebhookRejected otherwise.

    `headers` are those of the request, in any case. `body` is what was received, before it is parsed: other spaces make another
    signature. Several secrets, or public keys, are accepted while one is replaced. A timestamp that is further from `now` than `tolerance`
    is rejected, so that nobody can repeat a request that was overheard long ago; within it, compare ids.
    """
    if not isinstance(body, bytes | str):
        raise InvalidValue(f"body must be the bytes of the request as they were received, got {type(body).__name__}")
    keys = _keys(secret)
    id, timestamp, signatures = (_header(headers, name) for name in (ID, TIMESTAMP, SIGNATURE))
    if not _ID.fullmatch(id):
        raise WebhookRejected(f"the header {ID} must have 1–255 printable ASCII characters and no full stop")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise WebhookRejected(f"the header {TIMESTAMP} must be seconds since 1970")
    sent_at = int(timestamp) * SECOND
    here = SystemClock().now() if now is None else to_instant(now, "now")
    apart = abs(here - sent_at)
    if apart > to_micros(tolerance, "tolerance"):
        order = "old" if sent_at < here else "far in the future"
        raise WebhookRejected(f"the request is too {order}: {apart // SECOND} s from now; is the clock of this machine right?")
    versions = sorted({key.version for key in keys})
    given = _signatures(signatures, versions)
    if not given:
        raise WebhookRejected(f"the header {SIGNATURE} has no signature of version {' or '.join(versions)}")
    data = _signed(id, timestamp, body.encode() if isinstance(body, str) else body)
    # all are compared, whichever matches: the time that it takes tells nothing
    matching = [key.verifies(data, each) for key in keys for version, each in given if version == key.version]
    if not any(matching):
        raise WebhookRejected("no signature matches: another secret, or the body is not as it was sent")
    return Received(id, to_datetime(sent_at))


def _signed(id: str, timestamp: str, body: bytes) -> bytes:
    return b"%s.%s.%s" % (id.encode(), timestamp.encode(), body)


class _Key(Protocol):
    """What signs, or verifies, or both."""

    version: str

    def sign(self, data: bytes) -> bytes: ...

    def verifies(self, data: bytes, signature: bytes) -> bool: ...


class _SharedKey:
    """A secret that both sides know."""

    version = "v1"

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, hashlib.sha256)

    def verifies(self, data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(data), signature)


class _EdwardsKey:
    """One half of a pair of keys; the private half signs and verifies, the public one verifies only."""

    version = "v1a"

    def __init__(self, key: bytes, *, private: bool) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        except ModuleNotFoundError:
            raise _no_cryptography() from None
        self._private = Ed25519PrivateKey.from_private_bytes(key) if private else None
        self._public = Ed25519PublicKey.from_public_bytes(key) if self._private is None else self._private.public_key()

    def sign(self, data: bytes) -> bytes:
        if self._private is None:
            raise InvalidValue("a public key (whpk_…) verifies and cannot sign; sign with the private key of its pair (whsk_…)")
        return self._private.sign(data)

    def verifies(self, data: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(signature, data)
        except InvalidSignature:
            return False
        return True


def _no_cryptography() -> MissingExtra:
    return MissingExtra("signatures with pairs of keys need the package cryptography: pip install 'duetime[secrets]'")


def _keys(secret: str | Sequence[str]) -> list[_Key]:
    """Decode secrets. The messages do not show them."""
    given = [secret] if isinstance(secret, str) else list(secret) if isinstance(secret, Sequence) else []
    if not given:
        raise InvalidValue("secret must be text such as `new_secret()` returns, or several of them, got none")
    return [_key(each) for each in given]


def _key(secret: str) -> _Key:
    try:
        text = secret.strip()
        prefix = next((each for each in (_PRIVATE, _PUBLIC) if text.startswith(each)), _PREFIX)
        text = text.removeprefix(prefix)
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (AttributeError, TypeError, ValueError, binascii.Error):
        raise InvalidValue("secret must be base64 after `whsec_`, as `new_secret()` returns it") from None
    if prefix != _PREFIX:
        private = prefix == _PRIVATE
        if len(key) != _KEY_BYTES and not (private and len(key) == 2 * _KEY_BYTES):
            raise InvalidValue(f"a key after `{prefix}` must have {_KEY_BYTES} bytes behind its base64, it has {len(key)}")
        return _EdwardsKey(key[:_KEY_BYTES], private=private)
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise InvalidValue(
            f"secret must have {_SHORTEST} to {_LONGEST} bytes behind its base64, it has {len(key)}; `new_secret()` makes one"
        )
    return _SharedKey(key)


def _signatures(header: str, versions: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return the signatures of these versions; those of others, and what cannot be read, say nothing."""
    found = []
    for part in header.split():
        version, _, text = part.partition(",")
        if version in versions:
            try:
                found.append((version, base64.b64decode(text, validate=True)))
            except ValueError:
                continue
    return found


def _header(headers: Headers, name: str) -> str:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    values = {_text(value) for key, value in pairs if _text(key).lower() == name}
    if not values or values == {""}:
        raise WebhookRejected(f"the header {name} is missing")
    if len(values) > 1:
        raise WebhookRejected(f"the header {name} comes twice, with different values")
    return values.pop()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)  # ASGI has bytes
