"""The role of the seam that is about events; a part of `store.control`. Rules: `model/event.py`; reasons: docs/design/events.md."""

from __future__ import annotations

from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.event import EventRecord


class Follower(msgspec.Struct, frozen=True):
    """Who follows events, until when, and up to which cursor it has dealt with them; None: it remembers that itself."""

    name: str
    until_at: Instant
    cursor: str | None


class EventPage(msgspec.Struct, frozen=True):
    """Some events in the order in which they happened, and where to go on; `next` moves although nothing may have been found."""

    items: list[EventRecord]
    next: str


class EventStore(Protocol):
    """What happened, while somebody follows it. Nothing is written for events while nobody does."""

    async def follow_events(self, follower: str, seconds: float, *, remember: bool = False) -> str:
        """Have events written for so many seconds more, and return where this follower stands.

        Once this has returned, everything that is committed is written as events in the same transaction. A follower that is new stands
        at the end of what there is. With `remember` the store keeps where it stands (`pass_events`), and events that it has not passed are
        not removed; a repeat returns what it has passed.
        """
        ...

    async def pass_events(self, follower: str, before: str, after: str) -> bool:
        """Remember that a follower has dealt with events up to a cursor, if it stood at `before`; return whether it did."""
        ...

    async def followers(self) -> list[Follower]:
        """List who follows events, by name, those included whose time is over and who have not been removed."""
        ...

    async def leave_events(self, follower: str) -> bool:
        """Forget a follower; return whether there was one."""
        ...

    async def events(self, after: str | None, limit: int) -> EventPage:
        """Return events after a cursor, from the oldest that there is if that is None.

        Events of one task, schedule, worker or gate come in the order in which they happened, and following `next` leaves none out that is
        not removed. Those of a transaction come after it is committed, and on some stores after every transaction that began to write
        before it has ended. A cursor that cannot be read raises InvalidValue.
        """
        ...

    async def prune_events(self, before: Instant, until: Instant, limit: int) -> int:
        """Remove up to `limit` events from before an instant that all who are remembered have passed, and any from before `until`.

        Also forgets followers whose time is over, and when none is left stops writing events and removes them all. Returns how many were
        removed.
        """
        ...
