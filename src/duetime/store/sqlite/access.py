"""Tokens, sessions and the audit in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.access import AuditEntry, SessionRecord, TokenRecord
from duetime.store.access import AuditFilter, AuditPage, TokenVerdict
from duetime.store.rows.access import audit_page, audit_row, read_audit_cursor, read_session_row, read_token_row, session_row, token_row
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL


def put_token(connection: sqlite3.Connection, token: TokenRecord, now: Instant) -> TokenVerdict:
    stored = connection.execute(SQL.token_state, (token.id,)).fetchone()
    if stored == (token.version, token.digest):
        return TokenVerdict.STORED
    if (0 if stored is None else stored[0]) != token.version - 1:
        return TokenVerdict.CONFLICT
    other = connection.execute(SQL.token_of_name, (token.name, token.id)).fetchone()
    if other is not None:
        other_id, expires_at = other
        if expires_at is None or now < expires_at:
            return TokenVerdict.DUPLICATE
        remove_token(connection, other_id)
    connection.execute(SQL.put_token, token_row(token))
    return TokenVerdict.STORED


def tokens(connection: sqlite3.Connection) -> list[TokenRecord]:
    return [read_token_row(row) for row in connection.execute(SQL.all_tokens)]


def find_tokens(connection: sqlite3.Connection, ids: Sequence[str]) -> list[TokenRecord | None]:
    rows = connection.execute(SQL.tokens_by_id, (msgspec.json.encode(list(ids)).decode(),))
    found = {row[0]: read_token_row(row) for row in rows}
    return [found.get(id) for id in ids]


def remove_token(connection: sqlite3.Connection, id: str) -> bool:
    return connection.execute(SQL.delete_token, (id,)).rowcount > 0


def note_use(connection: sqlite3.Connection, uses: Mapping[str, Instant]) -> None:
    connection.executemany(SQL.note_token_use, [{"id": id, "at": at} for id, at in uses.items()]).close()


def put_session(connection: sqlite3.Connection, session: SessionRecord, now: Instant) -> None:
    connection.execute(SQL.delete_old_sessions, {"now": now})
    connection.execute(SQL.put_session, session_row(session))


def find_sessions(connection: sqlite3.Connection, digests: Sequence[str]) -> list[SessionRecord | None]:
    rows = connection.execute(SQL.sessions_by_digest, (msgspec.json.encode(list(digests)).decode(),))
    found = {row[0]: read_session_row(row) for row in rows}
    return [found.get(digest) for digest in digests]


def renew_session(connection: sqlite3.Connection, digest: str, idle_at: Instant) -> None:
    connection.execute(SQL.renew_session, {"digest": digest, "idle_at": idle_at})


def remove_session(connection: sqlite3.Connection, digest: str) -> bool:
    return connection.execute(SQL.delete_session, (digest,)).rowcount > 0


def add_audit(connection: sqlite3.Connection, entries: Sequence[AuditEntry]) -> None:
    connection.executemany(SQL.insert_audit, [audit_row(entry) for entry in entries]).close()


def audit(connection: sqlite3.Connection, filter: AuditFilter) -> AuditPage:
    """Compose a page's statement from named parts: a filter that is not given must not keep an index from being used."""
    at, id = read_audit_cursor(filter)
    parts = [
        (SQL.audit_by, filter.by),
        (SQL.audit_action, filter.action),
        (SQL.audit_subject, filter.subject),
        (SQL.audit_after, filter.after),
        (SQL.audit_before, filter.before),
        (SQL.audit_beyond, at),
    ]
    asked = [condition for condition, value in parts if value is not None]
    where = f"where {' and '.join(asked)}" if asked else ""
    values: dict[str, Any] = {**msgspec.structs.asdict(filter), "cursor_at": at, "cursor_id": id, "limit": filter.limit + 1}
    return audit_page(connection.execute(f"{SQL.audit_head} {where} {SQL.audit_order}", values).fetchall(), filter.limit)


def prune_audit(connection: sqlite3.Connection, before: Instant, limit: int) -> int:
    return connection.execute(SQL.delete_audit, (before, limit)).rowcount


class Access(OpenFile):
    """Where tokens, sessions and the audit live."""

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        return await self._write(lambda connection: put_token(connection, token, self._clock.now()))

    async def tokens(self) -> list[TokenRecord]:
        return await self._read(tokens)

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        return await self._read(lambda connection: find_tokens(connection, ids)) if ids else []

    async def remove_token(self, id: str) -> bool:
        return await self._write(lambda connection: remove_token(connection, id))

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        if uses:
            await self._write(lambda connection: note_use(connection, uses))

    async def put_session(self, session: SessionRecord) -> None:
        await self._write(lambda connection: put_session(connection, session, self._clock.now()))

    async def find_sessions(self, digests: Sequence[str]) -> list[SessionRecord | None]:
        return await self._read(lambda connection: find_sessions(connection, digests)) if digests else []

    async def renew_session(self, digest: str, idle_at: Instant) -> None:
        await self._write(lambda connection: renew_session(connection, digest, idle_at))

    async def remove_session(self, digest: str) -> bool:
        return await self._write(lambda connection: remove_session(connection, digest))

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            await self._write(lambda connection: add_audit(connection, entries))

    async def audit(self, filter: AuditFilter) -> AuditPage:
        return await self._read(lambda connection: audit(connection, filter))

    async def prune_audit(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: prune_audit(connection, before, limit))
