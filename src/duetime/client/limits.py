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
from duetime.errors import InvalidValue, LimitNotFound
from duetime.model.limit import MOST_RATES, LimitRecord, PartitionRecord, Rate, check_running
from duetime.model.partitions import LONGEST_NAME
from duetime.store import Store
from duetime.store.values import Hint, HintKind

MOST_PARTITIONS = 1_000


class LimitHolder(msgspec.Struct, frozen=True):
    """A worker that has permits of a limit. `lacks`: how many more it could use now. `confirmed`: it goes by the newest number."""

    worker: str
    permits: int
    lacks: int
    confirmed: bool


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a limit by key as people see it: what runs and waits under it.

    `running` may run at once: the limit's number, or its own (`own`, until `until_at` if that is given); None: as many as come. `tasks` are
    ids of some that run. `next_at` is when the next may start, if a rate holds it back.
    """

    partition: str
    running: int | None
    own: int | None
    until_at: datetime | None
    note: str
    set_by: str
    out: int
    parked: int
    oldest_due_at: datetime | None
    next_at: datetime | None
    tasks: list[str]


class LimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as people see it.

    A limit by key (`by`), by rate (`rates`) or with another `over` than to wait is counted when tasks are claimed: `out` is how many run,
    and `parked` how many tasks wait under it. `running` None: only a rate bounds it.
    `own_rates`: an operator has set the rates.
    `running` may run now: what an operator has set (`own`, until `until_at` if that is given), or what code declares (`declared`).
    `handlers` says what an attempt of each takes. `out`: permits that are with workers, and what was accepted elsewhere (`accepted`);
    it can be above `running` for a while after the limit was lowered. `lacking`: how many more permits workers could use now.
    """

    name: str
    running: int | None
    declared: int | None
    own: int | None
    until_at: datetime | None
    note: str
    set_by: str
    set_at: datetime | None
    version: int
    handlers: dict[str, int]
    by: str | None = None
    rates: list[str] = []
    own_rates: bool = False
    over: str = "wait"
    parked: int = 0
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
    partition: PartitionInfo | None = None

    @property
    def in_force(self) -> bool:
        """Whether every live worker has confirmed it. Then nothing starts any more that it does not allow."""
        return not self.waiting

    @property
    def above(self) -> int:
        """How much still runs above the limit; nothing more starts until that has ended."""
        if self.partition is not None:
            return max(0, self.partition.out - (self.partition.running or self.partition.out))
        if self.limit.by is not None:
            return 0  # each partition is for itself
        return max(0, self.limit.out - (self.limit.running or self.limit.out))

    def __str__(self) -> str:
        out = self.limit.out if self.partition is None else self.partition.out
        total = len(self.confirmed) + len(self.waiting)
        text = "in force" if self.in_force else f"in force on {len(self.confirmed)} of {total} workers"
        return f"{text}; {out} run or may start at once, {self.above} above the limit" if self.above else text


