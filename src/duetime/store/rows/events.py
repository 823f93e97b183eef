"""Events in rows, as SQL stores keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.errors import InvalidValue
from duetime.model.event import EventRecord


def read_row(cursor: str, row: Sequence[Any]) -> EventRecord:
    """Return the event in a row of the statement `some_events`, whose first column is the number."""
    (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at, until_at, count, note, by, error) = row[1:]
    return EventRecord(
        cursor=cursor,
        at=at,
        name=name,
        subject=subject,
        handler=handler,
        collection=collection,
        attempt=attempt,
        outcome=outcome,
        worker=worker,
        schedule=schedule,
        planned_at=planned_at,
        until_at=until_at,
        count=count,
        note=note,
        by=by,
        error=error,
    )


def read_cursor(text: str, parts: int) -> list[int]:
    """Return the numbers of a cursor."""
    numbers = text.split("-")
    if len(numbers) != parts or not all(number.isascii() and number.isdigit() and len(number) <= 19 for number in numbers):
        raise InvalidValue(f"{text[:80]!r} is not a cursor of events; use the `cursor` of an event, or the `next` of a page")
    return [int(number) for number in numbers]
