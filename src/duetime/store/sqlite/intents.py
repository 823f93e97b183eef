"""Cancels and edits that callers' transactions ask for: intents in the file, carried out after the commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.names import HandlerNames
from duetime.model.task import TaskRecord
from duetime.store.intents import Intent, in_rounds
from duetime.store.sqlite import control
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import read_record, write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.submit import callers_transaction
from duetime.store.values import CancelVerdict, ChangeVerdict, Edit, HintKind

Verdict = CancelVerdict | ChangeVerdict


def write_intent(intent: Intent) -> tuple[object, ...]:
    edit = intent.edit
    return (intent.task, 0, *[None] * 4) if edit is None else (intent.task, 1, edit.due_at, edit.priority, edit.collection, edit.payload)


def read_intent(row: tuple[Any, ...]) -> tuple[int, Intent]:
    number, task, edits, due_at, priority, collection, payload = row
    edit = Edit(id=task, due_at=due_at, priority=priority, collection=collection, payload=payload) if edits else None
    return number, Intent(task, edit)


def carry_out(connection: sqlite3.Connection, limit: int, now: Instant) -> tuple[int, set[Verdict]]:
    """Do what the oldest intents ask for and forget them; return how many there were, and what became of them."""
    intents = [read_intent(row) for row in connection.execute(SQL.first_intents, (limit,))]
    verdicts: set[Verdict] = set()
    for part in in_rounds(intents):
        verdicts.update(control.edit(connection, [edit for _, edit in part.edits], now))
        verdicts.update(control.cancel(connection, [task for _, task in part.cancels], now))
    if intents:
        connection.execute(SQL.delete_intents, (intents[-1][0],))
    return len(intents), verdicts


class Intents(OpenFile):
    """Where intents live."""

    async def get_on(self, connection: object, ids: Sequence[str]) -> list[TaskRecord | None]:
        async with callers_transaction(connection, self._path) as run:
            rows = await run.rows(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_ids}", (write_json(list(ids)),)) if ids else []
        found = {row[1]: read_record(row) for row in rows}
        return [found.get(task_id) for task_id in ids]

    async def find_on(self, connection: object, handler: str, key: str) -> TaskRecord | None:
        async with callers_transaction(connection, self._path) as run:
            names = HandlerNames({row[0]: row[1] for row in await run.rows(SQL.all_aliases)}).all(handler)
            rows = await run.rows(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_key}", {"names": write_json(names), "key": key})
        return read_record(rows[0]) if rows else None

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        async with callers_transaction(connection, self._path) as run:
            await run.many(SQL.insert_intent, [write_intent(intent) for intent in intents])

    async def carry_out(self, limit: int) -> int:
        if self._path == ":memory:" or not await self._read(lambda connection: connection.execute(SQL.first_intents, (1,)).fetchall()):
            return 0  # without the write lock: mostly there are none, and nobody shares a database in memory
        count, verdicts = await self._write(lambda connection: carry_out(connection, limit, self._clock.now()))
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
        if CancelVerdict.CANCELLED in verdicts or ChangeVerdict.CHANGED in verdicts:
            self._hint(HintKind.DUE)
        return count

    async def intents(self, task: str) -> list[Intent]:
        rows = await self._read(lambda connection: connection.execute(SQL.intents_of, (task,)).fetchall())
        return [read_intent(row)[1] for row in rows]
