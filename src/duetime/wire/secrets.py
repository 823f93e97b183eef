"""Secrets in JSON. `SecretInfo` is a secret as it is shown; a value is only ever sent to a server, never back."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.client.secrets import GRACE, SecretInfo
from duetime.model.secrets import MAX_SECRET


class SecretBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The value to store, at most 65,536 bytes in UTF-8. The former one stays good for `grace` seconds."""

    value: Annotated[str, Meta(min_length=1, max_length=MAX_SECRET)]
    grace: Annotated[float, Meta(ge=0, le=3_000_000_000)] = GRACE

    def __repr__(self) -> str:
        return "SecretBody(…)"


class SecretList(msgspec.Struct, frozen=True):
    """All secrets by name, without their values."""

    items: list[SecretInfo]
    next: None = None
