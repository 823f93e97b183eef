"""Steps and signals in the file. Whoever ends a wait frees the task in the same transaction, because there is one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from duetime.clock import SECOND, Instant
from duetime.model.steps import NewSignal, NewStep, SignalRecord, StepKind, StepRecord
from duetime.store.rows.steps import read_children, read_signal, read_step, write_children
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.submit import callers_transaction
from duetime.store.sqlite.work import wake
from duetime.store.steps import AT_ONCE, SHORTEST_WAIT, Looked
from duetime.store.values import HintKind


def save(connection: sqlite3.Connection, worker: str, step: NewStep, now: Instant) -> StepRecord | None:
    """Save a step of an attempt that the worker runs; None if it runs another one."""
    running = connection.execute(SQL.attempt_of_worker, (step.task, step.attempt, worker)).fetchone()
    if running is None:
        return None
    (task,) = running
    row = connection.execute(SQL.one_step, (task, step.name)).fetchone()
    known = None if row is None else read_step(row)
    if known is None or known.kind is not step.kind or step.kind is StepKind.VALUE or (not known.done and (step.done or _grows(known))):
        values = {"task": task, "name": step.name, "kind": step.kind.value, "attempt": step.attempt, "now": now, "done": step.done}
        data = None if step.data is None else step.data.decode()
        late = step.signal is not None and step.wake_at is not None and step.wake_at < now + SHORTEST_WAIT
        wake_at = now + SHORTEST_WAIT if late else step.wake_at
        waits = {"signal": step.signal, "wake_at": wake_at, "children": write_children(step.children)}
        connection.execute(SQL.put_step, {**values, "data": data, **waits})
    if step.signal is not None:
        match(connection, [step.signal], now)
    return read_step(connection.execute(SQL.one_step, (task, step.name)).fetchone())


def _grows(known: StepRecord) -> bool:
    """Whether an open step gets more: a call whose tasks are stored by now."""
    return known.kind is StepKind.CALL and known.data is None


def match(connection: sqlite3.Connection, names: Iterable[str], now: Instant) -> tuple[int, Instant | None]:
    """Give kept signals of these names to who has waited longest; return how many tasks go on, and the earliest position they took."""
    woken: list[int] = []
    for name in names:
        waits = connection.execute(SQL.waits_for, {"name": name, "now": now, "limit": AT_ONCE}).fetchall()
        free = connection.execute(SQL.free_signals, {"name": name, "now": now, "limit": len(waits)}).fetchall() if waits else []
        for (step, task, task_id), (signal, data) in zip(waits, free, strict=False):
            connection.execute(SQL.take_signal, (task_id, signal))
            connection.execute(SQL.end_wait, {"late": 0, "data": data, "now": now, "number": step})
            woken.append(task)
    return wake(connection, woken, now)


def send(connection: sqlite3.Connection, signals: Sequence[NewSignal], now: Instant) -> tuple[list[bool], Instant | None]:
    new = [connection.execute(SQL.put_signal, write_signal(each, now, looked=True)).fetchone() is not None for each in signals]
    return new, match(connection, dict.fromkeys(each.name for each in signals), now)[1]


def write_signal(signal: NewSignal, now: Instant, *, looked: bool) -> tuple[object, ...]:
    return (signal.name, signal.id, signal.data.decode(), now, signal.sent_by, now + round(signal.keep * SECOND), looked)


def look(connection: sqlite3.Connection, after: int, now: Instant) -> tuple[Looked, int, Instant | None]:
    """Do what looks may have missed; return also where to go on with those that wait for tasks."""
    names = [name for (name,) in connection.execute(SQL.unseen_signals, (AT_ONCE,))]
    woken, earliest = match(connection, names, now)
    connection.execute(SQL.see_signals, (write_json(names),))
    late = connection.execute(SQL.late_waits, (now, AT_ONCE)).fetchall()
    for number, _ in late:
        connection.execute(SQL.end_wait, {"late": 1, "data": None, "now": now, "number": number})
    calls = connection.execute(SQL.open_calls, (after, AT_ONCE)).fetchall()
    orphans: list[str] = []
    for number, _, lives, children in calls:
        if not lives:
            found = connection.execute(SQL.parents, (write_json(read_children(children)),)).fetchall()
            living = [child for child, _, state in found if state is None]
            orphans += living
            if not living:
                connection.execute(SQL.close_call, (number,))
    asleep = [task for (task,) in connection.execute(SQL.asleep, (AT_ONCE,))]
    waiting = [task for _, task, lives, _ in calls if lives]
    more_woken, position = wake(connection, [*(task for _, task in late), *asleep, *waiting], now)
    forgotten = connection.execute(SQL.forget_signals, (now, AT_ONCE)).rowcount
    earliest = min((at for at in (earliest, position) if at is not None), default=None)
    more = max(len(names), len(late), len(asleep), forgotten) >= AT_ONCE
    return Looked(woken + more_woken, more, tuple(orphans)), calls[-1][0] if len(calls) == AT_ONCE else 0, earliest


class Steps(OpenFile):
    """Where steps and signals are."""

    _after_call = 0

    async def steps(self, task: str) -> list[StepRecord]:
        return [read_step(row) for row in await self._read(lambda connection: connection.execute(SQL.steps_of, (task,)).fetchall())]

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        if not steps:
            return []
        return await self._write(lambda connection: [save(connection, worker, step, self._clock.now()) for step in steps])

    async def send_signals(self, signals: Sequence[NewSignal]) -> list[bool]:
        if not signals:
            return []
        new, earliest = await self._write(lambda connection: send(connection, signals, self._clock.now()))
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return new

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        async with callers_transaction(connection, self._path) as run:
            now = self._clock.now()
            return [bool(await run.rows(SQL.put_signal, write_signal(each, now, looked=False))) for each in signals]

    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[SignalRecord]:
        values = {"name": name, "after": after, "limit": limit, "now": self._clock.now()}
        return [read_signal(row) for row in await self._read(lambda connection: connection.execute(SQL.list_signals, values).fetchall())]

    async def delete_signals(self, name: str, id: str | None = None) -> int:
        return await self._write(lambda connection: connection.execute(SQL.delete_signals, {"name": name, "id": id}).rowcount)

    async def look_at_waits(self) -> Looked:
        now = self._clock.now()
        # a look first: it waits for no writer, and mostly there is nothing
        if not await self._read(lambda connection: connection.execute(SQL.any_wait, {"now": now}).fetchone()[0]):
            return Looked()
        looked, self._after_call, earliest = await self._write(lambda connection: look(connection, self._after_call, self._clock.now()))
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return looked
