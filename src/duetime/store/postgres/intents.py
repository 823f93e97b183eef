"""Cancels and edits that callers' transactions ask for: intents on PostgreSQL, carried out after the commit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.task import FINAL, State, TaskRecord
from duetime.store.intents import Intent, in_rounds
from duetime.store.postgres.callers import callers_transaction
from duetime.store.postgres.control import (
    RETRIABLE,
    Changing,
    Location,
    Move,
    Transact,
    both,
    locations_of,
    mark_cancelling,
    move_of,
    repair_payloads,
    write_moves,
)
from duetime.store.postgres.read import find_by_key
from duetime.store.postgres.records import all_records_by_id, is_uuid
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import CancelVerdict, ChangeVerdict, Edit, HintKind, TooManyCollections

logger = logging.getLogger("duetime.store")

LOOKS = 3  # at a task that moves on between two looks; after that it is left for the next call

Numbers = dict[str, list[int]]  # of the intents about each task
Job = Callable[[Runner, list[str]], Awaitable[Collection[str]]]


def write_intents(intents: Sequence[Intent]) -> list[list[Any]]:
    """Return the columns of intents. One about an id that no task can have is left out."""
    known = [intent for intent in intents if is_uuid(intent.task)]
    edits = [intent.edit for intent in known]
    return [
        [intent.task for intent in known],
        [edit is not None for edit in edits],
        [None if edit is None else edit.due_at for edit in edits],
        [None if edit is None else edit.priority for edit in edits],
        [None if edit is None else edit.collection for edit in edits],
        [None if edit is None or edit.payload is None else edit.payload.decode() for edit in edits],
    ]


def read_intent(row: Sequence[Any]) -> tuple[int, Intent]:
    number, task, edits, due_at, priority, collection, payload = row
    encoded = None if payload is None else payload.encode()
    return number, Intent(task, Edit(id=task, due_at=due_at, priority=priority, collection=collection, payload=encoded) if edits else None)


class CarryingOut:
    """One call of `carry_out`.

    Each transaction first locks the intents that it deals with, and removes them at its end. So each intent has its effect once, whoever
    dies in between and however many processes look at the same ones. Waiting tasks and claims are locked in different transactions, as
    `cancel` does it.
    """

    def __init__(self, transact: Transact, sql: Statements, now: Instant | None, lane: Callable[[str, str, int], Awaitable[int]]) -> None:
        self._transact = transact
        self._sql = sql
        self._now = now
        self._lane = lane
        self._left: set[str] = set()  # tasks with an intent that could not be dealt with: later ones about them wait too
        self.count = 0
        self.verdicts: set[CancelVerdict | ChangeVerdict] = set()

    async def run(self, intents: Iterable[tuple[int, Intent]]) -> None:
        for part in in_rounds(intents):
            changes: dict[str, Edit] = {}
            for _, edit in part.edits:
                changes[edit.id] = both(changes.get(edit.id), edit)
            await self._edit(changes, self._open((number, edit.id) for number, edit in part.edits))
            await self._cancel(self._open(part.cancels))

    def _open(self, intents: Iterable[tuple[int, str]]) -> Numbers:
        numbers: Numbers = {}
        for number, task in intents:
            if task not in self._left:
                numbers.setdefault(task, []).append(number)
        return numbers

    async def _cancel(self, numbers: Numbers) -> None:
        async def end(run: Runner, ids: list[str]) -> Collection[str]:
            return {row[0] for row in await run.rows(self._sql.end_waiting, [self._now, State.CANCELLED.value, ids])}

        async def mark(run: Runner, ids: list[str]) -> Collection[str]:
            return await mark_cancelling(run, self._sql, ids, self._now)

        async def give_up(run: Runner, ids: list[str]) -> Collection[str]:
            found = await locations_of(run, self._sql, ids)
            return [task_id for task_id in ids if task_id not in found or found[task_id].state in FINAL]

        for _ in range(LOOKS):
            await self._deal(numbers, end, CancelVerdict.CANCELLED)
            await self._deal(numbers, mark, CancelVerdict.CANCELLING)
            await self._deal(numbers, give_up, CancelVerdict.FINISHED)
        self._left |= numbers.keys()

    async def _edit(self, changes: Mapping[str, Edit], numbers: Numbers) -> None:
        moves: dict[str, Move] = {}
        ended: set[str] = set()
        refused: set[str] = set()

        async def write(run: Runner, ids: list[str]) -> Collection[str]:
            chosen = [moves[task_id] for task_id in ids if task_id in moves]
            return await write_moves(run, self._sql, chosen, {}, self._now) if chosen else ()

        async def repair(run: Runner, ids: list[str]) -> Collection[str]:
            payloads = {task_id: changes[task_id] for task_id in ids if task_id in ended}
            return await repair_payloads(run, self._sql, payloads, {}) if payloads else ()

        async def give_up(run: Runner, ids: list[str]) -> Collection[str]:
            found = await locations_of(run, self._sql, ids)
            return [task_id for task_id in ids if task_id in refused or _refused(changes[task_id], found.get(task_id))]

        for _ in range(LOOKS):
            if not numbers:
                return
            locations = await self._transact(lambda run: locations_of(run, self._sql, numbers))
            moves.clear()
            ended.clear()
            for task_id, location in locations.items():
                if location.state in RETRIABLE and changes[task_id].repairs:
                    ended.add(task_id)
                elif location.state is State.PENDING:
                    try:
                        moves[task_id] = await move_of(changes[task_id], location, self._lane)
                    except TooManyCollections as error:
                        refused.add(task_id)
                        logger.warning("the edit of task %s, part of a caller's transaction, has no effect: %s", task_id, error)
            if moves:
                await self._deal(numbers, write, ChangeVerdict.CHANGED)
            if ended:
                await self._deal(numbers, repair, ChangeVerdict.CHANGED)
            await self._deal(numbers, give_up, ChangeVerdict.REFUSED)
        self._left |= numbers.keys()

    async def _deal(self, numbers: Numbers, job: Job, verdict: CancelVerdict | ChangeVerdict) -> None:
        """Let a job deal with the tasks whose intents nobody else deals with, and remove those of the tasks that it names."""
        if not numbers:
            return

        async def transaction(run: Runner) -> set[str]:
            asked = [number for each in numbers.values() for number in each]
            locked = {row[0] for row in await run.rows(self._sql.lock_intents, [asked])}
            ours = [task_id for task_id, each in numbers.items() if locked.issuperset(each)]
            done = set(await job(run, ours)) if ours else set()
            if done:
                await run.rows(self._sql.delete_intents, [[number for task_id in done for number in numbers[task_id]]])
            return done

        for task_id in await self._transact(transaction):
            self.count += len(numbers.pop(task_id))
            self.verdicts.add(verdict)


def _refused(change: Edit, location: Location | None) -> bool:
    """Return whether an edit has no effect on a task that is there, or on none."""
    if location is None:
        return True
    return location.state is not State.PENDING and not (change.repairs and location.state in RETRIABLE)


class Intents(Changing):
    """Where intents live."""

    async def get_on(self, connection: object, ids: Sequence[str]) -> list[TaskRecord | None]:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            found = await all_records_by_id(run, self._sql, ids)
        return [found.get(task_id) for task_id in ids]

    async def find_on(self, connection: object, handler: str, key: str) -> TaskRecord | None:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            return await find_by_key(run, self._sql, handler, key)

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            columns = write_intents(intents)
            if columns[0]:
                await run.rows(self._sql.add_intents, columns)
                if self._address.notify:
                    await run.rows(self._sql.notify, [self._wakeups.channel, self._wakeups.intents])

    async def carry_out(self, limit: int) -> int:
        intents = [read_intent(row) for row in await self._opened.rows(self._sql.first_intents, [limit])]
        if not intents:
            return 0
        carrying = CarryingOut(self._opened.transaction, self._sql, self._clock.parameter, self._lane_id)
        try:
            await carrying.run(intents)
        finally:  # what is done is done, also if the rest fails
            self._hint_after(carrying.verdicts)
        return carrying.count

    def _hint_after(self, verdicts: Collection[CancelVerdict | ChangeVerdict]) -> None:
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
        if CancelVerdict.CANCELLED in verdicts or ChangeVerdict.CHANGED in verdicts:
            self._hint(HintKind.DUE)

    async def intents(self, task: str) -> list[Intent]:
        rows = await self._opened.rows(self._sql.intents_of, [task]) if is_uuid(task) else []
        return [read_intent(row)[1] for row in rows]
