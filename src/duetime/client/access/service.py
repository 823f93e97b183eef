"""`app.tokens` and its audit: what programs, the HTTP API and the command line do with them, in a store or over HTTP (`remote`)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

import msgspec

from duetime.clock import Seconds
from duetime.model.access import AuditOutcome, Caller, Refusal, Scope

GRACE = 86_400.0  # seconds for which the old secret stays valid after a rotation


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token as people see it: everything but its secret. After a rotation the old secret is valid until `old_until_at`.

    `owner` is who submits what comes with it: the token's own name unless another was given.
    """

    id: str
    name: str
    owner: str
    addresses: tuple[str, ...]
    scopes: tuple[Scope, ...]
    handlers: tuple[str, ...]
    rate: float | None
    note: str
    expired: bool
    created_at: datetime
    created_by: str
    rotated_at: datetime | None
    old_until_at: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None


class NewToken(msgspec.Struct, frozen=True):
    """A token that was created or rotated. `token` is its text with the secret, which cannot be shown again."""

    token: str
    info: TokenInfo


class AuditInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as people see it."""

    id: str
    at: datetime
    by: str
    token: str | None
    action: str
    subject: str
    origin: str
    outcome: AuditOutcome
    detail: str


class AuditList(msgspec.Struct, frozen=True):
    """Some entries, the latest first, and the cursor of the next page, None on the last."""

    items: list[AuditInfo]
    next: str | None


class Act:
    """An action in progress; the code that performs it may set its outcome and detail."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.detail = ""
        self.outcome: AuditOutcome | None = None


class Audit(Protocol):
    """`app.tokens.audit`: lists what operators did. Recording needs the store; a server records what is done over it."""

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
        """Return one page of the audit, the latest first."""
        ...

    async def record(
        self, action: str, subject: str, *, by: Caller | None = None, outcome: AuditOutcome = AuditOutcome.DONE, detail: str = ""
    ) -> None:
        """Record one action. If the store cannot, it is logged: the action has happened and must not look as if it had not."""
        ...

    def acting(self, action: str, subject: str, *, by: Caller | None = None) -> AbstractAsyncContextManager[Act]:
        """Record how the block ended: done, refused by a DuetimeError, or failed. If the store cannot be opened, the block does not run."""
        ...


class Tokens(Protocol):
    """`app.tokens`: manages tokens and checks them. `audit` has what operators did.

    Changes by other processes take effect within five seconds, those of this process at once. Checking needs the store, and so does
    acting for another caller (`by`): over HTTP the server knows who asks.
    """

    audit: Audit

    async def create(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        handlers: Iterable[str] = (),
        owner: str | None = None,
        addresses: Iterable[str] = (),
        expires: Seconds | datetime | None = None,
        rate: float | None = None,
        note: str = "",
        by: Caller | None = None,
    ) -> NewToken:
        """Create a token. Its text is in the result and nowhere else.

        `handlers` restricts it to these names, or prefixes such as `shop.*`. `rate` is how many requests per second it may make.
        `owner` is whose it is: stored as `submitted_by` of tasks, without one it is the token's name. `addresses` are networks such as
        10.0.0.0/8 from which alone it may be used.
        """
        ...

    async def list(self) -> builtins.list[TokenInfo]:
        """Return all tokens by name, expired ones included."""
        ...

    async def rotate(
        self, name: str, *, grace: Seconds = GRACE, expires: Seconds | datetime | None = None, by: Caller | None = None
    ) -> NewToken:
        """Replace a token's secret. The present one stays valid for `grace`; an older one ends now.

        The expiry stays unless a new one is given.
        """
        ...

    async def revoke(self, name: str, *, force: bool = False, by: Caller | None = None) -> TokenInfo:
        """Remove a token and return it. Its entries in the audit stay.

        Raises Conflict for the token that makes the request, and for the last one that may manage tokens, unless it is forced.
        """
        ...

    async def in_use(self) -> bool:
        """Return whether there is a token that has not expired; a server that others can reach needs one."""
        ...

    async def identify(self, text: str | None, *, origin: str = "", cost: float = 1.0) -> Caller | Refusal:
        """Return the caller, or why the token is refused. The caller knows what it may do.

        `origin` is where the request came from, `cost` how many requests it counts as. Raises StoreUnavailable if the tokens cannot
        be read; known ones stay valid for a minute.
        """
        ...

    async def holder(self, id: str, secret_digest: str, *, origin: str = "") -> Caller | Refusal:
        """Return the caller who has proved before to have the secret with this digest, if it is still valid: for sessions."""
        ...

    async def note_uses(self) -> int:
        """Store when tokens were used since the last call; return for how many."""
        ...

    async def check(
        self, text: str | None, scope: Scope, handler: str | None = None, *, origin: str = "", cost: float = 1.0
    ) -> Caller | Refusal:
        """Return the caller, or why it is refused: for this scope, and this handler if there is one."""
        caller = await self.identify(text, origin=origin, cost=cost)
        return caller if isinstance(caller, Refusal) else caller.refusal(scope, handler) or caller
