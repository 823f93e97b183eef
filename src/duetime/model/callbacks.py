"""Callback tokens: what allows whoever has accepted an attempt's work to report on that attempt, and on nothing else.

A token says for which attempt (its fence) and until when it is good, and proves it by a code over both and the task's id. Nothing of it
is stored. The first key of the ring makes tokens; all of them are tried, so that a key can be replaced while work is under way.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from duetime.clock import Instant
from duetime.model.secrets import read_keys

PREFIX = "dc_"
_PURPOSE = b"duetime callback"  # keys for other purposes are derived by other words
_NUMBER = 8
_CODE = hashlib.sha256().digest_size


class Permit(NamedTuple):
    """What a token allows: to report on the attempt with this fence, until then."""

    fence: int
    until_at: Instant


def callback_keys(ring: str) -> tuple[bytes, ...]:
    """Return the keys for callback tokens, derived from the ring of keys of the setting `secret_keys`; none if that is empty."""
    return tuple(hmac.digest(each.data, _PURPOSE, "sha256") for each in read_keys(ring)) if ring else ()


def new_callback_token(key: bytes, task: str, permit: Permit) -> str:
    """Return a token for one attempt of a task."""
    facts = _packed(permit)
    return PREFIX + base64.urlsafe_b64encode(facts + _code(key, task, facts)).rstrip(b"=").decode()


def read_callback_token(token: str, keys: Sequence[bytes], task: str) -> Permit | None:
    """Return what a token allows for a task; None if it is not one that these keys have made for it. Compared in constant time."""
    text = token.removeprefix(PREFIX)
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) != 2 * _NUMBER + _CODE:
        return None
    facts, code = data[: 2 * _NUMBER], data[2 * _NUMBER :]
    good = [hmac.compare_digest(code, _code(key, task, facts)) for key in keys]
    if not any(good):
        return None
    return Permit(int.from_bytes(facts[:_NUMBER], "big"), int.from_bytes(facts[_NUMBER:], "big"))


def _packed(permit: Permit) -> bytes:
    return permit.fence.to_bytes(_NUMBER, "big") + permit.until_at.to_bytes(_NUMBER, "big")


def _code(key: bytes, task: str, facts: bytes) -> bytes:
    return hmac.digest(key, facts + task.encode("utf-8", "surrogatepass"), "sha256")
