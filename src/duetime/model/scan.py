"""Filters that no index helps: tasks are looked at one by one, so many for a page, and the page says so.

`Scan` is the loop without the reading: the store reads what `next_query` asks for, in whatever way it waits for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from duetime.model.query import BRIEF, MAX_PAGE, Page, Query, TaskCount
from duetime.model.task import FINAL, TaskRecord

FIRST_LOOK = 100
COUNT_PAGES = 10  # pages that end early for having looked at enough, after which counting ends


class Found(NamedTuple):
    """Tasks that a store read, the cursor of what follows, and a function that returns the cursor after the one of an index."""

    items: list[TaskRecord]
    next: str | None
    after: Callable[[int], str]


NOTHING = Found([], None, lambda index: "")


class Scan:
    """Gathers one page: of the tasks that the store can find, those that match."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._items: list[TaskRecord] = []
        self._cursors: list[str] = []
        self._cursor = query.cursor
        self._looked = 0
        self._size = max(query.limit, FIRST_LOOK)
        self._done = query.nothing
        self._cut = False  # the page ended because of how many tasks it looked at

    def next_query(self) -> Query | None:
        """Return what to read next; None if the page is complete."""
        if self._done:
            return None
        query = self._query
        if not query.walks:
            return query
        states = () if query.mixed else query.states
        size = min(self._size, query.scan - self._looked)
        self._size = min(2 * self._size, MAX_PAGE)  # a page that fills at once reads little, one of rare tasks reads much at a time
        return msgspec.structs.replace(
            query,
            states=states,
            worker=None,
            submitted_by=None,
            mine=None,
            meta={},
            payload={},
            brief=query.brief and not query.payload,
            limit=size,
            cursor=self._cursor,
        )

    def take(self, found: Found) -> None:
        """Take what was read."""
        if not self._query.walks:
            self._items, self._cursor, self._done = found.items, found.next, True
            if self._query.each:
                self._cursors = [found.after(index) for index in range(len(found.items))]
            return
        for index, record in enumerate(found.items):
            self._looked += 1
            if matches(record, self._query):
                self._items.append(record)
                if self._query.each:
                    self._cursors.append(found.after(index))
                if len(self._items) == self._query.limit:
                    self._cursor = found.after(index) if found.next is not None or index + 1 < len(found.items) else None
                    self._done = True
                    return
        self._cursor = found.next
        self._cut = found.next is not None and self._looked >= self._query.scan
        self._done = found.next is None or self._cut

    @property
    def page(self) -> Page:
        if self._query.nothing:
            return Page([], None)
        items = [brief(record) for record in self._items] if self._query.brief else self._items
        return Page(items, self._cursor, self._looked if self._cut else None, self._cursors)


def matches(record: TaskRecord, query: Query) -> bool:
    """Return whether a task matches the parts of a filter that no index helps. The others are taken for granted."""
    if query.mine or (query.mixed and record.state not in query.wanted):
        return False
    if query.worker is not None and not (record.worker or "").startswith(query.worker):
        return False
    if query.submitted_by is not None and record.submitted_by != query.submitted_by:
        return False
    if query.error is not None and not _has_error(record, query.error):
        return False
    if query.meta and any((record.meta or {}).get(name) != value for name, value in query.meta.items()):
        return False
    return not query.payload or _has_arguments(record.payload, query.payload)


def _has_error(record: TaskRecord, text: str) -> bool:
    """Return whether a text is in the error of a task that has ended, in its type, message or traceback, in capitals or not."""
    error = record.error
    if error is None or record.state not in FINAL:
        return False
    return text.lower() in f"{error.type}: {error.message}\n{error.traceback}".lower()


def _has_arguments(payload: bytes, wanted: Mapping[str, str]) -> bool:
    value = msgspec.json.decode(payload)
    return all(text_at(value, path) == text for path, text in wanted.items())


def text_at(value: Any, path: str) -> str | None:
    """Return the text of what is at a path of names and indexes with dots between them: a text itself, anything else as JSON.

    None if there is nothing. A name may contain dots: the longest one that exists counts.
    """
    if not path:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(value, list):
        index, _, rest = path.partition(".")
        return text_at(value[int(index)], rest) if index.isdecimal() and int(index) < len(value) else None
    if isinstance(value, dict):
        names = [name for name in value if path == name or path.startswith(f"{name}.")]
        for name in sorted(names, key=len, reverse=True):
            found = text_at(value[name], path[len(name) + 1 :])
            if found is not None:
                return found
    return None


async def counted(page: Callable[[Query], Awaitable[Page]], query: Query, limit: int) -> TaskCount:
    """Count tasks that have to be looked at one by one: up to a limit, and no further than ten pages look."""
    number = 0
    query = msgspec.structs.replace(query, limit=MAX_PAGE, brief=not query.payload, cursor=None)
    cuts = 0
    while True:
        found = await page(query)
        number += len(found.items)
        cuts += found.looked is not None
        if found.next is None or number > limit or cuts >= COUNT_PAGES:
            return TaskCount(min(number, limit), number > limit or found.next is not None)
        query = msgspec.structs.replace(query, cursor=found.next)


# ---- brief ----


def brief(record: TaskRecord) -> TaskRecord:
    """Return a task without what makes it large: its payload cut, its result and the traceback of its error left out.

    Half a payload is no JSON, so one that is cut becomes an object with the beginning of its text under `…`.
    """
    error, payload = record.error, record.payload
    if len(payload) > BRIEF and len(text := payload.decode(errors="ignore")) > BRIEF:
        payload = msgspec.json.encode({"…": text[:BRIEF]})
    if payload is record.payload and record.result is None and (error is None or not error.traceback):
        return record
    shorter = None if error is None else msgspec.structs.replace(error, traceback="")
    return msgspec.structs.replace(record, payload=payload, result=None, error=shorter)
