"""Tokens, sessions and the audit in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.access import AuditEntry, SessionRecord, TokenRecord
from duetime.store.access import AuditFilter, AuditPage, TokenVerdict
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.rows.access import audit_page, audit_row, read_audit_cursor, read_session_row, read_token_row, session_row, token_row
from duetime.store.sql import Statements


async def put_token(run: Runner, sql: Statements, token: TokenRecord, now: Instant | None) -> TokenVerdict:
    await run.rows(sql.lock_tokens)
    stored = await run.rows(sql.token_state, [token.id])
    if stored and tuple(stored[0]) == (token.version, token.digest):
        return TokenVerdict.STORED
    if (stored[0][0] if stored else 0) != token.version - 1:
        return TokenVerdict.CONFLICT
    for other, expired in await run.rows(sql.token_of_name, [token.name, token.id, now]):
        if not expired:
            return TokenVerdict.DUPLICATE
        await run.rows(sql.delete_token, [other])
    await run.rows(sql.put_token, token_row(token))
    return TokenVerdict.STORED


class Access(OpenSchema):
    """Where tokens, sessions and the audit live."""

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        return await self._opened.transaction(lambda run: put_token(run, self._sql, token, self._clock.parameter))

    async def tokens(self) -> list[TokenRecord]:
        return [read_token_row(row) for row in await self._opened.rows(self._sql.all_tokens)]

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        if not ids:
            return []
        found = {row[0]: read_token_row(row) for row in await self._opened.rows(self._sql.tokens_by_id, [list(ids)])}
        return [found.get(id) for id in ids]

    async def remove_token(self, id: str) -> bool:
        return bool(await self._opened.rows(self._sql.delete_token, [id]))

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        if uses:
            await self._opened.rows(self._sql.note_token_uses, [list(uses), list(uses.values())])

    async def put_session(self, session: SessionRecord) -> None:
        await self._opened.rows(self._sql.delete_old_sessions, [self._clock.now()])
        await self._opened.rows(self._sql.put_session, session_row(session))

    async def find_sessions(self, digests: Sequence[str]) -> list[SessionRecord | None]:
        if not digests:
            return []
        found = {row[0]: read_session_row(row) for row in await self._opened.rows(self._sql.sessions_by_digest, [list(digests)])}
        return [found.get(digest) for digest in digests]

    async def renew_session(self, digest: str, idle_at: Instant) -> None:
        await self._opened.rows(self._sql.renew_session, [digest, idle_at])

    async def remove_session(self, digest: str) -> bool:
        return bool(await self._opened.rows(self._sql.delete_session, [digest]))

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            # in the order of ids, so that two transactions with the same entries do not deadlock
            columns = zip(*(audit_row(entry) for entry in sorted(entries, key=lambda entry: entry.id)), strict=True)
            await self._opened.rows(self._sql.insert_audit, [list(column) for column in columns])

    async def audit(self, filter: AuditFilter) -> AuditPage:
        """Compose a page's statement from named parts: a filter that is not given must not keep an index from being used."""
        sql = self._sql
        at, id = read_audit_cursor(filter)
        parameters: list[Any] = [filter.limit + 1]

        def part(text: str, word: str, value: object) -> str:
            parameters.append(value)
            return text.replace(word, f"${len(parameters)}")

        parts = [
            (sql.audit_by, filter.by),
            (sql.audit_action, filter.action),
            (sql.audit_subject, filter.subject),
            (sql.audit_after, filter.after),
            (sql.audit_before, filter.before),
        ]
        asked = [part(text, "$value", value) for text, value in parts if value is not None]
        if at is not None:
            asked.append(part(part(sql.audit_beyond, "$instant", at), "$value", id))
        where = f"where {' and '.join(asked)}" if asked else ""
        return audit_page(await self._opened.rows(f"{sql.audit_head} {where} {sql.audit_order}", parameters), filter.limit)

    async def prune_audit(self, before: Instant, limit: int) -> int:
        [[count]] = await self._opened.rows(self._sql.delete_audit, [before, limit])
        return int(count)