class Limits(Protocol):
    """`app.limits`: what may run at once in the whole fleet."""

    async def put(
        self,
        name: str | Named,
        *,
        running: int | None = None,
        rate: Sequence[Rate] | None = None,
        partition: str | None = None,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
    ) -> LimitSet:
        """Let another number hold than the declared one, until `reset`, or for `lasting`; deployments do not change it.

        With `partition`, a value of the key of a limit by key, the number holds for that alone. `rate` holds instead of declared rates.

        Returns when every worker has confirmed it, or after `timeout`; `in_force` of the result says which, and `above` how much still
        runs above it: nothing is stopped. Raises LimitNotFound if no worker has declared a limit of this name yet.
        """
        ...

    async def reset(self, name: str | Named, *, partition: str | None = None) -> LimitInfo:
        """Let the number that code declares hold again, or that of the limit for one of its partitions. Raises LimitNotFound."""
        ...

    async def partitions(
        self, name: str | Named, *, partition: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        """Return partitions of a limit by key under which something runs or waits, or that have a number of their own, by name.

        `partition` asks for one; `after` goes on behind a name. Raises LimitNotFound.
        """
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
        self,
        name: str | Named,
        *,
        running: int | None = None,
        rate: Sequence[Rate] | None = None,
        partition: str | None = None,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
    ) -> LimitSet:
        micros = None if lasting is None else lasting_of(lasting)
        return await self.put_by(self._user, name, running, micros, note, timeout, partition, rate)

    async def put_by(
        self,
        user: str,
        name: str | Named,
        running: int | None,
        lasting: int | None,
        note: str,
        timeout: Seconds = IN_FORCE_WITHIN,
        partition: str | None = None,
        rate: Sequence[Rate] | None = None,
    ) -> LimitSet:
        """Set it in the name of a user; `lasting` is in microseconds."""
        name = name_of(name)
        check_put(running, rate, partition)
        seconds, note = to_seconds(timeout, "timeout"), check_note(note)
        await self._opened()
        until_at = None if lasting is None else self._store.now() + lasting
        if partition is not None:
            assert running is not None
            return await self._put_partition(user, name, check_partition(partition), running, until_at, note)
        await self._check_kind(name, running, rate)
        rates = None if rate is None else [each.rule for each in rate]
        version = await self._store.put_limit(name, running, until_at=until_at, note=note, set_by=user, rates=rates)
        if version is None:
            raise no_limit(name, [record.name for record in await self._store.limits()])
        await self._store.look_at_limits()  # what waits may go on now
        return await self._confirmed(name, version, seconds)

    async def _check_kind(self, name: str, running: int | None, rate: Sequence[Rate] | None) -> None:
        """Raise InvalidValue if an operator sets what the limit does not bound: claims would not look."""
        found = await self.get(name)
        if rate is not None and not found.rates:
            raise InvalidValue(f"the limit {name} has no rate that another could replace; declare one where the limit is declared")
        if running is not None and found.declared is None:
            raise InvalidValue(f"the limit {name} bounds only starts, by {' and '.join(found.rates)}; change its rate")

    async def _put_partition(self, user: str, name: str, partition: str, running: int, until_at: Instant | None, note: str) -> LimitSet:
        """Give a partition a number of its own, which holds from the next claim on: nobody has to confirm it."""
        found = await self.get(name)
        if found.by is None:
            raise InvalidValue(f"the limit {name} has no partitions, because it has no by=; leave the partition out")
        await self._store.put_partition(name, partition, running, until_at=until_at, note=note, set_by=user)
        [there] = await self.partitions(name, partition=partition)
        return LimitSet(limit=found, version=found.version, confirmed=[], waiting=[], partition=there)

    async def reset(self, name: str | Named, *, partition: str | None = None) -> LimitInfo:
        await self._opened()
        if partition is None:
            await self._store.reset_limit(name_of(name))
            await self._store.look_at_limits()
        else:
            await self._store.put_partition(name_of(name), check_partition(partition), None, until_at=None, note="", set_by="")
        return await self.get(name)

    async def partitions(
        self, name: str | Named, *, partition: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_PARTITIONS:
            raise InvalidValue(f"limit must be a whole number from 1 to {MOST_PARTITIONS:,}, got {limit!r}")
        only = None if partition is None else check_partition(partition)
        await self.get(name)
        found = await self._store.partitions(name_of(name), only=only, after=after, limit=limit)
        return [partition_info(record) for record in found]

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


def check_put(running: int | None, rate: Sequence[Rate] | None, partition: str | None) -> None:
    """Raise InvalidValue unless this can hold instead of what is declared."""
    if running is None and rate is None:
        raise InvalidValue("give running=, how many may run at once, or rate=[Rate(10, per=1)], how many may start")
    if running is not None:
        check_running(running)
    if rate is not None:
        if not isinstance(rate, Sequence) or not all(isinstance(each, Rate) for each in rate) or not 1 <= len(rate) <= MOST_RATES:
            raise InvalidValue(f"rate must be a list of 1 to {MOST_RATES} such as [Rate(10, per=1)], got {rate!r}")
        if partition is not None:
            raise InvalidValue("a partition can have a number of its own, not a rate; leave rate= or the partition out")


def check_partition(partition: object) -> str:
    """Return the name of a partition, or raise InvalidValue."""
    if not isinstance(partition, str) or "\0" in partition or len(partition) > LONGEST_NAME:
        got = str(partition)[:100]
        raise InvalidValue(f"a partition is a text of up to {LONGEST_NAME} characters, a value of the limit's key; got {got!r}")
    return partition


def partition_info(record: PartitionRecord) -> PartitionInfo:
    def at(instant: Instant | None) -> datetime | None:
        return None if instant is None else to_datetime(instant)

    return PartitionInfo(
        partition=record.name,
        running=record.running or None,
        own=record.own,
        until_at=at(record.until_at),
        note=record.note,
        set_by=record.set_by,
        out=record.counted,
        parked=record.parked,
        oldest_due_at=at(record.oldest_due_at),
        next_at=at(record.next_at),
        tasks=list(record.tasks),
    )


def limit_info(record: LimitRecord, now: Instant) -> LimitInfo:
    own, is_own = record.own_at(now), record.is_own_at(now)
    return LimitInfo(
        name=record.name,
        running=record.running_at(now) or None,
        declared=record.declared or None,
        own=own,
        until_at=None if not is_own or record.until_at is None else to_datetime(record.until_at),
        note="" if not is_own else record.note,
        set_by="" if not is_own else record.set_by,
        set_at=None if not is_own or record.set_at is None else to_datetime(record.set_at),
        version=record.version,
        handlers=dict(sorted(record.uses.items())),
        by=record.by,
        rates=[str(rate) for rate in record.rates_at(now)],
        own_rates=is_own and record.own_rates is not None,
        over=record.over,
        parked=record.parked,
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
