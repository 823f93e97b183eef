"""`app.events`: what happens to tasks, schedules, workers and gates, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Protocol

import msgspec

from duetime.errors import InvalidValue, StoreUnavailable
from duetime.ids import token
from duetime.model.event import MOST_EVENTS, Event, EventFilter, check_events, check_pattern, shown
from duetime.store import Store
from duetime.store.values import Hint

FOLLOWED_FOR = 60.0  # seconds for which events are written after a stream was last heard of
RENEW_EVERY = 20.0
READ_FOR = 300.0  # seconds for which events are written after somebody asked for a page
LOOK_AGAIN = 0.5  # seconds until the next look if no hint comes
PAGES = "pages"  # the follower that stands for all who ask for pages


class Events(msgspec.Struct, frozen=True):
    """Some events in the order in which they happened, and the cursor from which to go on."""

    items: list[Event]
    next: str


class EventSource(Protocol):
    """Where events come from: a store, or a server."""

    async def page(self, filter: EventFilter, *, after: str | None = None, limit: int = 100) -> Events:
        """Return events that match after a cursor, without one from the oldest that is kept.

        Events are kept for an hour, and written only while somebody follows: asking counts as following for five minutes. A page
        may have fewer than `limit` events, or none, although there are more: `next` says where to go on.
        """
        ...

    def follow(self, filter: EventFilter, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield events that match as they happen, after a cursor or from now on, until the caller stops."""
        ...


def filter_of(names: Iterable[str], handler: str | None = None, task: str | None = None, visible: tuple[str, ...] = ()) -> EventFilter:
    """Check what somebody wants to hear of."""
    return EventFilter(names=check_events(names), handler=check_pattern(handler), task=task, visible=visible)


class LocalEvents(EventSource):
    """Events of a store of this process."""

    def __init__(self, store: Store, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._opened = opened

    async def page(self, filter: EventFilter, *, after: str | None = None, limit: int = 100) -> Events:
        if not 1 <= limit <= MOST_EVENTS:
            raise InvalidValue(f"limit must be from 1 to {MOST_EVENTS:,}, got {limit}")
        await self._opened()
        await self._store.follow_events(PAGES, READ_FOR)
        found = await self._store.events(after, limit)
        return Events([shown(record) for record in found.items if filter.takes(record)], found.next)

    async def follow(self, filter: EventFilter, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        await self._opened()
        store, follower, loop = self._store, f"stream {token(8)}", asyncio.get_running_loop()
        changed = asyncio.Event()

        def on_hint(hint: Hint) -> None:
            changed.set()

        listener = store.listen(on_hint)
        try:
            start, renewed_at = await store.follow_events(follower, FOLLOWED_FOR), loop.time()
            cursor = start if after is None else after
            while True:
                if loop.time() - renewed_at > RENEW_EVERY:
                    await store.follow_events(follower, FOLLOWED_FOR)
                    renewed_at = loop.time()
                changed.clear()
                found = await store.events(cursor, MOST_EVENTS)
                cursor = found.next
                for record in found.items:
                    if filter.takes(record):
                        yield shown(record)
                if not found.items:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), LOOK_AGAIN)
        finally:
            listener.close()
            with contextlib.suppress(StoreUnavailable):
                await store.leave_events(follower)
