"""Operations in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from duetime.clock import Instant
from duetime.model.operation import Operation, OperationState, Verb, acted
from duetime.model.task import FINAL, State
from duetime.store.operations import Acted
from duetime.store.postgres.control import Move, Transact, locations_of, mark_cancelling, move_of, retry, write_moves
from duetime.store.postgres.intents import Intents
from duetime.store.postgres.runner import Runner
from duetime.store.rows.operations import FROM_THE_LATEST, edits_of, new_row, next_row, read_row
from duetime.store.sql import Statements
from duetime.store.values import CancelVerdict, ChangeVerdict, HintKind, TooManyCollections

LOOKS = 3  # at a task that moves on between two looks; after that it stays in the batch for the next call

Verdicts: TypeAlias = Mapping[str, CancelVerdict | ChangeVerdict]
Job: TypeAlias = Callable[[Runner, list[str]], Awaitable[Verdicts]]


async def save(run: Runner, sql: Statements, operation: Operation) -> bool:
    return bool(await run.rows(sql.update_operation, next_row(operation)))


class Acting:
    """One call of `act`.

    Each transaction first locks the operation (I22), and takes what it has dealt with out of the batch. Waiting tasks and claims are
    locked in different transactions, as `cancel` does it.
    """

    def __init__(
        self,
        operation: Operation,
        transact: Transact,
        sql: Statements,
        now: Instant | None,
        lane: Callable[[str, str, int], Awaitable[int]],
    ) -> None:
        self.operation = operation
        self.answers: dict[str, CancelVerdict | ChangeVerdict] = {}
        self._transact = transact
        self._sql = sql
        self._now = now
        self._lane = lane

    async def run(self) -> None:
        verb = {Verb.CANCEL: self._cancel, Verb.RETRY: self._retry, Verb.EDIT: self._edit}[self.operation.spec.verb]
        for _ in range(LOOKS):
            if self._open:
                await verb()

    @property
    def _open(self) -> bool:
        return bool(self.operation.batch) and self.operation.state is OperationState.RUNNING

    async def _cancel(self) -> None:
        async def end(run: Runner, ids: list[str]) -> Verdicts:
            ended = await run.rows(self._sql.end_waiting, [self._now, State.CANCELLED.value, ids])
            return {row[0]: CancelVerdict.CANCELLED for row in ended}

        async def mark(run: Runner, ids: list[str]) -> Verdicts:
            return dict.fromkeys(await mark_cancelling(run, self._sql, ids, self._now), CancelVerdict.CANCELLING)

        async def give_up(run: Runner, ids: list[str]) -> Verdicts:
            found = await locations_of(run, self._sql, ids)
            gone = {task: CancelVerdict.UNKNOWN for task in ids if task not in found}
            return gone | {task: CancelVerdict.FINISHED for task, location in found.items() if location.state in FINAL}

        for job in (end, mark, give_up):
            await self._deal(job)

    async def _retry(self) -> None:
        async def again(run: Runner, ids: list[str]) -> Verdicts:
            return dict(zip(ids, await retry(run, self._sql, ids, self._now), strict=True))

        await self._deal(again)

    async def _edit(self) -> None:
        edits = {edit.id: edit for edit in edits_of(self.operation)}
        locations = await self._transact(lambda run: locations_of(run, self._sql, edits))
        moves: dict[str, Move] = {}
        refused: set[str] = set()
        for task, location in locations.items():
            if location.state is State.PENDING:
                try:
                    moves[task] = await move_of(edits[task], location, self._lane)
                except TooManyCollections:
                    refused.add(task)

        async def write(run: Runner, ids: list[str]) -> Verdicts:
            chosen = [moves[task] for task in ids if task in moves]
            return await write_moves(run, self._sql, chosen, {}, self._now) if chosen else {}

        async def give_up(run: Runner, ids: list[str]) -> Verdicts:
            found = await locations_of(run, self._sql, ids)
            gone = {task: ChangeVerdict.UNKNOWN for task in ids if task not in found}
            return gone | {
                task: ChangeVerdict.REFUSED for task, there in found.items() if task in refused or there.state is not State.PENDING
            }

        await self._deal(write)
        await self._deal(give_up)

    async def _deal(self, job: Job) -> None:
        """Let a job deal with what is left of the batch, and count what it answers."""
        if not self._open:
            return

        async def transaction(run: Runner) -> tuple[Operation, Verdicts] | None:
            rows = await run.rows(self._sql.lock_operation, [self.operation.id])
            if not rows:
                return None
            operation = read_row(rows[0])
            if operation.state is not OperationState.RUNNING or not operation.batch:
                return operation, {}
            verdicts = await job(run, list(operation.batch))
            if verdicts:
                operation = acted(operation, verdicts)
                await save(run, self._sql, operation)
            return operation, verdicts

        done = await self._transact(transaction)
        if done is not None:
            self.operation = done[0]
            self.answers |= done[1]


class Operations(Intents):
    """Where operations live."""

    async def add_operation(self, operation: Operation) -> Operation:
        await self._opened.rows(self._sql.insert_operation, new_row(operation, self._clock.parameter))
        [row] = await self._opened.rows(self._sql.one_operation, [operation.id])
        self._hint(HintKind.OPERATIONS)
        return read_row(row)

    async def operations(self, limit: int, *, before: tuple[Instant, str] | None = None, live: bool = False) -> list[Operation]:
        statement = self._sql.live_operations if live else self._sql.some_operations
        return [read_row(row) for row in await self._opened.rows(statement, [*(before or FROM_THE_LATEST), limit])]

    async def operation(self, operation: str) -> Operation | None:
        rows = await self._opened.rows(self._sql.one_operation, [operation])
        return read_row(rows[0]) if rows else None

    async def save_operation(self, operation: Operation) -> bool:
        saved = await save(self._opened, self._sql, operation)
        if not operation.batch:
            self._hint(HintKind.OPERATIONS)
        return saved

    async def act(self, operation: str) -> Acted | None:
        found = await self.operation(operation)
        if found is None:
            return None
        acting = Acting(found, self._opened.transaction, self._sql, self._clock.parameter, self._lane_id)
        try:
            await acting.run()
        finally:  # what is done is done, also if the rest fails
            self._hint_after({*acting.answers.values()})
        return Acted(acting.operation, {task: verdict.value for task, verdict in acting.answers.items()})

    async def prune_operations(self, before: Instant, limit: int) -> int:
        [[count]] = await self._opened.rows(self._sql.prune_operations, [before, limit])
        return int(count)
