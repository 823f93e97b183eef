"""Limits that the store counts at each claim: by key, by rate, or with another answer than to wait (model/partitions.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.limit import CountedLimit, PartitionRecord, RateRule, in_force
from duetime.model.partitions import (
    AT_ONCE,
    WHOLE_FOR,
    Admission,
    Candidate,
    Counted,
    Need,
    Partition,
    Row,
    Spent,
    Spot,
    Waiting,
    admit,
    let_go_on,
    needs_of,
    usages_of,
)
from duetime.model.task import State
from duetime.store.limits import ParkedUnder
from duetime.store.rows.extras import read_extras
from duetime.store.sqlite import gates
from duetime.store.sqlite.control import Changing
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.work import finish, put_due, unstarted
from duetime.store.values import HintKind

SPOTS_AT_ONCE = 1_000
_uses = msgspec.json.Decoder(dict[str, int]).decode
_rules = msgspec.json.Decoder(list[RateRule]).decode
_decode = msgspec.json.Decoder().decode
_NOTHING = Spent()


def read_counted(connection: sqlite3.Connection, known: Counted, version: int) -> Counted:
    """Return what the store counts, as of a version of the gates."""
    if known.version == version:
        return known
    rows = connection.execute(SQL.counted_usages).fetchall()
    return Counted(version, usages_of((name, by, _uses(uses)) for name, by, uses in rows))


class Admitted(msgspec.Struct):
    """What a claim may take, the partitions in which others may go on, and the running tasks that newer ones replace."""

    tasks: Sequence[int]
    parked: bool = False
    freed: set[Spot] = msgspec.field(default_factory=set)
    stopped: Sequence[int] = ()


def admit_chosen(connection: sqlite3.Connection, counted: Counted, chosen: Sequence[int], now: Instant) -> Admitted:
    """Park, drop or admit those of the chosen tasks whose handler has limits that the store counts."""
    handlers = {"tasks": write_json(chosen), "handlers": write_json(list(counted.usages))}
    rows = connection.execute(SQL.candidates, handlers).fetchall()
    if not rows:
        return Admitted(chosen)
    candidates = []
    for task, handler, collection, payload, extras, attempt in rows:
        found = read_extras(extras)
        meta = {} if found is None or found.meta is None else found.meta
        candidates.append(Candidate(task, attempt, needs_of(counted.usages[handler], payload, collection or None, meta)))
    partitions = _partitions(connection, {need.spot for each in candidates for need in each.needs}, now)
    done = admit(candidates, partitions, _rows(connection, [each.task for each in candidates]), now)
    _write(connection, done, partitions, now)
    refused = {each.task for each in done.dropped} | {each[0].task for each in done.parked}
    running = [task for task in done.stopped if isinstance(task, int)]
    return Admitted([task for task in chosen if task not in refused], bool(refused), done.freed, running)


def _partitions(connection: sqlite3.Connection, spots: Iterable[Spot], now: Instant, waiting: int = 0) -> dict[Spot, Partition]:
    spots = sorted(spots)
    names = {"names": write_json(sorted({name for name, _ in spots})), "now": now}
    limits = {
        name: (in_force(declared, own, until_at, now), _rules(rates), over)
        for name, declared, own, until_at, rates, over in connection.execute(SQL.limits_named, names)
    }
    asked = write_json(spots)
    (any_waits,) = connection.execute(SQL.any_limited).fetchone()
    known = _read(connection.execute(SQL.partitions_known, {"spots": asked, "now": now, "waits": any_waits}))
    facts = {index: (taken, waits, own) for index, taken, waits, own in known}
    spent = _spent(connection, asked) if any(rules for _, rules, _ in limits.values()) else {}
    partitions = {}
    for index, (name, part) in enumerate(spots):
        if name not in limits:
            continue
        running, rules, over = limits[name]
        taken, waits, own = facts.get(index, (0, False, None))
        used = spent.get(index, {}) if rules else {}
        partitions[name, part] = Partition(
            running if own is None else own,
            taken or 0,
            over=over,
            rules=rules,
            spent=[used.get(rate, _NOTHING) for rate in range(len(rules))],
            waits=bool(waits),
            waiting=[Waiting(*row) for row in connection.execute(SQL.partition_waiting, (name, part, waiting))]
            if waiting and waits
            else (),
            running_tasks=[task for (task,) in connection.execute(SQL.partition_tasks, (name, part))] if over == "cancel_running" else (),
        )
    return partitions


def _spent(connection: sqlite3.Connection, spots: str) -> dict[int, dict[int, Spent]]:
    """Return what is spent of the rates of partitions, by their index and the number of the rate."""
    spent: dict[int, dict[int, Spent]] = {}
    for index, rate, at, used in _read(connection.execute(SQL.partitions_spent, (spots,))):
        spent.setdefault(index, {})[rate] = Spent(at, used)
    return spent


def _read(cursor: sqlite3.Cursor) -> list[Any]:
    """Read an answer that comes as one JSON array: in one step, during which the event loop goes on."""
    rows: list[Any] = _decode(cursor.fetchone()[0])
    return rows


def _rows(connection: sqlite3.Connection, tasks: Sequence[int | str]) -> dict[int | str, list[Row]]:
    rows: dict[int | str, list[Row]] = {}
    for task, name, part, takes, attempt, at in _read(connection.execute(SQL.admitted_rows, (write_json(tasks),))):
        rows.setdefault(task, []).append(Row(Need(name, part, takes), attempt, at))
    return rows


def _write(connection: sqlite3.Connection, done: Admission, partitions: Mapping[Spot, Partition], now: Instant) -> None:
    if done.given_back:
        connection.executemany(SQL.delete_admitted, done.given_back)
    entries = [(each.task, *need, each.attempt, now) for each in done.admitted for need in each.needs]
    connection.execute(SQL.put_admitted, (write_json(entries),))
    for name, part in done.replaced:
        _drop(connection, connection.execute(SQL.parked_task_in, (name, part)).fetchall(), now)
    parked = [(each.task, *need) for each, need in done.parked]
    connection.executemany(SQL.park_limited, parked)
    connection.execute(SQL.delete_due, (write_json([row[0] for row in parked]),))
    for each in done.dropped:
        [(_, _, attempt, tries, crashes)] = connection.execute(SQL.take_due, (each.task,)).fetchall()
        finish(connection, [unstarted(int(each.task), State.DROPPED, attempt, tries, crashes, now)], now)
    _write_spent(connection, partitions)


def _drop(connection: sqlite3.Connection, parked: Sequence[tuple[int, int, int, int]], now: Instant) -> None:
    connection.execute(SQL.delete_held, (write_json([task for task, *_ in parked]),))
    ends = [unstarted(task, State.DROPPED, attempt, tries, crashes, now) for task, attempt, tries, crashes in parked]
    finish(connection, ends, now)


def _write_spent(connection: sqlite3.Connection, partitions: Mapping[Spot, Partition]) -> None:
    rows = [(*spot, rate, *spent) for spot, each in partitions.items() if each.changed for rate, spent in enumerate(each.spent)]
    if rows:
        connection.execute(SQL.put_spent, (write_json(rows),))


def go_on(connection: sqlite3.Connection, spots: Iterable[Spot], now: Instant) -> Instant | None:
    """Let parked tasks of some partitions go on; return the earliest position that one took."""
    partitions = _partitions(connection, spots, now, AT_ONCE)
    earliest: Instant | None = None
    for each in let_go_on(partitions, now):
        for lane, due_at, *counts in connection.execute(SQL.take_limited, (each.task,)).fetchall():
            connection.execute(SQL.put_admitted, (write_json([(each.task, *each.need, None, each.at)]),))
            at = put_due(connection, [(lane, int(each.task), due_at, *counts)], max(now, each.at))
            earliest = at if earliest is None or at is None else min(earliest, at)
    _write_spent(connection, partitions)
    return earliest


def leave(connection: sqlite3.Connection, attempts: Sequence[tuple[str, int]], now: Instant) -> Instant | None:
    """Free what attempts took that have ended, and let the next ones go on."""
    ended = write_json(attempts)
    (any_waits,) = connection.execute(SQL.any_limited).fetchone()
    spots = connection.execute(SQL.spots_left, (ended,)).fetchall() if any_waits else []
    connection.execute(SQL.leave_admitted, (ended,))
    return go_on(connection, spots, now) if spots else None


def look(connection: sqlite3.Connection, now: Instant) -> tuple[int, Instant | None]:
    """Repeat every look: at attempts that are not open any more, and at partitions in which tasks wait."""
    vain = connection.execute(SQL.vain_admitted, {"now": now, "limit": SPOTS_AT_ONCE}).fetchall()
    connection.executemany(SQL.delete_admitted, [(task, name) for task, name, _ in vain])
    spots = connection.execute(SQL.parked_spots, (SPOTS_AT_ONCE,)).fetchall()
    connection.execute(SQL.forget_spent, {"now": now, "whole_for": WHOLE_FOR})
    connection.execute(SQL.forget_partitions, (now,))
    return len(vain), go_on(connection, spots, now) if spots else None


class Counting(Changing):
    """Limits that the store counts."""

    def _admit(self, connection: sqlite3.Connection, chosen: Sequence[int], version: int, now: Instant) -> Sequence[int]:
        self._counted = read_counted(connection, self._counted, version)
        if not self._counted.usages or not chosen:
            return chosen
        admitted = admit_chosen(connection, self._counted, chosen, now)
        if admitted.freed:
            go_on(connection, admitted.freed, now)  # this claim is told to look again
        self._replaced += [id for task in admitted.stopped for (id,) in connection.execute(SQL.id_of, (task,))]
        return admitted.tasks

    def _leave(self, connection: sqlite3.Connection, attempts: Sequence[tuple[str, int]], now: Instant) -> Instant | None:
        return leave(connection, attempts, now) if attempts else None

    async def _stop_replaced(self) -> None:
        replaced, self._replaced = self._replaced, []
        await self.cancel(replaced)

    async def declare_counted(self, handlers: Sequence[str], limits: Sequence[CountedLimit]) -> None:
        known = await self._read(lambda connection: len(connection.execute(SQL.counted_usages).fetchall()))
        if limits or known:
            changed = await self._write(lambda connection: _declare(connection, handlers, limits, self._clock.now()))
            if changed:
                self._hint(HintKind.DUE)

    async def put_partition(
        self, name: str, partition: str, running: int | None, *, until_at: Instant | None, note: str, set_by: str
    ) -> bool:
        def job(connection: sqlite3.Connection) -> tuple[bool, Instant | None]:
            now = self._clock.now()
            if connection.execute(SQL.limit_by, (name,)).fetchone() is None:
                return False, None
            if running is None:
                connection.execute(SQL.reset_partition, (name, partition))
            else:
                connection.execute(SQL.set_partition, (name, partition, running, until_at, note, set_by, now))
            return True, go_on(connection, [(name, partition)], now)

        known, earliest = await self._write(job)
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return known

    async def partitions(self, name: str, *, only: str | None = None, after: str | None = None, limit: int = 100) -> list[PartitionRecord]:
        def job(connection: sqlite3.Connection) -> list[PartitionRecord]:
            now = self._clock.now()
            facts = {"name": name, "only": only, "after": after, "limit": limit}
            rows = connection.execute(SQL.list_partitions, facts).fetchall()
            known = _partitions(connection, [(name, row[0]) for row in rows], now)
            records = []
            for part, counted, parked, oldest, own, until_at, note, set_by in rows:
                holds = own is not None and (until_at is None or until_at > now)
                tasks = [id for (id,) in connection.execute(SQL.tasks_admitted, (name, part, 5))]
                records.append(
                    PartitionRecord(
                        name=part,
                        running=known[name, part].running,
                        own=own if holds else None,
                        until_at=until_at if holds else None,
                        note=note if holds else "",
                        set_by=set_by if holds else "",
                        counted=counted,
                        parked=parked,
                        oldest_due_at=oldest,
                        next_at=at if (at := known[name, part].next_at(now)) > now else None,
                        tasks=tasks,
                    )
                )
            return records

        return await self._read(job)

    async def parked_under(self, task_id: str) -> ParkedUnder | None:
        row = await self._read(lambda connection: connection.execute(SQL.parked_under, (task_id,)).fetchone())
        return None if row is None else ParkedUnder(*row)

    async def look_at_limits(self) -> int:
        if not await self._read(lambda connection: connection.execute(SQL.counted_usages).fetchall()):
            return 0
        count, earliest = await self._write(lambda connection: look(connection, self._clock.now()))
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return count


def _declare(connection: sqlite3.Connection, handlers: Sequence[str], limits: Sequence[CountedLimit], now: Instant) -> bool:
    """Keep what code declares; return whether tasks go on that waited under what it declares no more."""
    changed, freed = False, list[int]()
    declared = {limit.name: limit for limit in limits}
    before = {name: (by, _uses(uses)) for name, by, uses in connection.execute(SQL.counted_usages).fetchall()}
    for name, (_, uses) in before.items():
        mine = declared[name].uses if name in declared else {}
        gone = [handler for handler in handlers if handler in uses and handler not in mine]
        if gone:
            connection.execute(SQL.set_uses, (write_json({key: takes for key, takes in uses.items() if key not in gone}), name))
            freed += [task for handler in gone for (task,) in connection.execute(SQL.parked_for, (name, handler)).fetchall()]
            connection.execute(SQL.forget_counted, (name,))
            changed = True
    for limit in limits:
        row = {"name": limit.name, "declared": limit.running, "uses": write_json(dict(limit.uses)), "by": limit.by}
        row |= {"rates": write_json(list(limit.rates)), "over": limit.over}
        changed = connection.execute(SQL.declare_counted, row).rowcount > 0 or changed
        if limit.name in before and before[limit.name][0] != limit.by:
            freed += [task for (task,) in connection.execute(SQL.parked_for, (limit.name, None)).fetchall()]
    if changed:
        gates.next_version(connection)
    for task in freed:
        for lane, due_at, *counts in connection.execute(SQL.take_limited, (task,)).fetchall():
            put_due(connection, [(lane, task, due_at, *counts)], now)
    return bool(freed)
