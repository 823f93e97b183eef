"""Limits in JSON. `LimitInfo` is a limit as it is shown."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.limits import MOST_PARTITIONS, LimitInfo, PartitionInfo
from duetime.model.limit import MOST_RATES, MOST_RUNNING
from duetime.model.partitions import LONGEST_NAME
from duetime.wire.fields import MOST_WAIT


class RateBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many may start in `per` seconds, or in each day of UTC, up to `burst` at once."""

    count: Annotated[int, Meta(ge=1, le=MOST_RUNNING)]
    per: Annotated[float, Meta(gt=0, le=31_622_400)] | Literal["day"]
    burst: Annotated[int, Meta(ge=1, le=MOST_RUNNING)] = 1


class LimitBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What may run instead of the declared number, in all or in one partition, and of declared rates, for `lasting` seconds.

    `wait` is how long to wait for the workers' confirmations.
    """

    running: Annotated[int, Meta(ge=1, le=MOST_RUNNING)] | UnsetType | None = UNSET
    rate: Annotated[list[RateBody], Meta(min_length=1, max_length=MOST_RATES)] | UnsetType | None = UNSET
    partition: Annotated[str, Meta(max_length=LONGEST_NAME)] | UnsetType | None = UNSET
    lasting: Annotated[float, Meta(gt=0, le=3_000_000_000)] | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=1_000)] = ""
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 20.0


class LimitList(msgspec.Struct, frozen=True):
    """The limits that workers have declared, by name."""

    items: list[LimitInfo]
    next: None = None


class PartitionQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which partitions of a limit: one, or so many after a name."""

    partition: Annotated[str, Meta(max_length=LONGEST_NAME)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=LONGEST_NAME)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_PARTITIONS)] = 100


class OnePartition(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One partition of a limit, or the whole limit."""

    partition: Annotated[str, Meta(max_length=LONGEST_NAME)] | UnsetType = UNSET


class PartitionList(msgspec.Struct, frozen=True):
    """Partitions of a limit under which something runs or waits, by name. `next` is the `cursor` for more."""

    items: list[PartitionInfo]
    next: str | None = None


class LimitAnswer(msgspec.Struct, frozen=True):
    """A limit that was changed. In force: every live worker has confirmed it. `above` still run although it does not allow them."""

    limit: LimitInfo
    version: int
    in_force: bool
    above: int
    confirmed: list[str]
    waiting: list[str]
    partition: PartitionInfo | None = None
