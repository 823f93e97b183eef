"""What attempts printed and logged, in the database; its words as `tsvector` in a GIN index."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.query import read_cursor, write_cursor
from duetime.model.text_search import Term, passage, positions, read_terms
from duetime.store.output import KeptOutput, OutputChunk, OutputHit, OutputHits, OutputPosition, OutputSearch, accepted
from duetime.store.postgres.connection import Database
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.records import is_uuid, since
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements

AT_ONCE = 2_097_152  # bytes of one write: others write at the same time
SLOW = 16_384  # characters whose words are split in a thread, to let the event loop go on


def _all_words(chunks: Sequence[OutputChunk]) -> dict[OutputChunk, str]:
    return {chunk: vector(chunk.text) for chunk in chunks}


async def _keep(
    run: Runner, sql: Statements, chunks: Sequence[OutputChunk], words: dict[OutputChunk, str], now: Instant | None
) -> list[int | None]:
    names = sorted({(chunk.task, chunk.attempt) for chunk in chunks if is_uuid(chunk.task)})
    kept = await _lock(run, sql, names)
    for finished_since in dict.fromkeys((since([task for task, _ in names]), 0)):
        missing = [name for name in names if name not in kept]
        if missing:  # most tasks are found at the first look; the second opens all tables, see `all_records_by_id`
            await run.rows(sql.begin_output, [*_columns(missing, 2), finished_since, now])
            kept |= await _lock(run, sql, missing)
    appended, answers = accepted(chunks, kept)
    pieces = [(c.task, c.attempt, c.start, c.end - c.start, c.text, words[c]) for c in appended if c.text]
    if pieces:
        await run.rows(sql.insert_chunks, _columns(pieces, 6))
    if appended:
        newest = {(chunk.task, chunk.attempt): (chunk.task, chunk.attempt, chunk.end, chunk.last) for chunk in appended}
        await run.rows(sql.extend_output, _columns(list(newest.values()), 4))
    return answers


async def _lock(run: Runner, sql: Statements, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, bool]]:
    rows = await run.rows(sql.lock_output, _columns(names, 2)) if names else []
    return {(task, attempt): (size, whole) for task, attempt, size, whole in rows}


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    return [[row[column] for row in rows] for column in range(count)]


def vector(text: str) -> str:
    """Write the words of a text with their positions, as `tsvector` is written. There is nothing but letters and digits in a word."""
    return " ".join(f"'{word}':{','.join(map(str, found[:255]))}" for word, found in positions(text).items())


def query(term: Term) -> str:
    """Write a term as `tsquery` is written."""
    *before, last = (f"'{word}'" for word in term.words)
    return "<->".join([*before, f"{last}:*" if term.prefix else last])


async def remove_of(database: Database, sql: Statements, removing: str, batch: int, but: Collection[str]) -> None:
    """Remove the output of the tasks of a table that goes, except those of some handlers, in small transactions.

    `removing` is the statement for that table.
    """
    [[any_output]] = await database.rows(sql.any_output)
    last: str | None = "00000000-0000-0000-0000-000000000000" if any_output else None
    while last is not None:
        rows = await database.rows(removing, [last, batch, list(but)])
        last = rows[0][0] if rows else None


class Output(OpenSchema):
    """Where the logs of attempts live."""

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        if not chunks:
            return []
        database, now = self._opened, self._clock.parameter
        # not within the transaction: it takes longer than all the statements
        size = sum(len(chunk.text) for chunk in chunks)
        words = await asyncio.to_thread(_all_words, chunks) if size > SLOW else _all_words(chunks)
        return await database.transaction(lambda run: _keep(run, self._sql, chunks, words, now))

    async def kept_output(self, task: str) -> list[KeptOutput]:
        database = self._opened
        return [KeptOutput(*row) for row in await database.rows(self._sql.output_of_task, [task])] if is_uuid(task) else []

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        database = self._opened
        if not is_uuid(task):
            return []
        rows = await database.rows(self._sql.output_chunks, [task, attempt, after.attempt, after.offset, limit])
        return [OutputChunk(task, *row) for row in rows]

    async def search_output(self, search: OutputSearch) -> OutputHits:
        """Compose the statement from named parts: a filter that is not given must not keep an index from being used."""
        database, sql = self._opened_patiently, self._sql
        terms = read_terms(search.words)
        parameters: list[Any] = [search.limit + 1]

        def part(text: str, value: object, word: str = "$value") -> str:
            parameters.append(value)
            return text.replace(word, f"${len(parameters)}")

        head = part(sql.search_head, query(terms[0]), "$word")
        conditions = [part(sql.search_word, query(term)) for term in terms]
        if search.cursor is not None:
            kept_at, task, attempt = read_cursor(search.cursor, int, str, int)
            beyond = part(part(sql.search_beyond, kept_at, "$instant"), task if is_uuid(task) else "0" * 32)
            conditions.append(part(beyond, min(attempt, 2**31 - 1), "$number"))
        if search.handler is not None or search.collection is not None:
            lanes = [row[0] for row in await database.rows(sql.lanes_of, [search.handler, search.collection, None, None, None])]
            conditions.append(part(sql.search_lanes, lanes))
        if search.after is not None:
            conditions.append(part(sql.search_after, search.after))
        if search.before is not None:
            conditions.append(part(sql.search_before, search.before))
        rows = await database.rows(f"{head} where {' and '.join(conditions)} {sql.search_order}", parameters)
        items = [OutputHit(task, attempt, kept_at, passage(text, terms)) for task, attempt, kept_at, text in rows[: search.limit]]
        if len(rows) <= search.limit:
            return OutputHits(items, None)
        last = items[-1]
        return OutputHits(items, write_cursor(last.kept_at, last.task, last.attempt))
