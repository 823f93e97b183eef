"""`app.limits`: what limits of the whole fleet allow, who has what of them, and changing them while they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Protocol

import msgspec

from duetime.client.gates import IN_FORCE_WITHIN, LOOK_AGAIN, Named, check_note, lasting_of
from duetime.clock import Instant, Seconds, to_datetime, to_seconds
from duetime.errors import LimitNotFound
from duetime.model.limit import LimitRecord, check_running
from duetime.store import Store
from duetime.store.values import Hint, HintKind


class LimitHolder(msgspec.Struct, frozen=True):
    """A worker that has permits of a limit. `lacks`: how many more it could use now. `confirmed`: it goes by the newest number."""

    worker: str
    permits: int
    lacks: int
    confirmed: bool


class LimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as people see it.

    `running` may run now: what an operator has set (`own`, until `until_at` if that is given), or what code declares (`declared`).
    `handlers` says what an attempt of each takes. `out`: permits that are with workers, and what was accepted elsewhere (`accepted`);
    it can be above `running` for a while after the limit was lowered. `lacking`: how many more permits workers could use now.
    """

    name: str
    running: int
    declared: int
    own: int | None
    until_at: datetime | None
    note: str
    set_by: str
    set_at: datetime | None
    version: int
    handlers: dict[str, int]
    out: int
    accepted: int
    lacking: int
    workers: list[LimitHolder]


class LimitSet(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that was changed, and which workers with permits of it have confirmed that they start nothing beyond it."""

    limit: LimitInfo
    version: int
    confirmed: list[str]
    waiting: list[str]

    @property
    def in_force(self) -> bool:
        """Whether every live worker has confirmed it. Then nothing starts any more that it does not allow."""
        return not self.waiting

    @property
    def above(self) -> int:
        """How much still runs above the limit; nothing more starts until that has ended."""
        return max(0, self.limit.out - self.limit.running)

    def __str__(self) -> str:
        total = len(self.confirmed) + len(self.waiting)
        text = "in force" if self.in_force else f"in force on {len(self.confirmed)} of {total} workers"
        return f"{text}; {self.limit.out} run or may start at once, {self.above} above the limit" if self.above else text


class Limits(Protocol):
    """`app.limits`: what may run at once in the whole fleet."""

    async def put(
        self, name: str | Named, *, running: int, lasting: Seconds | None = None, note: str = "", timeout: Seconds = IN_FORCE_WITHIN
    ) -> LimitSet:
        """Let another number hold than the declared one, until `reset`, or for `lasting`; deployments do not change it.

        Returns when every worker has confirmed it, or after `timeout`; `in_force` of the result says which, and `above` how much still
        runs above it: nothing is stopped. Raises LimitNotFound if no worker has declared a limit of this name yet.
        """
        ...

    async def reset(self, name: str | Named) -> LimitInfo:
        """Let the number that code declares hold again. Raises LimitNotFound."""
        ...

    async def get(self, name: str | Named) -> LimitInfo:
        """Return a limit. Raises LimitNotFound."""
        ...

    async def list(self) -> list[LimitInfo]:
        """Return all limits that workers have declared, by name."""
        ...


class LocalLimits(Limits):
    """Limits of a store."""

    def __init__(self, store: Store, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._user = user
        self._opened = opened

    async def put(
        self, name: str | Named, *, running: int, lasting: Seconds | None = None, note: str = "", timeout: Seconds = IN_FORCE_WITHIN
    ) -> LimitSet:
        return await self.put_by(self._user, name, running, None if lasting is None else lasting_of(lasting), note, timeout)

    async def put_by(
        self, user: str, name: str | Named, running: int, lasting: int | None, note: str, timeout: Seconds = IN_FORCE_WITHIN
    ) -> LimitSet:
        """Set it in the name of a user; `lasting` is in microseconds."""
        name = name_of(name)
        check_running(running)
        seconds, note = to_seconds(timeout, "timeout"), check_note(note)
        await self._opened()
        until_at = None if lasting is None else self._store.now() + lasting
        version = await self._store.put_limit(name, running, until_at=until_at, note=note, set_by=user)
        if version is None:
            raise no_limit(name, [record.name for record in await self._store.limits()])
        return await self._confirmed(name, version, seconds)

    async def reset(self, name: str | Named) -> LimitInfo:
        await self._opened()
        await self._store.reset_limit(name_of(name))
        return await self.get(name)

    async def get(self, name: str | Named) -> LimitInfo:
        found = await self.list()
        for each in found:
            if each.name == name_of(name):
                return each
        raise no_limit(name_of(name), [each.name for each in found])

    async def list(self) -> list[LimitInfo]:
        await self._opened()
        now = self._store.now()
        return [limit_info(record, now) for record in await self._store.limits()]

    async def _confirmed(self, name: str, version: int, seconds: float) -> LimitSet:
        loop = asyncio.get_running_loop()
        end, changed = loop.time() + seconds, asyncio.Event()

        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.LIMITS, HintKind.ANY):
                changed.set()

        listener = self._store.listen(on_hint)
        try:
            while True:
                changed.clear()
                found = await self._barrier(name, version)
                left = min(LOOK_AGAIN, end - loop.time())
                if not found.waiting or left <= 0:
                    return found
                try:
                    async with asyncio.timeout(left):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            listener.close()

    async def _barrier(self, name: str, version: int) -> LimitSet:
        """Return which live workers go by this version of a limit. Who has no permit can start nothing before it has asked for one."""
        record = next(record for record in await self._store.limits() if record.name == name)
        dead = {worker.id for worker in await self._store.workers() if worker.alive is False}
        having = [holder for holder in record.holders if holder.permits and holder.worker not in dead]
        return LimitSet(
            limit=limit_info(record, self._store.now()),
            version=version,
            confirmed=[holder.worker for holder in having if holder.seen >= version],
            waiting=[holder.worker for holder in having if holder.seen < version],
        )


def limit_info(record: LimitRecord, now: Instant) -> LimitInfo:
    own = record.own_at(now)
    return LimitInfo(
        name=record.name,
        running=record.running_at(now),
        declared=record.declared,
        own=own,
        until_at=None if own is None or record.until_at is None else to_datetime(record.until_at),
        note="" if own is None else record.note,
        set_by="" if own is None else record.set_by,
        set_at=None if own is None or record.set_at is None else to_datetime(record.set_at),
        version=record.version,
        handlers=dict(sorted(record.uses.items())),
        out=record.out,
        accepted=record.accepted,
        lacking=sum(max(0, holder.wanted - holder.permits) for holder in record.holders),
        workers=[
            LimitHolder(holder.worker, holder.permits, max(0, holder.wanted - holder.permits), holder.seen >= record.version)
            for holder in record.holders
        ],
    )


def no_limit(name: str, known: Sequence[str]) -> LimitNotFound:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "a limit is known once a worker with it has started; `duetime limits` lists them"
    return LimitNotFound(f"there is no limit {name[:100]!r}; {hint}")


def name_of(limit: str | Named) -> str:
    return limit if isinstance(limit, str) else limit.name
