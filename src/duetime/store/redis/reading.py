"""Looking up and listing tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.outcome import AttemptRecord
from duetime.model.query import MAX_PAGE, USUAL_COUNT, Page, Query, TaskCount, fits_pattern, page_of, read_cursor, write_cursor
from duetime.model.scan import Found, Scan, counted
from duetime.model.series import Sample
from duetime.model.task import LIVE, Edge, State, TaskRecord
from duetime.store.redis.database import OpenServer
from duetime.store.redis.keys import collection_of, handler_of, priority_of
from duetime.store.redis.records import STATES, attempt_of, read_end
from duetime.store.series import sample_of
from duetime.store.values import MOST_COUNTED, MOST_IN_LANE, Counts, FinalCount, HandlerLoad, LaneCount

WALKED_AT_ONCE = 200

Position = tuple[float, str]  # in a sorted set: score and id


class Row(NamedTuple):
    """A task in a list, with its position there."""

    score: int
    id: str
    record: TaskRecord


class Reading(OpenServer):
    """Reading tasks one by one and many at once. A list looks at every task along the order that it has: there are no further indexes."""

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        if not ids:
            return []
        found = await self._records(ids)
        missing = [id for id in ids if id not in found]
        if missing:  # they may wait in control to be moved, or have been moved since we looked
            ledger = dict(zip(missing, await self._control.get(missing), strict=True))
            found |= {id: record for id, record in ledger.items() if record is not None}
            if gone := [id for id in missing if id not in found]:
                found |= await self._records(gone)
        return [found.get(id) for id in ids]

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        fields = self._key_fields(handler, key)
        held = await self._opened.call("HMGET", self._keys.holders, *fields)
        past = await self._opened.call("HMGET", self._keys.latest, *fields)
        for ids in ([id for id in held if id], [id for id in past if id]):
            found = await self._records([id.decode() for id in ids])
            if found:
                return max(found.values(), key=lambda record: (record.finished_at or 0, record.submitted_at))
        return None

    async def unmet_edges(self, task: str) -> list[Edge]:
        _, found = await self._read_tasks([task])
        waits = (found[task].facts.q or {}) if task in found else {}
        return [Edge(parent, "success" if waits[parent] == "s" else "end") for parent in sorted(waits)]

    async def attempts(self, task: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRecord]:
        _, found = await self._read_tasks([task])
        stored = found.get(task)
        if stored is None:
            return []
        ended: list[bytes] = await self._opened.call("HVALS", self._keys.attempts(task))
        records = [attempt_of(read_end(raw)) for raw in ended]
        if stored.end is not None:
            records.append(attempt_of(stored.end))
        facts = stored.facts
        if facts.s == "r":
            records.append(AttemptRecord(facts.a, None, facts.w or None, max(facts.g, facts.d), None))
        by_number = {record.attempt: record for record in records if record.attempt > after}
        rows = [by_number[number] for number in sorted(by_number)]
        most = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
        return page_of(rows, most, _size_of_attempt)[0]

    # ---- lists ----

    async def page(self, query: Query) -> Page:
        scan = Scan(query)
        while (wanted := scan.next_query()) is not None:
            scan.take(await self._page(wanted))
        return scan.page

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        if query.walks:
            return await counted(self.page, query, limit)
        if query.nothing:
            return TaskCount(0, False)
        number = 0
        for walk in self._walks(query):
            async for rows in walk:
                number += sum(self._fits(row.record, query) for row in rows)
                if number > limit:
                    return TaskCount(limit, True)
        return TaskCount(number, False)

    async def _page(self, query: Query) -> Found:
        """Return a page by all that is not left to `Scan`."""
        rows: list[Row] = []
        seen_from: tuple[int, str] | None = None  # the position from which on all walks were read; below it some have more
        for walk in self._walks(query):
            some: list[Row] = []
            async for found in walk:
                some += [row for row in found if self._fits(row.record, query)]
                if len(some) > query.limit:
                    break
            some, more = page_of(some, query.limit, lambda row: size_of(row.record))
            rows += some
            if more:
                last = some[-1][:2]
                seen_from = last if seen_from is None else max(seen_from, last)
        rows = [row for row in rows if seen_from is None or row[:2] >= seen_from]
        rows.sort(key=lambda row: row[:2], reverse=True)
        rows, more = page_of(rows, query.limit, lambda row: size_of(row.record))

        def after(index: int) -> str:
            return write_cursor(*rows[index][:2])

        return Found([row.record for row in rows], after(-1) if more or seen_from is not None else None, after)

    def _walks(self, query: Query) -> list[AsyncIterator[list[Row]]]:
        """Return the orders along which matching tasks are found. No task is found along two of them."""
        before: Position | None = None
        if query.cursor is not None:
            score, id = read_cursor(query.cursor, int, str)
            before = score, id
        if query.by_end:
            return [self._walk(self._keys.ended(state), before) for state in query.wanted]
        live = bool(query.wanted) and all(state in LIVE for state in query.wanted)
        return [self._walk(self._keys.live if live else self._keys.all, before)]

    async def _walk(self, key: str, before: Position | None) -> AsyncIterator[list[Row]]:
        """Yield the tasks of a sorted set from the last one, or from before a position, on."""
        size = WALKED_AT_ONCE
        while True:
            asked, upper = size, "+inf" if before is None else f"{before[0]:.0f}"
            words = await self._opened.call("ZREVRANGEBYSCORE", key, upper, "-inf", "WITHSCORES", "LIMIT", 0, size)
            read = [(float(score), id.decode()) for id, score in zip(words[::2], words[1::2], strict=True)]
            fresh = [entry for entry in read if before is None or entry < before]
            if fresh:
                found = (await self._read_tasks([id for _, id in fresh]))[1]
                records = await self._records_of(found.values())
                yield [Row(round(score), id, records[id]) for score, id in fresh if id in records]
                before, size = fresh[-1], WALKED_AT_ONCE
            if len(read) < asked:
                return
            if not fresh:  # very many have the same position
                size = asked * 2

    def _fits(self, record: TaskRecord, query: Query) -> bool:
        """Return whether a task matches the parts of a filter that SQL stores put into their statements."""
        return (
            (not query.wanted or query.mixed or record.state in query.wanted)
            and (query.handler is None or self._has_name(record, query.handler))
            and (query.collection is None or record.collection == query.collection)
            and (query.key is None or record.key == query.key)
            and (query.schedule is None or record.schedule == query.schedule)
            and (query.retrying is None or (record.state is State.PENDING and record.tries > 0) is query.retrying)
            and (query.parked is None or record.parked is query.parked)
            and _within(record.due_at, query.due_after, query.due_before)
            and _within(record.submitted_at, query.submitted_after, query.submitted_before)
            and _within(record.finished_at, query.finished_after, query.finished_before)
            and (query.fingerprint is None or (record.finished_at is not None and _kind_of(record) == query.fingerprint))
            and (query.id_bounds is None or query.id_bounds[0] <= record.id <= query.id_bounds[1])
            and (query.priority_min is None or record.priority >= query.priority_min)
            and (query.priority_max is None or record.priority <= query.priority_max)
            and self._searched(query)
        )

    def _has_name(self, record: TaskRecord, handler: str) -> bool:
        if "*" in handler:
            return fits_pattern(handler, self._names.present(record.handler))
        return record.handler in self._names.all(handler)

    def _searched(self, query: Query) -> bool:
        if query.logs is not None:
            raise InvalidValue("this store cannot search in output; leave out logs, or use a PostgreSQL or SQLite store")
        return True

    # ---- counts ----

    async def counts(self, limit: int = MOST_IN_LANE) -> Counts:
        now, lanes = await self._lane_counts(limit)
        words = await self._opened.call("HGETALL", self._keys.tallies)
        finals: dict[tuple[str, State], int] = {}
        for field, count in zip(words[::2], words[1::2], strict=True):
            name = field.decode()
            key = handler_of(name[1:]), STATES[name[0]]
            finals[key] = finals.get(key, 0) + int(count)
        return Counts(now, lanes, [FinalCount(*key, count) for key, count in sorted(finals.items()) if count > 0])

    async def sample(self) -> Sample:
        now, lanes = await self._lane_counts(MOST_IN_LANE)
        return sample_of(lanes, self._names, now)

    async def _lane_counts(self, limit: int) -> tuple[Instant, list[LaneCount]]:
        await self._learn_lanes()
        now, _ = await self._read_tasks([])
        lanes = sorted(self._lanes, key=lambda lane: (handler_of(lane), collection_of(lane) or "", priority_of(lane)))
        commands: list[tuple[str | int, ...]] = []
        for lane in lanes:
            key = self._keys.lane(lane)
            commands += [("ZCOUNT", key, "-inf", now), ("ZCOUNT", key, f"({now}", "+inf"), ("ZRANGE", key, 0, 0, "WITHSCORES")]
        replies = await self._opened.call_all(commands) if commands else []
        running = await self._running_by_lane()
        parked, blocked = await self._standing_in(self._keys.parked), await self._standing_in(self._keys.blocked)
        counts = []
        for index, lane in enumerate(lanes):
            due, later, first = replies[3 * index : 3 * index + 3]
            some = running.get(lane, 0), parked.get(lane, 0), blocked.get(lane, 0)
            if due or later or any(some):
                counts.append(
                    LaneCount(
                        handler=handler_of(lane),
                        collection=collection_of(lane),
                        priority=priority_of(lane),
                        due=min(due, limit),
                        later=min(later, limit),
                        blocked=some[2],
                        running=some[0],
                        oldest_due_at=round(float(first[1])) if due and first else None,
                        parked=some[1],
                        more=due > limit or later > limit,
                    )
                )
        return now, counts

    async def _running_by_lane(self) -> dict[str, int]:
        workers: list[bytes] = await self._opened.call("HKEYS", self._keys.workers)
        ids: list[str] = []
        for field in workers:
            fact, _, worker = field.decode().partition(":")
            if fact == "row":
                ids += [id.decode() for id in await self._opened.call("SMEMBERS", self._keys.running(worker))]
        return await self._by_lane(ids)

    async def _standing_in(self, key: str) -> dict[str, int]:
        ids: list[bytes] = await self._opened.call("ZRANGE", key, 0, -1)
        return await self._by_lane([id.decode() for id in ids])

    async def _by_lane(self, ids: Iterable[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for stored in (await self._read_tasks(list(ids)))[1].values():
            counts[stored.facts.l] = counts.get(stored.facts.l, 0) + 1
        return counts

    async def handler_load(self, handler: str) -> HandlerLoad:
        entries = await self._first(handler, MOST_COUNTED + 1, self.now())
        oldest = entries[0][0] if entries else None
        return HandlerLoad(
            due=min(len(entries), MOST_COUNTED), more=len(entries) > MOST_COUNTED, oldest_due_at=None if oldest is None else round(oldest)
        )

    async def upcoming(self, handler: str, limit: int) -> list[TaskRecord]:
        entries = await self._first(handler, limit, None)
        found = await self._records([id for _, id in entries])
        return [found[id] for _, id in entries if id in found]

    async def _first(self, handler: str, limit: int, until: Instant | None) -> list[Position]:
        """Return the first entries of a handler's lanes, merged."""
        if limit <= 0:
            return []
        await self._learn_lanes()
        names = set(self._names.all(handler))
        upper = "+inf" if until is None else until
        commands = [
            ("ZRANGEBYSCORE", self._keys.lane(lane), "-inf", upper, "WITHSCORES", "LIMIT", 0, limit)
            for lane in self._lanes
            if handler_of(lane) in names
        ]
        entries: list[Position] = []
        for words in await self._opened.call_all(commands) if commands else []:
            entries += [(float(score), id.decode()) for id, score in zip(words[::2], words[1::2], strict=True)]
        return sorted(entries)[:limit]


def size_of(record: TaskRecord) -> int:
    """Return how large a task is on a page: payload, result and error."""
    error = 0 if record.error is None else len(record.error.message) + len(record.error.traceback)
    return len(record.payload) + len(record.result or b"") + error


def _size_of_attempt(attempt: AttemptRecord) -> int:
    error = 0 if attempt.error is None else len(attempt.error.message) + len(attempt.error.traceback)
    return error + len(attempt.detail or b"")


def _within(instant: Instant | None, after: Instant | None, before: Instant | None) -> bool:
    if after is None and before is None:
        return True
    return instant is not None and (after is None or instant >= after) and (before is None or instant < before)


def _kind_of(record: TaskRecord) -> str | None:
    return None if record.error is None else record.error.fingerprint
