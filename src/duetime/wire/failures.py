"""Failures in JSON. `Failure` is a kind of failure as it is shown."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duetime.client.failures import Failure
from duetime.wire.fields import Instant, Lasting, Name


class FailureQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """From when on failures count; by default the last 24 hours."""

    since: Instant | UnsetType = UNSET


class FailureListQuery(FailureQuery, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Kinds of failures seen since an instant."""

    handler: Name | UnsetType = UNSET


class FailureList(msgspec.Struct, frozen=True):
    """Kinds of failures, the latest first; at most a thousand."""

    items: list[Failure]
    next: None = None


class MuteBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Until when a kind of failure counts as known: an instant (`until_at`), or `lasting` seconds from now. One of the two."""

    until_at: Instant | UnsetType = UNSET
    lasting: Lasting | UnsetType = UNSET
