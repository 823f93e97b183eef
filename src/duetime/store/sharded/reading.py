"""Reading many tasks at once, and what keeps the shards small and sound: each shard answers, and the answers are put together."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Collection

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.failures import Bucket, FailureGroup
from duetime.model.query import USUAL_COUNT, Page, Query, TaskCount, page_of
from duetime.model.series import Load, Sample
from duetime.model.sharding import CONTROL
from duetime.model.task import State, TaskRecord
from duetime.store.failures import MOST_LISTED
from duetime.store.sharded.routing import Routing
from duetime.store.values import MOST_IN_LANE, Counts, FinalCount, HandlerLoad, Inconsistency, LaneCount, Pruned

ENDED = "-"  # where a list is that has come to its end at a shard


class Reading(Routing):
    """Lists, counts and upkeep."""

    # ---- lists ----

    async def page(self, query: Query) -> Page:
        await self.current()
        cursors = _read_cursor(query.cursor)
        unfinished = [shard for shard in self.names() if cursors.get(shard) != ENDED]
        pages: dict[str, Page] = {}
        for shard in unfinished:
            async with self.visit(shard) as store:
                pages[shard] = await store.page(msgspec.structs.replace(query, cursor=cursors.get(shard), each=True))
        order = _order(pages, by_end=query.by_end)
        items, _ = page_of((record for _, record in order), query.limit, _size)
        taken = Counter(shard for shard, _ in order[: len(items)])
        for shard, page in pages.items():
            if taken[shard] == len(page.items):
                cursors[shard] = page.next or ENDED
            elif taken[shard]:
                cursors[shard] = page.cursors[taken[shard] - 1]
        over = all(cursors.get(shard) == ENDED for shard in self.names())
        looked = [page.looked for page in pages.values() if page.looked is not None]
        cut = sum(looked) if looked and len(items) < query.limit else None
        return Page(items, None if over else _write_cursor(cursors), cut)

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        counts = (await self.everywhere(lambda store: store.count(query, limit))).values()
        number = sum(each.count for each in counts)
        return TaskCount(min(number, limit), number > limit or any(each.more for each in counts))

    async def counts(self, limit: int = MOST_IN_LANE) -> Counts:
        found = await self.everywhere(lambda store: store.counts(limit))
        lanes: dict[tuple[str, str | None, int], LaneCount] = {}
        finals: dict[tuple[str, State], int] = {}
        for counts in found.values():
            for lane in counts.lanes:
                name = lane.handler, lane.collection, lane.priority
                lanes[name] = _added(lanes[name], lane) if name in lanes else lane
            for final in counts.finals:
                finals[final.handler, final.state] = finals.get((final.handler, final.state), 0) + final.count
        rest = [FinalCount(handler, state, count) for (handler, state), count in finals.items()]
        return Counts(found[CONTROL].now, list(lanes.values()), rest)

    async def handler_load(self, handler: str) -> HandlerLoad:
        loads = (await self.everywhere(lambda store: store.handler_load(handler))).values()
        return HandlerLoad(
            due=sum(load.due for load in loads),
            more=any(load.more for load in loads),
            oldest_due_at=min((load.oldest_due_at for load in loads if load.oldest_due_at is not None), default=None),
        )

    async def upcoming(self, handler: str, limit: int) -> list[TaskRecord]:
        found = await self.everywhere(lambda store: store.upcoming(handler, limit))
        return sorted((record for records in found.values() for record in records), key=lambda record: record.due_at)[:limit]

    async def sample(self) -> Sample:
        samples = await self.everywhere(lambda store: store.sample())
        loads: dict[str, Load] = {}
        for sample in samples.values():
            for handler, load in sample.handlers.items():
                known = loads.get(handler, Load())
                loads[handler] = Load(
                    known.due + load.due,
                    known.later + load.later,
                    known.running + load.running,
                    max(known.oldest_due, load.oldest_due),
                )
        return Sample(samples[CONTROL].at, loads)

    # ---- upkeep ----

    async def drop(self, limit: int) -> int:
        return await self.counted(limit, lambda store, left: store.drop(left))

    async def expire(self, limit: int) -> int:
        return await self.counted(limit, lambda store, left: store.expire(left))

    async def prune(
        self, state: State, before: Instant, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Pruned]:
        return await self.one_by_one(limit, lambda store, left: store.prune(state, before, left, only=only, but=but))

    async def tidy(self) -> None:
        await self.everywhere(lambda store: store.tidy())

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        found = await self.everywhere(lambda store: store.inspect(repair=repair))
        return [problem for problems in found.values() for problem in problems]

    # ---- failures: counted where attempts end ----

    async def failures(self, since: Instant, *, handler: str | None = None) -> list[FailureGroup]:
        groups: dict[str, FailureGroup] = {}
        for found in (await self.everywhere(lambda store: store.failures(since, handler=handler))).values():
            for group in found:
                known = groups.get(group.fingerprint)
                groups[group.fingerprint] = group if known is None else _joined(known, group)
        return sorted(groups.values(), key=lambda group: group.facts.last_at, reverse=True)[:MOST_LISTED]

    async def failure(self, fingerprint: str, since: Instant) -> FailureGroup | None:
        joined: FailureGroup | None = None
        for group in (await self.everywhere(lambda store: store.failure(fingerprint, since))).values():
            joined = group if joined is None or group is None else _joined(joined, group)
        return joined

    async def mute_failure(self, fingerprint: str, until_at: Instant | None, by: str) -> bool:
        return any((await self.everywhere(lambda store: store.mute_failure(fingerprint, until_at, by))).values())

    async def fold_failures(self) -> int:
        return sum((await self.everywhere(lambda store: store.fold_failures())).values())

    async def prune_failures(self) -> int:
        return sum((await self.everywhere(lambda store: store.prune_failures())).values())


def _position(record: TaskRecord, *, by_end: bool) -> tuple[Instant, str]:
    return (record.finished_at or 0 if by_end else record.submitted_at), record.id


def _order(pages: dict[str, Page], *, by_end: bool) -> list[tuple[str, TaskRecord]]:
    """Return the tasks of all pages in the order of the list; it ends where a page ends that has a next one."""
    heads = dict.fromkeys(pages, 0)
    order: list[tuple[str, TaskRecord]] = []
    while True:
        rest = {shard: page.items[heads[shard]] for shard, page in pages.items() if heads[shard] < len(page.items)}
        if not rest or any(heads[shard] >= len(page.items) and page.next is not None for shard, page in pages.items()):
            return order
        shard = max(rest, key=lambda shard: _position(rest[shard], by_end=by_end))
        order.append((shard, rest[shard]))
        heads[shard] += 1


def _size(record: TaskRecord) -> int:
    error = 0 if record.error is None else len(record.error.traceback)
    return len(record.payload) + len(record.result or b"") + error


def _read_cursor(cursor: str | None) -> dict[str, str]:
    if cursor is None:
        return {}
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=dict[str, str])
    except (ValueError, RecursionError, msgspec.DecodeError):
        raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it") from None


def _write_cursor(cursors: dict[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursors)).decode().rstrip("=")


def _added(one: LaneCount, other: LaneCount) -> LaneCount:
    sums = {name: getattr(one, name) + getattr(other, name) for name in ("due", "later", "blocked", "running", "parked", "accepted")}
    oldest = [lane.oldest_due_at for lane in (one, other) if lane.oldest_due_at is not None]
    return msgspec.structs.replace(one, **sums, oldest_due_at=min(oldest, default=None), more=one.more or other.more)


def _joined(one: FailureGroup, other: FailureGroup) -> FailureGroup:
    first, last = sorted((one.facts, other.facts), key=lambda facts: facts.last_at)
    again = [facts.again_at for facts in (first, last) if facts.again_at is not None]
    facts = msgspec.structs.replace(last, first_at=min(first.first_at, last.first_at), again_at=max(again, default=None))
    buckets: dict[Instant, Bucket] = {}
    for each in (*one.buckets, *other.buckets):
        known = buckets.get(each.at, Bucket(each.at, 0, 0))
        buckets[each.at] = Bucket(each.at, known.attempts + each.attempts, known.tasks + each.tasks)
    muted = max((group for group in (one, other)), key=lambda group: group.muted_until_at or 0)
    return FailureGroup(
        fingerprint=one.fingerprint,
        facts=facts,
        buckets=[buckets[at] for at in sorted(buckets)],
        muted_until_at=muted.muted_until_at,
        muted_by=muted.muted_by,
    )
