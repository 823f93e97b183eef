"""Limits that the store counts at each claim: by key, by rate, or with another answer than to wait (model/partitions.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.limit import CountedLimit, PartitionRecord, RateRule, in_force
from duetime.model.partitions import (
    AT_ONCE,
    WHOLE_FOR,
    Admission,
    Candidate,
    Need,
    Partition,
    Row,
    Spent,
    Spot,
    TaskKey,
    Usage,
    Waiting,
    admit,
    let_go_on,
    needs_of,
    usages_of,
)
from duetime.store.limits import ParkedUnder
from duetime.store.postgres import arrays
from duetime.store.postgres.control import Changing
from duetime.store.postgres.records import is_uuid, write_json
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import ClaimedTask, HintKind

SPOTS_AT_ONCE = 1_000
_uses = msgspec.json.Decoder(dict[str, int]).decode
_decode = msgspec.json.Decoder().decode


async def read_usages(run: Runner, sql: Statements) -> dict[str, list[Usage]]:
    """Return what attempts of each handler take of limits that the store counts."""
    return usages_of((name, by, _uses(uses)) for name, by, uses in await run.rows(sql.counted_usages))


async def admit_claimed(
    run: Runner, sql: Statements, usages: Mapping[str, Sequence[Usage]], worker: str, number: int, tasks: Sequence[ClaimedTask], at: Any
) -> tuple[set[str], Admission] | None:
    """Of tasks that this transaction has claimed, park or drop what may not start; return who that is. None: all may."""
    candidates = [
        Candidate(task.id, task.attempt, needs_of(usages[task.handler], task.payload, task.collection, task.meta))
        for task in tasks
        if task.handler in usages
    ]
    if not candidates:
        return None
    spots = {need.spot for each in candidates for need in each.needs}
    partitions, rows, now = await _count(run, sql, spots, [str(each.task) for each in candidates], at)
    known = [each for each in candidates if all(need.spot in partitions for need in each.needs)]
    done = admit(known, partitions, rows, now)
    entries = [(str(each.task), *need, each.attempt) for each in done.admitted for need in each.needs]
    parked = [(each.task, *need) for each, need in done.parked]
    tasks_of, names, parts, takes, attempts = _columns(entries, 5)
    columns = [
        *(arrays.plain(tasks_of), arrays.texts(names), arrays.texts(parts), arrays.numbers(takes), arrays.numbers(attempts)),
        *_columns(done.given_back, 2),
        *_columns(parked, 4),
        [each.task for each in done.dropped],
        *_columns(sorted(done.replaced), 2),
        *_spent(partitions),
    ]
    await run.rows(sql.write_admission, [now, worker, number, *columns])
    return {str(each.task) for each in done.dropped} | {str(row[0]) for row in parked}, done


async def go_on(run: Runner, sql: Statements, spots: Iterable[Spot], at: Any) -> Instant | None:
    """Let parked tasks of some partitions go on; return the earliest position that one took."""
    [[written_at]] = await run.rows(sql.begin_adding, [at])
    partitions, _, now = await _count(run, sql, spots, [], at, waiting=AT_ONCE)
    onward = let_go_on(partitions, now)
    if any(each.changed for each in partitions.values()):
        await run.rows(sql.write_spent, _spent(partitions))
    if not onward:
        return None
    rows = [(each.task, *each.need, each.at) for each in onward]
    [[earliest]] = await run.rows(sql.go_on, [max(now, written_at), *_columns(rows, 5)])
    return None if earliest is None else int(earliest)


async def _count(
    run: Runner, sql: Statements, spots: Iterable[Spot], tasks: Sequence[str], at: Any, *, waiting: int = 0
) -> tuple[dict[Spot, Partition], dict[TaskKey, list[Row]], Instant]:
    """Lock the limits of some partitions, and read what is known of these."""
    asked = sorted(set(spots))
    names, parts = _columns(asked, 2)
    parameters = [at, arrays.texts(names), arrays.texts(parts), waiting, arrays.plain(tasks)]
    [[limits, known, taken, now]] = await run.rows(sql.count_partitions, parameters)
    bounds = {
        name: (in_force(declared, own, until_at, now), [RateRule(*rate) for rate in rates], over)
        for name, declared, own, until_at, rates, over in _decode(limits or "[]")
    }
    partitions = {}
    for spot in asked:
        if spot[0] in bounds:
            running, rules, over = bounds[spot[0]]
            partitions[spot] = Partition(running, 0, over=over, rules=rules)
    for index, count, waits, own, spent, first, running_tasks in _decode(known or "[]"):
        spot = asked[index - 1]
        running, rules, over = bounds[spot[0]]
        used = [Spent()] * len(rules)
        for rate, since, starts in spent or ():
            if rate < len(rules):
                used[rate] = Spent(since, starts)
        partitions[spot] = Partition(
            running if own is None else own,
            count or 0,
            over=over,
            rules=rules,
            spent=used,
            waits=waits,
            waiting=[Waiting(*each) for each in first or ()],
            running_tasks=running_tasks or (),
        )
    rows: dict[TaskKey, list[Row]] = {}
    for task, name, part, takes, attempt, since in _decode(taken or "[]"):
        rows.setdefault(task, []).append(Row(Need(name, part, takes), attempt, since))
    return partitions, rows, now


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    return [[row[index] for row in rows] for index in range(count)]


def _spent(partitions: Mapping[Spot, Partition]) -> list[str]:
    rows = [(*spot, rate, *spent) for spot, each in sorted(partitions.items()) if each.changed for rate, spent in enumerate(each.spent)]
    names, parts, rates, ats, used = _columns(rows, 5)
    return [arrays.texts(names), arrays.texts(parts), *map(arrays.numbers, (rates, ats, used))]


class Counting(Changing):
    """Limits that the store counts."""

    async def declare_counted(self, handlers: Sequence[str], limits: Sequence[CountedLimit]) -> None:
        if not limits and not await read_usages(self._opened, self._sql):
            return
        columns = [
            *([limit.name for limit in limits], [limit.running for limit in limits], [write_json(dict(limit.uses)) for limit in limits]),
            *([limit.by for limit in limits], [write_json(list(limit.rates)) for limit in limits], [limit.over for limit in limits]),
        ]
        [[changed]] = await self._opened.rows(self._sql.declare_counted, [self._clock.parameter, list(handlers), *columns])
        if changed:
            self._hint(HintKind.DUE)

    async def put_partition(
        self, name: str, partition: str, running: int | None, *, until_at: Instant | None, note: str, set_by: str
    ) -> bool:
        row = [name, partition, running, until_at, note, set_by, self._clock.parameter]
        sql = self._sql.reset_partition if running is None else self._sql.set_partition
        found = await self._opened.rows(sql, row[:2] if running is None else row)
        if found:
            await self._let_go_on([(name, partition)])
        return bool(found)

    async def _let_go_on(self, spots: Iterable[Spot]) -> None:
        chosen, at = list(spots), self._clock.parameter
        earliest = await self._opened.transaction(lambda run: go_on(run, self._sql, chosen, at))
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)

    async def leave_limits(self, attempts: Sequence[tuple[str, int]], limits: Collection[str] | None = None) -> None:
        """Free what ended attempts took of limits, or of whichever they have, and let the next ones go on."""
        tasks, numbers = _columns(attempts, 2)
        parameters = [arrays.plain(tasks), arrays.numbers(numbers), None if limits is None else list(limits)]
        spots = await self._opened.rows(self._sql.leave_admitted, parameters)
        if spots:
            await self._let_go_on([(name, part) for name, part in spots])

    async def leave_limits_of(self, attempts: Sequence[tuple[str, int]]) -> None:
        """The same of attempts that another process may have claimed."""
        if await self._opened.rows(self._sql.counted_usages):
            await self.leave_limits(attempts)

    async def partitions(self, name: str, *, only: str | None = None, after: str | None = None, limit: int = 100) -> list[PartitionRecord]:
        rows = await self._opened.rows(self._sql.list_partitions, [name, only, after, limit])
        now = self._clock.now()
        records = []
        at, spots = self._clock.parameter, [(name, row[0]) for row in rows]
        known, _, _ = await self._opened.transaction(lambda run: _count(run, self._sql, spots, [], at)) if rows else ({}, {}, 0)
        for part, counted, parked, oldest, own, until_at, note, set_by, tasks in rows:
            holds = own is not None and (until_at is None or until_at > now)
            there = known[name, part]
            records.append(
                PartitionRecord(
                    name=part,
                    running=there.running,
                    own=own if holds else None,
                    until_at=until_at if holds else None,
                    note=note if holds else "",
                    set_by=set_by if holds else "",
                    counted=int(counted),
                    parked=parked,
                    oldest_due_at=oldest,
                    next_at=at if (at := there.next_at(now)) > now else None,
                    tasks=tasks,
                )
            )
        return records

    async def parked_under(self, task_id: str) -> ParkedUnder | None:
        rows = await self._opened.rows(self._sql.parked_under, [task_id]) if is_uuid(task_id) else []
        return ParkedUnder(*rows[0]) if rows else None

    async def look_at_limits(self) -> int:
        if not await read_usages(self._opened, self._sql):
            return 0
        at = self._clock.parameter
        [[count]] = await self._opened.rows(self._sql.forget_vain_admitted, [at, SPOTS_AT_ONCE])
        spots = await self._opened.rows(self._sql.parked_spots, [SPOTS_AT_ONCE])
        await self._opened.rows(self._sql.forget_spent, [at, WHOLE_FOR])
        await self._opened.rows(self._sql.forget_partitions, [at])
        if spots:
            await self._let_go_on([(name, part) for name, part in spots])
        return int(count)
