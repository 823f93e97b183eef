"""Gates in JSON. `GateInfo` is a gate as it is shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.gates import GateInfo
from duetime.model.gate import GateAction
from duetime.wire.fields import MOST_WAIT, Name


class GateQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The gate of a collection; without it that of the whole handler."""

    collection: Name | UnsetType = UNSET


class GateBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A gate to set. It opens by itself after `lasting` seconds; `wait` is how long to wait for the workers' confirmations."""

    action: GateAction
    lasting: Annotated[float, Meta(gt=0, le=3_000_000_000)] | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=1_000)] = ""
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 20.0
    allow_unknown: bool = False


class GatesBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Gates to set on every declared handler that fits: `*` stands for any characters."""

    handler: Name
    action: GateAction
    lasting: Annotated[float, Meta(gt=0, le=3_000_000_000)] | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=1_000)] = ""
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 20.0


class GatesQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which gates to open: those of handlers that fit; `*` stands for any characters."""

    handler: Name


class GateList(msgspec.Struct, frozen=True):
    """The closed gates, by handler and collection."""

    items: list[GateInfo]
    next: None = None


class GateAnswer(msgspec.Struct, frozen=True):
    """A gate that was set. In force: every live worker has confirmed that it starts nothing against it."""

    gate: GateInfo
    version: int
    in_force: bool
    confirmed: list[str]
    waiting: list[str]


class GatesAnswer(msgspec.Struct, frozen=True):
    """Gates that were set, by handler."""

    items: list[GateAnswer]
