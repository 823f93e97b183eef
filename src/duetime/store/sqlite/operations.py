"""Operations in the file."""

from __future__ import annotations

import sqlite3

from duetime.clock import Instant
from duetime.model.operation import Operation, OperationState, Verb, acted
from duetime.store.operations import Acted
from duetime.store.rows.operations import FROM_THE_LATEST, edits_of, new_row, next_row, read_row
from duetime.store.sqlite import control
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL
from duetime.store.values import CancelVerdict, ChangeVerdict, HintKind


def read(connection: sqlite3.Connection, operation: str) -> Operation | None:
    row = connection.execute(SQL.one_operation, (operation,)).fetchone()
    return None if row is None else read_row(row)


def add(connection: sqlite3.Connection, operation: Operation, now: Instant) -> Operation:
    connection.execute(SQL.insert_operation, new_row(operation, now))
    stored = read(connection, operation.id)
    assert stored is not None
    return stored


def save(connection: sqlite3.Connection, operation: Operation) -> bool:
    return connection.execute(SQL.update_operation, next_row(operation)).rowcount > 0


def act(connection: sqlite3.Connection, name: str, now: Instant) -> Acted | None:
    """Act on the whole batch in one transaction."""
    operation = read(connection, name)
    if operation is None or operation.state is not OperationState.RUNNING or not operation.batch:
        return None if operation is None else Acted(operation, {})
    batch = operation.batch
    verdicts: list[CancelVerdict] | list[ChangeVerdict]
    match operation.spec.verb:
        case Verb.CANCEL:
            verdicts = control.cancel(connection, batch, now)
        case Verb.RETRY:
            verdicts = control.retry(connection, batch, now)
        case Verb.EDIT:
            verdicts = control.edit(connection, edits_of(operation), now)
    answers = {task: verdict.value for task, verdict in zip(batch, verdicts, strict=True)}
    operation = acted(operation, answers)
    save(connection, operation)
    return Acted(operation, answers)


class Operations(OpenFile):
    """Where operations live."""

    async def add_operation(self, operation: Operation) -> Operation:
        stored = await self._write(lambda connection: add(connection, operation, self._clock.now()))
        self._hint(HintKind.OPERATIONS)
        return stored

    async def operations(self, limit: int, *, before: tuple[Instant, str] | None = None, live: bool = False) -> list[Operation]:
        started_at, name = before or FROM_THE_LATEST
        values = {"started_at": started_at, "id": name, "limit": limit}
        statement = SQL.live_operations if live else SQL.some_operations
        return [read_row(row) for row in await self._read(lambda connection: connection.execute(statement, values).fetchall())]

    async def operation(self, operation: str) -> Operation | None:
        return await self._read(lambda connection: read(connection, operation))

    async def save_operation(self, operation: Operation) -> bool:
        saved = await self._write(lambda connection: save(connection, operation))
        if not operation.batch:
            self._hint(HintKind.OPERATIONS)
        return saved

    async def act(self, operation: str) -> Acted | None:
        done = await self._write(lambda connection: act(connection, operation, self._clock.now()))
        if done is not None and done.answers:
            self._hint_changed({*done.answers.values()})
        return done

    async def prune_operations(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: connection.execute(SQL.prune_operations, (before, limit)).rowcount)

    def _hint_changed(self, verdicts: set[str]) -> None:
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
        if CancelVerdict.CANCELLED in verdicts or ChangeVerdict.CHANGED in verdicts:
            self._hint(HintKind.DUE)
