"""Workers, handlers, series and the server's health in JSON. `WorkerInfo`, `HandlerInfo` and `Stats` are what is shown of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.activity import USUAL_UPCOMING
from duetime.client.insight import HandlerInfo
from duetime.client.series import Series
from duetime.client.servers import ServerInfo
from duetime.client.workers import WorkerInfo
from duetime.model.query import MAX_PAGE
from duetime.model.series import STEPS, SeriesName
from duetime.wire.fields import Instant, Name


class ServerList(msgspec.Struct, frozen=True):
    """The servers that have made themselves known, by start."""

    items: list[ServerInfo]
    next: None = None


class WorkerList(msgspec.Struct, frozen=True):
    """All registered workers, by start."""

    items: list[WorkerInfo]
    next: None = None


class HandlerList(msgspec.Struct, frozen=True):
    """All declared handlers, by name, with the JSON Schema of their payloads."""

    items: list[HandlerInfo]
    next: None = None


class UpcomingQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many tasks to return at most."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = USUAL_UPCOMING


class SeriesQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which values, and of when. Without `since` fifteen minutes, without `until` up to now, without `step` as fine as is kept."""

    names: (
        Annotated[str, Meta(min_length=1, max_length=1_000, description=f"Some, with commas between them, of: {', '.join(SeriesName)}.")]
        | UnsetType
    ) = UNSET
    handler: Name | UnsetType = UNSET
    by: Annotated[Literal["handler"], Meta(description="One series of each handler.")] | UnsetType = UNSET
    since: Instant | UnsetType = UNSET
    until: Instant | UnsetType = UNSET
    step: Annotated[int, Meta(description=f"Seconds: {', '.join(map(str, STEPS))}.")] | UnsetType = UNSET


class SeriesList(msgspec.Struct, frozen=True):
    """One series, or one of each handler by name."""

    items: list[Series]
    next: None = None


class LoopHealth(msgspec.Struct, frozen=True):
    """A loop of the server, and for how many seconds its present run has lasted."""

    name: str
    seconds: float


class Health(msgspec.Struct, frozen=True):
    """The server is healthy; `loops` are those that were checked."""

    status: Literal["ok"]
    loops: Sequence[LoopHealth] = ()
