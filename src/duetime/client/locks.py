"""`app.lock`: one holder at a time, for any code, wherever it runs.

A holder renews its lock by a beat. It counts its lock as lost by its own monotonic clock when it could not renew for 0.7 of the lease.
Who wants the lock judges a beat by its own monotonic clock too: a beat that did not change for a whole lease is that of a dead holder. So
two clocks are never compared. What a lock protects should check its fence: a holder that was stopped in
the middle of a write does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from duetime.clock import SECOND, Seconds, monotonic, to_datetime, to_seconds
from duetime.errors import InvalidValue, LockLost, LockNotFound, LockTaken, StoreUnavailable
from duetime.ids import token
from duetime.model.task import check_name
from duetime.runtime.service import Alarms, Service
from duetime.store.locks import LockRecord, Seen

P = ParamSpec("P")
R = TypeVar("R")

BEATS = 3  # renewals within a lease
LOST_AFTER = 0.7  # of the lease without a renewal
LOOK_EVERY = 0.25  # seconds between looks of somebody who waits
LONGEST = 7 * 86_400.0


class LockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody holds, or that rests until `free_at`. `fence` is the holder's.

    `silent`: its last beat is older than its lease.
    """

    name: str
    fence: int
    by: str
    taken_at: datetime
    beat_at: datetime
    lease: float
    free_at: datetime | None = None
    silent: bool = False


class LockDoor(Protocol):
    """The verbs of locks, of a store or of a server."""

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord: ...
    async def renew_lock(self, name: str, holder: str) -> bool: ...
    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool: ...
    async def locks(self) -> list[LockRecord]: ...
    async def remove_lock(self, name: str) -> bool: ...


class Lock:
    """A lock that this program holds. It is renewed by itself until it is released, lost, or held for `max_hold`."""

    def __init__(self, door: LockDoor, record: LockRecord, holder: str, asked_at: float, max_hold: float | None, min_hold: float) -> None:
        self.name = record.name
        self.fence = record.fence
        """A number that is higher than that of every holder before. Give it to what the lock protects, and refuse lower ones there."""
        self._door = door
        self._holder = holder
        self._lease = record.lease
        self._taken_at = self._proved_at = asked_at
        self._end = None if max_hold is None else asked_at + max_hold
        self._min_hold = min_hold
        self._why = ""
        self._alarms = Alarms()
        self._keeper = _Keeper(self, self._alarms)

    def __repr__(self) -> str:
        return f"<Lock {self.name} {'lost' if self.lost else f'with fence {self.fence}'}>"

    @property
    def lost(self) -> bool:
        """Whether somebody else may have the lock. It is known without asking the store."""
        return bool(self._state())

    def check(self) -> None:
        """Raise LockLost if somebody else may have the lock."""
        why = self._state()
        if why:
            raise LockLost(f"the lock {self.name} is not held any more: {why}")

    def extend(self, seconds: Seconds) -> None:
        """Allow so many seconds more from now, where `max_hold` bounds them. Raises LockLost if it is too late."""
        self.check()
        self._end = monotonic() + _positive(seconds, "extend")

    async def release(self) -> None:
        """Give the lock back; others may have it at once, or `min_hold` seconds after it was taken. Releasing twice is harmless."""
        await self._stop()
        had, self._why = not self._why, self._why or "it was released"
        if had:
            rest = max(0.0, self._taken_at + self._min_hold - monotonic())
            with contextlib.suppress(StoreUnavailable):  # then it is free a lease from now
                await self._door.free_lock(self.name, self._holder, rest)

    def keep(self) -> None:
        """Begin to renew it."""
        self._keeper.start()

    async def renew(self) -> float | None:
        """Renew it once; return the seconds until the next time, None if there is none."""
        now = monotonic()
        if self._end is not None and now >= self._end:
            self._why = "it was held for as long as max_hold allows"
            await self._door.free_lock(self.name, self._holder, max(0.0, self._taken_at + self._min_hold - now))
            return None
        if not await self._door.renew_lock(self.name, self._holder):
            self._why = "it was taken by somebody who found this holder silent, or removed by an operator"
            return None
        self._proved_at = now  # when it was asked, not when it was answered
        pause = self._lease / BEATS
        return pause if self._end is None else min(pause, max(0.0, self._end - monotonic()))

    def _state(self) -> str:
        now = monotonic()
        if not self._why and self._end is not None and now >= self._end:
            return "it was held for as long as max_hold allows"
        if not self._why and now - self._proved_at > LOST_AFTER * self._lease:
            return f"it could not be renewed for {now - self._proved_at:.1f} s"
        return self._why

    async def _stop(self) -> None:
        await self._keeper.stop()
        self._alarms.close()


class _Keeper(Service):
    name = "lock"

    def __init__(self, lock: Lock, alarms: Alarms) -> None:
        super().__init__(alarms)
        self.pulse.name = f"lock {lock.name}"
        self._lock = lock
        self._first = True

    async def run_once(self) -> float | None:
        if self._first:  # it was just taken
            self._first = False
            self.skipped()
            return self._lock._lease / BEATS
        return await self._lock.renew()


