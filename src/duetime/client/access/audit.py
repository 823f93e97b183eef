"""The audit: every action of an operator, with who, what, on what, when, from where, and how it ended."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec

from duetime.client.access.service import Act, Audit, AuditInfo, AuditList
from duetime.clock import to_datetime, to_instant
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.ids import new_id
from duetime.model.access import AuditEntry, AuditOutcome, Caller
from duetime.store import Store
from duetime.store.access import AuditFilter

logger = logging.getLogger("duetime.access.audit")

LONGEST_SUBJECT = 500
LONGEST_DETAIL = 2_000


class LocalAudit(Audit):
    """The audit of a store. `me` is the default caller."""

    def __init__(self, store: Store, *, me: Caller, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._me = me
        self._opened = opened

    async def record(
        self, action: str, subject: str, *, by: Caller | None = None, outcome: AuditOutcome = AuditOutcome.DONE, detail: str = ""
    ) -> None:
        caller = by or self._me
        entry = AuditEntry(
            id=new_id(),
            at=self._store.now(),
            by=_plain(caller.name, LONGEST_SUBJECT),
            token=caller.token,
            action=_plain(action, LONGEST_SUBJECT),
            subject=_plain(subject, LONGEST_SUBJECT),
            origin=_plain(caller.origin, LONGEST_SUBJECT),
            outcome=outcome,
            detail=_plain(detail, LONGEST_DETAIL),
        )
        try:
            await self._opened()
            await self._store.add_audit([entry])
        except StoreUnavailable as error:
            logger.error("an entry of the audit could not be stored (%s): %s", error, msgspec.json.encode(entry).decode())

    @asynccontextmanager
    async def acting(self, action: str, subject: str, *, by: Caller | None = None) -> AsyncIterator[Act]:
        await self._opened()
        act = Act(subject)
        try:
            yield act
        except BaseException as error:
            refused = isinstance(error, DuetimeError) and not isinstance(error, StoreUnavailable)
            outcome = AuditOutcome.REFUSED if refused else AuditOutcome.FAILED
            await self.record(action, act.subject, by=by, outcome=outcome, detail=act.detail or str(error) or type(error).__name__)
            raise
        await self.record(action, act.subject, by=by, outcome=act.outcome or AuditOutcome.DONE, detail=act.detail)

    async def list(
        self,
        *,
        by: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditList:
        filter = AuditFilter(
            by=by,
            action=action,
            subject=subject,
            after=None if since is None else to_instant(since, "since"),
            before=None if until is None else to_instant(until, "until"),
            limit=limit,
            cursor=cursor,
        )
        await self._opened()
        page = await self._store.audit(filter)
        return AuditList([_info(entry) for entry in page.items], page.next)


def _info(entry: AuditEntry) -> AuditInfo:
    return AuditInfo(**{**msgspec.structs.asdict(entry), "at": to_datetime(entry.at)})


def _plain(text: str, limit: int) -> str:
    """Shorten a text and remove what cannot be printed: every entry must be storable, whatever the request contained."""
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return text if text.isprintable() else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
