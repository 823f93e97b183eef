"""Tokens and the audit as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.access import AuditEntry, AuditOutcome, Scope, SessionRecord, TokenRecord
from duetime.model.query import read_cursor, write_cursor
from duetime.store.access import AuditFilter, AuditPage

_texts = msgspec.json.Decoder(tuple[str, ...]).decode
_scopes = msgspec.json.Decoder(tuple[Scope, ...]).decode


def token_row(token: TokenRecord) -> list[Any]:
    """Return the columns of a token in the order of the statements, without its last use."""
    return [
        *(token.id, token.name, token.version, _json(token.scopes), _json(token.handlers), token.digest, token.old_digest),
        *(token.old_until_at, token.rate, token.note, token.created_at, token.created_by, token.rotated_at, token.expires_at),
        *(token.owner, _json(token.addresses)),
    ]


def read_token_row(row: Sequence[Any]) -> TokenRecord:
    """Turn these columns, followed by the last use, into a record."""
    id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note, created_at, created_by = row[:12]
    return TokenRecord(
        id=id,
        name=name,
        version=version,
        scopes=_scopes(scopes),
        handlers=_texts(handlers),
        digest=digest,
        old_digest=old_digest,
        old_until_at=old_until_at,
        rate=rate,
        note=note,
        created_at=created_at,
        created_by=created_by,
        rotated_at=row[12],
        expires_at=row[13],
        owner=row[14],
        addresses=_texts(row[15]),
        last_used_at=row[16],
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def session_row(session: SessionRecord) -> list[Any]:
    """Return the columns of a session in the order of the statements."""
    return [getattr(session, name) for name in SessionRecord.__struct_fields__]


def read_session_row(row: Sequence[Any]) -> SessionRecord:
    return SessionRecord(**dict(zip(SessionRecord.__struct_fields__, row, strict=True)))


def audit_row(entry: AuditEntry) -> tuple[Any, ...]:
    return (entry.id, entry.at, entry.by, entry.token, entry.action, entry.subject, entry.origin, entry.outcome.value, entry.detail)


def read_audit_cursor(filter: AuditFilter) -> tuple[Instant | None, str | None]:
    """Return the instant and id at which the previous page ended."""
    if filter.cursor is None:
        return None, None
    at, id = read_cursor(filter.cursor, int, str)
    return at, id


def audit_page(rows: Sequence[Sequence[Any]], limit: int) -> AuditPage:
    """Make a page of rows that were selected with a limit of one more."""
    items = [
        AuditEntry(
            id=id, at=at, by=by, token=token, action=action, subject=subject, origin=origin, outcome=AuditOutcome(outcome), detail=detail
        )
        for id, at, by, token, action, subject, origin, outcome, detail in rows[:limit]
    ]
    return AuditPage(items, write_cursor(items[-1].at, items[-1].id) if len(rows) > limit else None)