class Locks:
    """`app.locks`: take, list and remove locks."""

    def __init__(self, door: LockDoor, *, user: str, lease: float, opened: Callable[[], Awaitable[None]]) -> None:
        self._door = door
        self._user = user
        self._lease = lease
        self._opened = opened
        self._seen: dict[str, tuple[Seen, float, float]] = {}

    async def take(
        self, name: str, *, max_hold: Seconds | None = None, min_hold: Seconds = 0, wait: Seconds = 0, by: str | None = None
    ) -> Lock | None:
        """Take a lock; None if somebody else has it, or still has it after `wait` seconds.

        It is renewed until it is released, at most for `max_hold`. After a release others cannot have it before `min_hold` seconds after
        it was taken. If its holder seems dead, this waits up to the holder's lease to be sure.
        """
        check_name(name, "the name of a lock")
        most = None if max_hold is None else _positive(max_hold, "max_hold")
        least, patience = _not_negative(min_hold, "min_hold"), _not_negative(wait, "wait")
        if most is not None and least > most:
            raise InvalidValue(f"min_hold must not be longer than max_hold, got {least:g} and {most:g} seconds")
        await self._opened()
        holder, deadline = token(16), monotonic() + patience
        while True:
            asked_at = monotonic()
            found = await self._door.take_lock(name, holder, self._user if by is None else by, self._lease, self._dead(name))
            if found.taken:
                self._seen.pop(name, None)
                lock = Lock(self._door, found, holder, asked_at, most, least)
                lock.keep()
                return lock
            sure_at = self._watch(name, found, asked_at)
            now = monotonic()
            suspect = found.free_at is None and not -SECOND < found.now - found.beat_at < found.lease * SECOND
            if now >= deadline and not suspect:
                return None
            end = max(deadline, sure_at) if suspect else deadline
            await asyncio.sleep(max(0.01, min(LOOK_EVERY * random.uniform(0.8, 1.2), end - now)))

    async def list(self) -> list[LockInfo]:
        """Return the locks that are held or rest, by name."""
        await self._opened()
        return [_shown(record) for record in await self._door.locks()]

    async def get(self, name: str) -> LockInfo:
        """Return a lock. Raises LockNotFound if nobody holds it and it does not rest."""
        for found in await self.list():
            if found.name == name:
                return found
        raise no_lock(name)

    async def delete(self, name: str) -> None:
        """Take a lock from whoever has it, who learns it at the next beat. Raises LockNotFound if nobody has it."""
        await self._opened()
        if not await self._door.remove_lock(name):
            raise no_lock(name)

    def _watch(self, name: str, found: LockRecord, now: float) -> float:
        """Remember since when the holder is at this beat; return when it counts as dead."""
        seen = Seen(found.fence, found.beat)
        known = self._seen.get(name)
        since = known[1] if known is not None and known[0] == seen else now
        self._seen[name] = (seen, since, found.lease)
        return since + found.lease

    def _dead(self, name: str) -> Seen | None:
        """Return the holder that has been at the same beat for a whole lease, by our own clock."""
        known = self._seen.get(name)
        return known[0] if known is not None and monotonic() - known[1] > known[2] else None


class LockUse:
    """What `app.lock(…)` returns: for `async with`, for `with`, or as a decorator."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        sync: Callable[[Awaitable[Any]], Any],
        *,
        max_hold: Seconds | None,
        min_hold: Seconds,
        wait: Seconds,
    ) -> None:
        self._locks = locks
        self._name = name
        self._sync = sync
        self._options: dict[str, Any] = {"max_hold": max_hold, "min_hold": min_hold, "wait": wait}
        self._lock: Lock | None = None

    async def __aenter__(self) -> Lock:
        self._lock = await self._locks.take(self._name, **self._options)
        if self._lock is None:
            raise LockTaken(f"the lock {self._name} is held by somebody else; give wait= to wait for it, or try again later")
        return self._lock

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.release()

    def __enter__(self) -> Lock:
        lock: Lock = self._sync(self.__aenter__())
        return lock

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sync(self.__aexit__(kind, error, trace))

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Call a function only with the lock; otherwise skip it and return None."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded(*args: Any, **values: Any) -> Any:
                lock = await self._locks.take(self._name, **self._options)
                if lock is None:
                    return None
                try:
                    return await function(*args, **values)
                finally:
                    await lock.release()

            return guarded

        @functools.wraps(function)
        def guarded_here(*args: Any, **values: Any) -> Any:
            lock: Lock | None = self._sync(self._locks.take(self._name, **self._options))
            if lock is None:
                return None
            try:
                return function(*args, **values)
            finally:
                self._sync(lock.release())

        return guarded_here


def no_lock(name: str) -> LockNotFound:
    return LockNotFound(f"nobody holds a lock {name[:80]!r}; `duetime locks` lists those that are held")


def _shown(record: LockRecord) -> LockInfo:
    return LockInfo(
        name=record.name,
        fence=record.fence,
        by=record.by,
        taken_at=to_datetime(record.taken_at),
        beat_at=to_datetime(record.beat_at),
        lease=record.lease,
        free_at=None if record.free_at is None else to_datetime(record.free_at),
        silent=record.free_at is None and record.now - record.beat_at > record.lease * SECOND,
    )


def _positive(value: Seconds, name: str) -> float:
    seconds = to_seconds(value, name)
    if not 0 < seconds <= LONGEST:
        raise InvalidValue(f"{name} must be above 0 and at most a week, got {seconds:g} seconds")
    return seconds


def _not_negative(value: Seconds, name: str) -> float:
    seconds = to_seconds(value, name)
    if not 0 <= seconds <= LONGEST:
        raise InvalidValue(f"{name} must be from 0 to a week, got {seconds:g} seconds")
    return seconds
