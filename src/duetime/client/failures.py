"""`app.failures`: failures of the same kind as one group each, and muting the kinds that are known."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

import msgspec

from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_instant, to_micros
from duetime.errors import FailureNotFound, InvalidValue
from duetime.model.failures import FailureGroup, check_fingerprint, is_again, is_new, trend
from duetime.model.task import check_name
from duetime.store.failures import FailureStore

DAY = 86_400.0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind: of the same handler, with the same type of error, from the same function.

    `message` is that of the last one, with `#` for numbers and ids. `attempts` failed and `tasks` failed for good since the instant that
    was asked for, which `trend` shows in 24 equal parts, oldest first. `new`: first seen within the last day; `again`: seen again within
    the last day, after three days without. `sample` is the last task; it may be no longer stored.
    """

    fingerprint: str
    handler: str
    type: str
    message: str
    location: str
    first_at: datetime
    last_at: datetime
    attempts: int
    tasks: int
    trend: list[int]
    new: bool
    again: bool
    sample: str
    muted_until_at: datetime | None = None
    muted_by: str = ""

    def __str__(self) -> str:
        said = f"{self.type}: {self.message}" if self.message else self.type
        return f"{said} in {self.handler}"


def shown(group: FailureGroup, since: Instant, now: Instant) -> Failure:
    """Return a group as people see it. A mute that is over is left out."""
    facts, muted_until_at = group.facts, group.muted_until_at
    muted = muted_until_at is not None and muted_until_at > now
    return Failure(
        fingerprint=group.fingerprint,
        handler=facts.kind.handler,
        type=facts.kind.type,
        message=facts.kind.message,
        location=facts.kind.location,
        first_at=to_datetime(facts.first_at),
        last_at=to_datetime(facts.last_at),
        attempts=sum(bucket.attempts for bucket in group.buckets),
        tasks=sum(bucket.tasks for bucket in group.buckets),
        trend=trend(group.buckets, since, now),
        new=is_new(facts, now),
        again=is_again(facts, now),
        sample=facts.sample,
        muted_until_at=to_datetime(muted_until_at) if muted and muted_until_at is not None else None,
        muted_by=group.muted_by if muted else "",
    )


def since_instant(since: datetime | Seconds, now: Instant) -> Instant:
    """Return an instant that was given as such, or as seconds before now."""
    if isinstance(since, datetime):
        return max(0, to_instant(since, "since"))
    back = to_micros(since, "since")
    if back < 0:
        raise InvalidValue(f"since must be an instant, or how many seconds to look back, got {since}")
    return max(0, now - back)


def until_instant(until: datetime | Seconds, now: Instant) -> Instant:
    """Return an instant that was given as such, or as seconds from now; it must lie ahead."""
    until_at = to_instant(until, "until") if isinstance(until, datetime) else now + to_micros(until, "until")
    if until_at <= now:
        raise InvalidValue(f"until must lie in the future, got {until}; to take a mute back use unmute")
    return min(until_at, LATEST)


def not_found(fingerprint: str) -> FailureNotFound:
    return FailureNotFound(
        f"no failure with the fingerprint {fingerprint} is known; `duetime failures` lists those of the last day, and a kind is "
        "forgotten 92 days after it was last seen"
    )


class Failures(Protocol):
    """Failures by kind."""

    async def list(self, *, since: datetime | Seconds = DAY, handler: str | None = None) -> list[Failure]:
        """Return the kinds of failures seen since an instant, or in the last so many seconds: the latest first, at most a thousand."""
        ...

    async def get(self, fingerprint: str, *, since: datetime | Seconds = DAY) -> Failure:
        """Return a kind of failure, whenever it was last seen, with its counts since an instant. Raises FailureNotFound."""
        ...

    async def mute(self, fingerprint: str, until: datetime | Seconds, *, by: str | None = None) -> Failure:
        """Mark a kind of failure as known, until an instant or for so many seconds. It is counted as before. Raises FailureNotFound.

        `by` is who does it, by default the user of this program; a server records the name of the token.
        """
        ...

    async def unmute(self, fingerprint: str) -> Failure:
        """Take a mute back. Raises FailureNotFound."""
        ...


class FailureRole(FailureStore, Protocol):
    """What `LocalFailures` needs of a store."""

    def now(self) -> Instant: ...


class LocalFailures(Failures):
    """Failures of a store."""

    def __init__(self, store: FailureRole, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._user = user
        self._opened = opened

    async def list(self, *, since: datetime | Seconds = DAY, handler: str | None = None) -> builtins.list[Failure]:
        name = None if handler is None else check_name(handler, "handler")
        await self._opened()
        now = self._store.now()
        since_at = since_instant(since, now)
        return [shown(group, since_at, now) for group in await self._store.failures(since_at, handler=name)]

    async def get(self, fingerprint: str, *, since: datetime | Seconds = DAY) -> Failure:
        check_fingerprint(fingerprint)
        await self._opened()
        now = self._store.now()
        since_at = since_instant(since, now)
        group = await self._store.failure(fingerprint, since_at)
        if group is None:
            raise not_found(fingerprint)
        return shown(group, since_at, now)

    async def mute(self, fingerprint: str, until: datetime | Seconds, *, by: str | None = None) -> Failure:
        check_fingerprint(fingerprint)
        await self._opened()
        if not await self._store.mute_failure(fingerprint, until_instant(until, self._store.now()), by or self._user):
            raise not_found(fingerprint)
        return await self.get(fingerprint)

    async def unmute(self, fingerprint: str) -> Failure:
        check_fingerprint(fingerprint)
        await self._opened()
        if not await self._store.mute_failure(fingerprint, None, ""):
            raise not_found(fingerprint)
        return await self.get(fingerprint)
