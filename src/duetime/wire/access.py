"""Tokens and the audit in JSON. `TokenInfo` is a token as it is shown, `AuditInfo` an entry."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.access.service import GRACE, NewToken, TokenInfo
from duetime.model.access import HIGHEST_RATE, MAX_ADDRESSES, MAX_HANDLERS, Scope
from duetime.model.query import MAX_PAGE
from duetime.wire.fields import LONGEST, Cursor, Duration, Instant, Name

Expiry = (
    Annotated[float, Meta(gt=0, le=LONGEST, description="Seconds from now.")]
    | Annotated[datetime, Meta(tz=True, description="An instant.")]
)
Searched = Annotated[str, Meta(min_length=1, max_length=500)]


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A token to make. `handlers` are names, or prefixes such as `shop.*`; without any it is for all. `rate` is in requests per second.

    `owner` is who submits what comes with it, without one the token's name. `addresses` are the networks that it may be used from.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\S")]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=100)]
    handlers: Annotated[list[Name], Meta(max_length=MAX_HANDLERS)] = []
    owner: Annotated[str, Meta(max_length=100)] | UnsetType | None = UNSET
    addresses: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=MAX_ADDRESSES)] = []
    expires: Expiry | UnsetType | None = UNSET
    rate: Annotated[float, Meta(gt=0, le=HIGHEST_RATE)] | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=1_000)] = ""


class RotateBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How to replace a secret: for how many seconds the old one stays valid, and another expiry; without one it stays."""

    grace: Duration = GRACE
    expires: Expiry | UnsetType | None = UNSET


class RevokeQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whether to revoke the token also if it makes this request, or is the last with the scope admin."""

    force: bool = False


class TokenWithSecret(TokenInfo, frozen=True, kw_only=True):
    """A token that was made or rotated. `token` is its text with the secret; no other answer has it."""

    token: str


class TokenList(msgspec.Struct, frozen=True):
    """All tokens by name, without their secrets."""

    items: list[TokenInfo]
    next: None = None


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which entries of the audit; all that are given must hold. `after` is inclusive, `before` exclusive."""

    by: Searched | UnsetType = UNSET
    action: Searched | UnsetType = UNSET
    subject: Searched | UnsetType = UNSET
    after: Instant | UnsetType = UNSET
    before: Instant | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | UnsetType = UNSET


def with_secret(new: NewToken) -> TokenWithSecret:
    """Return a new token as JSON shows it, this once."""
    return TokenWithSecret(token=new.token, **msgspec.structs.asdict(new.info))


def new_token_of(made: TokenWithSecret) -> NewToken:
    fields = {name: getattr(made, name) for name in TokenInfo.__struct_fields__}
    return NewToken(made.token, TokenInfo(**fields))
