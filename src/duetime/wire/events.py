"""Events in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.model.event import KINDS, MOST_EVENTS, Event
from duetime.wire.fields import Cursor, Name, TaskId


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which events to return, and whether to follow them."""

    names: Annotated[str, Meta(max_length=1_000, description="Names such as task.failed,task.lost, or task.* for all of a noun.")] = ""
    handler: Annotated[Name, Meta(description="A handler, or shop.* for all that begin so.")] | UnsetType = UNSET
    task: TaskId | UnsetType = UNSET
    follow: Annotated[bool, Meta(description="Answer with an event stream that does not end.")] = False
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100
    cursor: Cursor | UnsetType = UNSET


class EventBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event. What there is besides name, cursor and instant depends on the noun in its name."""

    name: str
    cursor: str
    at: str
    task: str | None = None
    handler: str | None = None
    collection: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    worker: str | None = None
    schedule: str | None = None
    planned_at: str | None = None
    until_at: str | None = None
    count: int | None = None
    reason: str | None = None
    note: str | None = None
    by: str | None = None
    host: str | None = None
    error: dict[str, str] | None = None


class EventList(msgspec.Struct, frozen=True):
    """Events in the order in which they happened, and the cursor from which to go on."""

    items: list[EventBody]
    next: str


def body_of(event: Event) -> EventBody:
    return msgspec.convert(msgspec.to_builtins(event), EventBody)


def event_of(body: EventBody) -> Event:
    kind = KINDS[body.name.partition(".")[0]]
    event: Event = msgspec.convert(msgspec.to_builtins(body), kind)
    return event
