"""Steps and signals in the database."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from duetime.clock import SECOND
from duetime.errors import StoreUnavailable
from duetime.model.steps import NewSignal, NewStep, SignalRecord, StepKind, StepRecord
from duetime.store.postgres.callers import callers_transaction
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.records import is_uuid
from duetime.store.postgres.suspending import wake
from duetime.store.rows.steps import read_children, read_signal, read_step, write_children
from duetime.store.steps import AT_ONCE, Looked
from duetime.store.values import HintKind


class Steps(OpenSchema):
    """Where steps and signals are."""

    _after_call = 0

    async def steps(self, task: str) -> list[StepRecord]:
        return [read_step(row) for row in await self._opened.rows(self._sql.steps_of, [task])] if is_uuid(task) else []

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        if not steps:
            return []
        once = list({(step.task, step.name): step for step in steps if is_uuid(step.task)}.values())
        rows = await self._opened.rows(self._sql.save_steps, [self._clock.parameter, worker, *_columns(once)])
        ours = [once[index - 1] for index in rows[0][0]]
        names = sorted({step.signal for step in ours if step.signal is not None and not step.done})
        await self._match_signals(names)
        waits = [step for step in ours if step.kind is not StepKind.VALUE]
        stored: dict[tuple[str, str, int], StepRecord] = {(each.task, each.name, each.attempt): self._as_saved(each) for each in ours}
        if waits:
            attempts = {(each.task, each.name): each.attempt for each in waits}
            for row in await self._opened.rows(self._sql.named_steps, [[each.task for each in waits], [each.name for each in waits]]):
                stored[row[0], row[1], attempts[row[0], row[1]]] = read_step(row[1:])
        return [stored.get((step.task, step.name, step.attempt)) for step in steps]

    def _as_saved(self, step: NewStep) -> StepRecord:
        return StepRecord(name=step.name, kind=step.kind, attempt=step.attempt, at=self._clock.now(), done=step.done, data=step.data)

    async def _match_signals(self, names: Sequence[str]) -> int:
        """Give kept signals of these names away; return how many tasks go on."""
        if not names:
            return 0
        [[tasks]] = await self._opened.rows(self._sql.match_signals, [self._clock.parameter, list(names)])
        return await self._wake_suspended(tasks)

    async def _wake_suspended(self, tasks: Sequence[str]) -> int:
        woken, earliest = await wake(self._opened, self._sql, sorted(set(tasks)), self._clock.parameter)
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return woken

    async def send_signals(self, signals: Sequence[NewSignal]) -> list[bool]:
        if not signals:
            return []
        new = await self._opened.rows(self._sql.put_signals, [self._clock.parameter, *sent(signals)])
        with contextlib.suppress(StoreUnavailable):  # they are stored; a duty looks again
            await self._look_for_waits(sorted({signal.name for signal in signals}))
        indexes = {row[0] for row in new}
        return [index in indexes for index in range(1, len(signals) + 1)]

    async def _look_for_waits(self, names: Sequence[str]) -> int:
        woken = await self._match_signals(names)
        if names:
            await self._opened.rows(self._sql.see_signals, [list(names)])
        return woken

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            new = {row[0] for row in await run.rows(self._sql.put_signals, [self._clock.parameter, *sent(signals)])} if signals else set()
            if signals and self._address.notify:
                await run.rows(self._sql.notify, [self._wakeups.channel, self._wakeups.caught])
            return [index in new for index in range(1, len(signals) + 1)]

    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[SignalRecord]:
        return [read_signal(row) for row in await self._opened.rows(self._sql.list_signals, [self._clock.parameter, after, name, limit])]

    async def delete_signals(self, name: str, id: str | None = None) -> int:
        return len(await self._opened.rows(self._sql.delete_signals, [name, id]))

    async def look_at_waits(self) -> Looked:
        database, sql, now = self._opened, self._sql, self._clock.parameter
        names = [row[0] for row in await database.rows(sql.unseen_signals, [AT_ONCE])]
        woken = await self._look_for_waits(names)
        [[late]] = await database.rows(sql.end_late_waits, [now, AT_ONCE])
        asleep = [row[0] for row in await database.rows(sql.asleep, [AT_ONCE])]
        calls = await database.rows(sql.open_calls, [self._after_call, AT_ONCE])
        self._after_call = calls[-1][0] if len(calls) == AT_ONCE else 0
        living = await self._living_of([row[1] for row in calls])
        woken += await self._wake_suspended([*late, *asleep, *living])
        dead = {row[1]: read_children(row[2]) for row in calls if row[1] not in living}
        orphans = await self._living_of([child for children in dead.values() for child in children])
        over = [task for task, children in dead.items() if not orphans.intersection(children)]
        if over:
            await database.rows(sql.close_calls, [over])
        forgotten = len(await database.rows(sql.forget_signals, [now, AT_ONCE]))
        return Looked(woken, max(len(names), len(late), len(asleep), forgotten) >= AT_ONCE, tuple(sorted(orphans)))

    async def _living_of(self, ids: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._opened.rows(self._sql.living_of, [list(ids)])} if ids else set()


def _columns(steps: Sequence[NewStep]) -> list[list[object]]:
    return [
        [step.task for step in steps],
        [step.attempt for step in steps],
        [step.name for step in steps],
        [step.kind.value for step in steps],
        [step.done for step in steps],
        [None if step.data is None else step.data.decode() for step in steps],
        [step.signal for step in steps],
        [step.wake_at for step in steps],
        [write_children(step.children) for step in steps],
    ]


def sent(signals: Sequence[NewSignal]) -> list[list[object]]:
    return [
        [signal.name for signal in signals],
        [signal.id for signal in signals],
        [signal.data.decode() for signal in signals],
        [signal.sent_by for signal in signals],
        [round(signal.keep * SECOND) for signal in signals],
    ]
