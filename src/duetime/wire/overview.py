"""Workers, handlers and the server's health in JSON. `WorkerInfo`, `HandlerInfo` and `Stats` are what is shown of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from duetime.client.insight import HandlerInfo, WorkerInfo


class WorkerList(msgspec.Struct, frozen=True):
    """All registered workers, by start."""

    items: list[WorkerInfo]
    next: None = None


class HandlerList(msgspec.Struct, frozen=True):
    """All declared handlers, by name, with the JSON Schema of their payloads."""

    items: list[HandlerInfo]
    next: None = None


class LoopHealth(msgspec.Struct, frozen=True):
    """A loop of the server, and for how many seconds its present run has lasted."""

    name: str
    seconds: float


class Health(msgspec.Struct, frozen=True):
    """The server is healthy; `loops` are those that were checked."""

    status: Literal["ok"]
    loops: Sequence[LoopHealth] = ()
