"""What attempts printed and logged, in the file; its words in an index of FTS5, where SQLite has it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.query import read_cursor, write_cursor
from duetime.model.text_search import LONGEST_WORD, Term, passage, read_terms
from duetime.store.output import KeptOutput, OutputChunk, OutputHit, OutputHits, OutputPosition, OutputSearch, accepted
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

AT_ONCE = 262_144  # bytes of one write: to index them takes the only writer 20 to 50 ms
REMOVED_AT_ONCE = 1_048_576  # bytes that one write takes out of the index: it must read all their words again, in 30 to 100 ms
FEW = 2_000  # pieces with a word that are looked up at once
NO_FTS5 = "the SQLite of this Python was built without FTS5, so output cannot be searched; use a Python whose SQLite has it, or PostgreSQL"


def has_fts5(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute(SQL.has_fts5).fetchone()[0])


def keep(connection: sqlite3.Connection, chunks: Sequence[OutputChunk], now: Instant) -> list[int | None]:
    attempts = {"attempts": write_json(list(dict.fromkeys((chunk.task, chunk.attempt) for chunk in chunks))), "now": now}
    connection.execute(SQL.begin_output, attempts)
    rows = connection.execute(SQL.output_sizes, attempts).fetchall()
    numbers = {(task, attempt): number for task, attempt, _, _, number in rows}
    appended, answers = accepted(chunks, {(task, attempt): (size, bool(whole)) for task, attempt, size, whole, _ in rows})
    indexed = _ready(connection)
    for chunk in appended:
        number = numbers[chunk.task, chunk.attempt]
        if chunk.text:
            row = connection.execute(SQL.insert_chunk, (number, chunk.start, chunk.end - chunk.start, chunk.text)).lastrowid
            if indexed:
                connection.execute(SQL.index_chunk, (row, chunk.text))
        connection.execute(SQL.extend_output, (chunk.end, chunk.last, number))
    return answers


def _ready(connection: sqlite3.Connection) -> bool:
    """Return whether words can be indexed; the index is made when the first output comes, because a migration must not need FTS5."""
    if not has_fts5(connection):
        return False
    if not connection.execute(SQL.has_words).fetchone()[0]:
        connection.execute(SQL.create_words)
        connection.execute(SQL.fill_words)
    return True


def kept(connection: sqlite3.Connection, task: str) -> list[KeptOutput]:
    rows = connection.execute(SQL.output_of_task, (task,))
    return [KeptOutput(attempt, size, bool(whole), kept_at) for attempt, size, whole, kept_at in rows]


def chunks(connection: sqlite3.Connection, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
    values = {"task": task, "attempt": attempt, "after": after.attempt, "offset": after.offset, "limit": limit}
    rows = connection.execute(SQL.output_chunks, values)
    return [OutputChunk(task, number, start, text, bool(last)) for number, start, text, last in rows]


def hits(connection: sqlite3.Connection, search: OutputSearch) -> OutputHits:
    """Compose the statement from named parts: a filter that is not given must not keep an index from being used."""
    terms = read_terms(search.words)
    values: dict[str, object] = {"limit": search.limit + 1, "first": written(min(terms, key=lambda term: term.prefix))}
    conditions = []
    if search.cursor is not None:
        (values["number"],) = read_cursor(search.cursor, int)
        conditions.append(SQL.search_beyond)
    if not can_search(connection):
        return OutputHits([], None)
    conditions += with_words(connection, terms, values, rare=SQL.search_word, common=SQL.search_common)
    filters = [
        (SQL.only_handler, "handler", None if search.handler is None else write_json(read_names(connection).all(search.handler))),
        (SQL.only_collection, "collection", search.collection),
        (SQL.search_after, "after", search.after),
        (SQL.search_before, "before", search.before),
    ]
    for condition, name, value in filters:
        if value is not None:
            values[name] = value
            conditions.append(condition)
    rows = connection.execute(f"{SQL.search_head} where {' and '.join(conditions)} {SQL.search_order}", values).fetchall()
    items = [OutputHit(task, attempt, kept_at, passage(text, terms)) for task, attempt, kept_at, _, text in rows[: search.limit]]
    return OutputHits(items, write_cursor(rows[search.limit - 1][3]) if len(rows) > search.limit else None)


def can_search(connection: sqlite3.Connection) -> bool:
    """Return whether there is anything to search. Raises where SQLite cannot search."""
    if not has_fts5(connection):
        raise InvalidValue(NO_FTS5)
    return bool(connection.execute(SQL.has_words).fetchone()[0])


def tasks_with_words(connection: sqlite3.Connection, terms: Iterable[Term], values: dict[str, object]) -> list[str]:
    """Return the conditions on tasks whose output has all the terms."""
    return with_words(connection, terms, values, rare=SQL.only_logs, common=SQL.only_common_logs)


def with_words(connection: sqlite3.Connection, terms: Iterable[Term], values: dict[str, object], *, rare: str, common: str) -> list[str]:
    """Return a condition for each term, and put the terms among the values.

    With 100,000 pieces, a page of those with a word that all have took 830 ms from the word, and 12 ms from the latest output on.
    """
    conditions = []
    for number, term in enumerate(terms):
        values[f"word_{number}"] = text = written(term)
        # a prefix search must merge all its words each time, so these are looked up once, however many there are
        few = term.prefix or connection.execute(SQL.count_word, (text, FEW + 1)).fetchone()[0] <= FEW
        conditions.append((rare if few else common).replace(":word", f":word_{number}"))
    return conditions


def written(term: Term) -> str:
    """Write a term for FTS5: quoted, so that it contains no operators. It consists of letters and digits only."""
    longer = term.prefix or len(term.words[-1]) == LONGEST_WORD
    return f'"{" ".join(term.words)}"{" *" if longer else ""}'


def remove(connection: sqlite3.Connection, tasks: str) -> None:
    """Remove the output of tasks, given by their numbers in JSON."""
    _remove(connection, connection.execute(SQL.numbers_of, (tasks,)).fetchone()[0])


def remove_between(connection: sqlite3.Connection, task: int, first: int, last: int) -> None:
    """Remove the output of a task's attempts after `first`, up to `last`."""
    _remove(connection, connection.execute(SQL.numbers_between, (task, first, last)).fetchone()[0])


def _remove(connection: sqlite3.Connection, numbers: str) -> None:
    if numbers == "[]":
        return
    if has_fts5(connection) and connection.execute(SQL.has_words).fetchone()[0]:
        connection.execute(SQL.forget_words, (numbers,))
    connection.execute(SQL.delete_chunks, (numbers,))
    connection.execute(SQL.delete_output, (numbers,))


class Output(OpenFile):
    """What attempts print and log."""

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        return await self._write(lambda connection: keep(connection, chunks, self._clock.now())) if chunks else []

    async def kept_output(self, task: str) -> list[KeptOutput]:
        return await self._read(lambda connection: kept(connection, task))

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        return await self._read(lambda connection: chunks(connection, task, attempt, after, limit))

    async def search_output(self, search: OutputSearch) -> OutputHits:
        return await self._read(lambda connection: hits(connection, search))
