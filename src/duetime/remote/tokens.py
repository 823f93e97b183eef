"""Tokens and the audit over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from duetime.client.access.service import GRACE, Act, Audit, AuditList, NewToken, TokenInfo, Tokens
from duetime.clock import Seconds, to_instant, to_seconds
from duetime.model.access import AuditOutcome, Caller, Refusal, parse_addresses, parse_handlers, parse_scopes, public_name
from duetime.model.task import check_name
from duetime.remote.address import needs_store, part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.access import Expiry, RotateBody, TokenBody, TokenList, TokenWithSecret, new_token_of
from duetime.wire.fields import optional


class RemoteTokens(Tokens):
    """`app.tokens` over HTTP. The server checks tokens, and records who made a request."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened
        self.audit = RemoteAudit(transport, opened=opened)

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
        self._refuse(by)
        parsed = parse_scopes(scopes)
        body = TokenBody(
            name=name,
            scopes=list(parsed),
            handlers=list(parse_handlers(handlers, parsed)),
            owner=optional(owner),
            addresses=list(parse_addresses(addresses)),
            expires=optional(_expiry(expires)),
            rate=optional(rate),
            note=note,
        )
        await self._opened()
        return new_token_of(await self._transport.ask(TokenWithSecret, "POST", "/v1/tokens", body=body))

    async def list(self) -> builtins.list[TokenInfo]:
        await self._opened()
        return (await self._transport.ask(TokenList, "GET", "/v1/tokens")).items

    async def rotate(
        self, name: str, *, grace: Seconds = GRACE, expires: Seconds | datetime | None = None, by: Caller | None = None
    ) -> NewToken:
        self._refuse(by)
        body = RotateBody(grace=to_seconds(grace, "grace"), expires=optional(_expiry(expires)))
        await self._opened()
        return new_token_of(await self._transport.ask(TokenWithSecret, "POST", f"{_path(name)}/rotate", body=body))

    async def revoke(self, name: str, *, force: bool = False, by: Caller | None = None) -> TokenInfo:
        self._refuse(by)
        await self._opened()
        return await self._transport.ask(TokenInfo, "DELETE", _path(name), query=query_params({"force": force or None}))

    def _refuse(self, by: Caller | None) -> None:
        if by is not None:
            raise needs_store("by=", self._transport.url)

    async def in_use(self) -> bool:
        raise needs_store("knowing whether tokens are asked for", self._transport.url)

    async def identify(self, text: str | None, *, origin: str = "", cost: float = 1.0) -> Caller | Refusal:
        raise needs_store("checking tokens", self._transport.url)

    async def holder(self, id: str, secret_digest: str, *, origin: str = "") -> Caller | Refusal:
        raise needs_store("checking tokens", self._transport.url)

    async def note_uses(self) -> int:
        raise needs_store("noting uses of tokens", self._transport.url)


class RemoteAudit(Audit):
    """`app.tokens.audit` over HTTP."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

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
        for name, when in (("since", since), ("until", until)):
            if when is not None:
                to_instant(when, name)
        asked = {"by": by, "action": action, "subject": subject, "after": since, "before": until, "limit": limit, "cursor": cursor}
        await self._opened()
        return await self._transport.ask(AuditList, "GET", "/v1/audit", query=query_params(asked))

    async def record(
        self, action: str, subject: str, *, by: Caller | None = None, outcome: AuditOutcome = AuditOutcome.DONE, detail: str = ""
    ) -> None:
        raise needs_store("recording in the audit", self._transport.url)

    def acting(self, action: str, subject: str, *, by: Caller | None = None) -> AbstractAsyncContextManager[Act]:
        raise needs_store("recording in the audit", self._transport.url)


def _expiry(expires: Seconds | datetime | None) -> Expiry | None:
    if expires is None or isinstance(expires, datetime):
        if expires is not None:
            to_instant(expires, "expires")
        return expires
    return to_seconds(expires, "expires")


def _path(name: str) -> str:
    """Return the address of a token. Of a token's text only the id is sent: proxies write addresses into their logs."""
    return f"/v1/tokens/{part(check_name(public_name(name), 'name'))}"
