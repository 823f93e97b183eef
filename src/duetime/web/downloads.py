"""Files that pages offer to keep: the log of a task, the tasks of a query and the audit, as lines. Sent in pieces, never held whole."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from urllib.parse import quote

import msgspec
from starlette.responses import Response, StreamingResponse

from duetime.client.access.service import AuditInfo
from duetime.errors import DuetimeError
from duetime.model.access import Scope
from duetime.model.query import MAX_PAGE, Query
from duetime.model.query_text import read_query
from duetime.model.task import shown
from duetime.web.pages.audit import FIELDS
from duetime.web.pages.task import found_record
from duetime.web.security import HEADERS
from duetime.web.visit import Visit

LONGEST_LOG = 1 << 30  # bytes of a log that are sent
MOST_TASKS = 100_000
MOST_ENTRIES = 1_000_000
AUDIT_PAGE = 500
AUDIT_COLUMNS = ("at", "by", "action", "subject", "outcome", "detail", "origin", "id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")

_encode = msgspec.json.Encoder().encode


async def log(visit: Visit) -> Response:
    """Send what the attempts of a task, or one of them, have printed and logged, as text."""
    record = await found_record(visit)
    asked = visit.query.get("attempt", "")
    attempt = int(asked) if asked.isdecimal() and len(asked) < 10 else None
    return _sent(_log(visit, record.id, attempt), f"{record.id}{'' if attempt is None else f'-{attempt}'}.log", "text/plain; charset=utf-8")


async def _log(visit: Visit, id: str, attempt: int | None) -> AsyncIterator[bytes]:
    after, size = 0, 0
    while size < LONGEST_LOG:
        page = await visit.app.output.page(id, attempt=attempt, after=after, limit=1)
        for each in page.items:
            if attempt is None:
                yield f"==> attempt {each.attempt}\n".encode()
            text = each.text if not each.text or each.text.endswith("\n") else f"{each.text}\n"
            data = text.encode("utf-8", "replace")
            size += len(data)
            yield data
        if page.next is None or attempt is not None:
            return
        after = page.next


async def tasks(visit: Visit) -> Response:
    """Send the tasks that match a query, each a line of JSON as the API would answer it."""
    query = read_query(visit.query.get("q", ""), visit.now).by(visit.caller.submitted_by)
    visit.hiding.check(query)
    if visit.caller.handlers and query.handler is None:
        query = msgspec.structs.replace(query, handler=visit.caller.handlers[0])
    if query.handler is not None:
        visit.allow(Scope.READ, query.handler)
    return _sent(_tasks(visit, msgspec.structs.replace(query, limit=MAX_PAGE, cursor=None)), "tasks.ndjson", "application/x-ndjson")


async def _tasks(visit: Visit, query: Query) -> AsyncIterator[bytes]:
    sent, cursor = 0, None
    while sent < MOST_TASKS and not query.nothing:
        page = await visit.app.client.record_page(msgspec.structs.replace(query, cursor=cursor))
        for record in page.items[: MOST_TASKS - sent]:
            yield _encode(shown(visit.hiding.of(record))) + b"\n"
        sent, cursor = sent + len(page.items), page.next
        if cursor is None:
            return


async def audit_lines(visit: Visit) -> Response:
    """Send what the audit has that matches, each entry a line of JSON."""
    visit.call.allow_whole("the audit is about all of them")
    return _sent(_audit(visit, lambda entry: _encode(entry) + b"\n"), "audit.ndjson", "application/x-ndjson")


async def audit_table(visit: Visit) -> Response:
    """Send what the audit has that matches, as a table for spreadsheets."""
    visit.call.allow_whole("the audit is about all of them")
    return _sent(_table(visit), "audit.csv", "text/csv; charset=utf-8")


async def _table(visit: Visit) -> AsyncIterator[bytes]:
    yield csv_line(AUDIT_COLUMNS)
    async for line in _audit(visit, lambda entry: csv_line([_cell(getattr(entry, name)) for name in AUDIT_COLUMNS])):
        yield line


async def _audit(visit: Visit, write: Callable[[AuditInfo], bytes]) -> AsyncIterator[bytes]:
    given = {name: visit.query.get(name) or None for name in FIELDS}
    sent, cursor = 0, None
    while sent < MOST_ENTRIES:
        page = await visit.app.tokens.audit.list(**given, cursor=cursor, limit=AUDIT_PAGE)  # type: ignore[arg-type]
        for entry in page.items:
            yield write(entry)
        sent, cursor = sent + len(page.items), page.next
        if cursor is None:
            return


def _cell(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(getattr(value, "value", value))


def csv_line(values: Iterable[str]) -> bytes:
    """Write a line of a table. A value that a spreadsheet would take for a formula gets an apostrophe before it."""
    line = io.StringIO()
    csv.writer(line).writerow([f"'{value}" if value[:1] in FORMULA else value for value in values])
    return line.getvalue().encode("utf-8", "replace")


def _sent(pieces: AsyncIterator[bytes], name: str, media: str) -> Response:
    headers = {**HEADERS, "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}", "x-accel-buffering": "no"}
    return StreamingResponse(_until_trouble(pieces), headers=headers, media_type=media)


async def _until_trouble(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces. What goes wrong on the way can only be told in the file: its status is sent already."""
    try:
        async for piece in pieces:
            yield piece
    except DuetimeError as error:
        yield f"\n(cut here: {error})\n".encode()
