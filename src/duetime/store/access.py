"""The role of the seam that is about tokens, sessions and the audit; a part of `store.control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.access import AuditEntry, SessionRecord, TokenRecord
from duetime.model.query import MAX_PAGE


class TokenVerdict(StrEnum):
    """What became of a token's write. CONFLICT: another version than the one before is stored. DUPLICATE: a live token has the name."""

    STORED = "stored"
    CONFLICT = "conflict"
    DUPLICATE = "duplicate"


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries to list; all given parts must hold. `after` is inclusive, `before` exclusive."""

    by: str | None = None
    action: str | None = None
    subject: str | None = None
    after: Instant | None = None
    before: Instant | None = None
    limit: int = 100
    cursor: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must lie between 1 and {MAX_PAGE}, got {self.limit}")


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, the latest first, and the cursor of the next page, None on the last."""

    items: list[AuditEntry]
    next: str | None


class AccessStore(Protocol):
    """Where tokens, sessions and the audit live."""

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        """Store a token of version 1 if there is none of its id, or one of a higher version if the version before it is stored.

        STORED then, and also if exactly this version with this digest is stored already: a repeat. CONFLICT otherwise, also if the
        token was removed meanwhile. At most one live token has a name: DUPLICATE if another one that has not expired by the store's
        clock has it; one that has expired is removed for it. Neither refusal changes anything. `last_used_at` stays as it is stored.
        """
        ...

    async def tokens(self) -> list[TokenRecord]:
        """Return all tokens by name, expired ones included."""
        ...

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        """Return tokens by id."""
        ...

    async def remove_token(self, id: str) -> bool:
        """Remove a token; return whether there was one. Its audit entries stay."""
        ...

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        """Note when tokens were last used; an earlier instant than the stored one changes nothing. Unknown ids are ignored."""
        ...

    async def put_session(self, session: SessionRecord) -> None:
        """Store a session, and remove those that are over by the store's clock. One whose digest is stored already changes nothing."""
        ...

    async def find_sessions(self, digests: Sequence[str]) -> list[SessionRecord | None]:
        """Return sessions by digest, also those that are over and not yet removed."""
        ...

    async def renew_session(self, digest: str, idle_at: Instant) -> None:
        """Move the end that a session has if it is not used; an earlier instant than the stored one changes nothing, nor does an unknown
        digest.
        """
        ...

    async def remove_session(self, digest: str) -> bool:
        """Remove a session; return whether there was one."""
        ...

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store entries. One whose id is stored already is a repeat and changes nothing."""
        ...

    async def audit(self, filter: AuditFilter) -> AuditPage:
        """Return one page of the audit, the latest first; at the same instant, the highest id first.

        Following `next` visits every entry that matched at the first page exactly once, whatever is added meanwhile.
        """
        ...

    async def prune_audit(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` of the oldest entries from before an instant; return how many."""
        ...
