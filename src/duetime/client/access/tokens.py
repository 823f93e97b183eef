"""Tokens of a store: created, listed, rotated, revoked, and checked at every request."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

from duetime.client.access.audit import LocalAudit
from duetime.client.access.service import GRACE, NewToken, TokenInfo, Tokens
from duetime.client.access.token_cache import TokenCache
from duetime.clock import LATEST, Clock, Instant, Seconds, SystemClock, to_datetime, to_instant, to_micros
from duetime.errors import Conflict, InvalidValue, TokenNotFound
from duetime.model.access import (
    BAD_TOKEN,
    ID_BYTES,
    NO_TOKEN,
    SECRET_BYTES,
    Bucket,
    Caller,
    Denial,
    Refusal,
    TokenRecord,
    TokenText,
    admit,
    burst_of,
    caller_of,
    check_rate,
    digest,
    lockout,
    misplaced,
    parse_addresses,
    parse_handlers,
    parse_scopes,
    public_name,
    read_token,
    rotated,
    take,
)
from duetime.model.task import check_name
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.access import TokenVerdict

MOST_TOKENS = 10_000  # every server process caches all of them
NOTE_EVERY = 10.0

_LIKE_AN_ID = re.compile(r"[0-9a-f]{16}|dt_.*", re.ASCII)


class LocalTokens(Tokens):
    """The tokens of a store. Rate limits are per process."""

    def __init__(
        self,
        store: Store,
        *,
        user: str,
        opened: Callable[[], Awaitable[None]],
        clock: Clock | None = None,
        random_hex: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self._store = store
        self._opened = opened
        self._clock = clock or SystemClock()
        self._random_hex = random_hex
        self._cache = TokenCache(store, self._clock)
        self._uses: dict[str, Instant] = {}
        self._buckets: dict[str, Bucket] = {}
        self.me = Caller(name=user, origin=f"a process on {socket.gethostname()}")
        self.audit = LocalAudit(store, me=self.me, opened=opened)

    # ---- managing ----

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
        async with self.audit.acting("tokens.create", public_name(name), by=by) as act:
            now = self._store.now()
            text = TokenText(self._random_hex(ID_BYTES), self._random_hex(SECRET_BYTES))
            parsed = parse_scopes(scopes)
            token = TokenRecord(
                id=text.id,
                name=_check_name(name),
                owner=_check_owner(owner or ""),
                addresses=parse_addresses(addresses),
                scopes=parsed,
                handlers=parse_handlers(handlers, parsed),
                digest=digest(text.secret),
                rate=check_rate(rate),
                note=_check_note(note),
                created_at=now,
                created_by=(by or self.me).name,
                expires_at=None if expires is None else _expiry(expires, now),
            )
            if len(await self._store.tokens()) >= MOST_TOKENS:
                raise Conflict(f"there are {MOST_TOKENS:,} tokens already; revoke those that nobody uses")
            await self._put(token)
            act.detail = _described(token)
            return NewToken(str(text), self._info(token))

    async def list(self) -> list[TokenInfo]:
        await self._opened()
        return [self._info(token) for token in await self._store.tokens()]

    async def rotate(
        self, name: str, *, grace: Seconds = GRACE, expires: Seconds | datetime | None = None, by: Caller | None = None
    ) -> NewToken:
        async with self.audit.acting("tokens.rotate", public_name(name), by=by) as act:
            token, now = await self._find(name), self._store.now()
            act.subject = token.name
            text = TokenText(token.id, self._random_hex(SECRET_BYTES))
            expires_at = token.expires_at if expires is None else _expiry(expires, now)
            if expires_at is not None and expires_at <= now:
                raise Conflict(f"the token {token.name} has expired, so a new secret would be good for nothing; give a new expires= too")
            until_at = min(now + _grace(grace), LATEST)
            changed = rotated(token, digest(text.secret), now=now, old_until_at=until_at, expires_at=expires_at)
            await self._put(changed)
            act.detail = f"{_described(changed)}; the old secret is good until {to_datetime(until_at):%Y-%m-%d %H:%M:%S} UTC"
            return NewToken(str(text), self._info(changed))

    async def revoke(self, name: str, *, force: bool = False, by: Caller | None = None) -> TokenInfo:
        async with self.audit.acting("tokens.revoke", public_name(name), by=by) as act:
            token = await self._find(name)
            act.subject = token.name
            locked_out = lockout(token, await self._store.tokens(), by or self.me, self._store.now())
            if locked_out is not None and not force:
                raise Conflict(f"{locked_out}; force=true revokes it all the same")
            if not await self._store.remove_token(token.id):
                raise _not_found(name)
            self._cache.forget()
            act.detail = _described(token)
            return self._info(token)

    async def in_use(self) -> bool:
        await self._opened()
        return any(not token.expired(self._store.now()) for token in await self._store.tokens())

    async def _find(self, name: str) -> TokenRecord:
        """Return a token by name, id or text: a person who found a leaked token has only its text."""
        text = read_token(name)
        for token in await self._store.tokens():
            if (text.id if text else name) in (token.id, token.name):
                return token
        raise _not_found(name)

    async def _put(self, token: TokenRecord) -> None:
        verdict = await self._store.put_token(token)
        self._cache.forget()
        if verdict is TokenVerdict.DUPLICATE:
            raise Conflict(f"there is a token {token.name!r} already; choose another name, or rotate or revoke that one")
        if verdict is TokenVerdict.CONFLICT:
            raise Conflict(f"somebody else changed the token {token.name!r} at this moment; look at it, then try again")

    def _info(self, token: TokenRecord) -> TokenInfo:
        now = self._store.now()
        old_until_at = token.old_until_at if token.old_until_at is not None and now < token.old_until_at else None
        return TokenInfo(
            id=token.id,
            name=token.name,
            owner=token.owner or token.name,
            addresses=token.addresses,
            scopes=token.scopes,
            handlers=token.handlers,
            rate=token.rate,
            note=token.note,
            expired=token.expired(now),
            created_at=to_datetime(token.created_at),
            created_by=token.created_by,
            rotated_at=_datetime(token.rotated_at),
            old_until_at=_datetime(old_until_at),
            expires_at=_datetime(token.expires_at),
            last_used_at=_datetime(token.last_used_at),
        )

    # ---- checking ----

    async def identify(self, text: str | None, *, origin: str = "", cost: float = 1.0) -> Caller | Refusal:
        if not text or text.isspace():
            return NO_TOKEN
        parts = read_token(text)
        if parts is None:
            return BAD_TOKEN
        token, now = await self._cache.find(parts.id), self._store.now()
        refusal = admit(token, parts.secret, now, origin)
        if refusal is not None or token is None:
            return refusal or BAD_TOKEN
        self._uses[token.id] = now
        return self._too_fast(token, cost) or caller_of(token, origin)

    async def holder(self, id: str, secret_digest: str, *, origin: str = "") -> Caller | Refusal:
        token, now = await self._cache.find(id), self._store.now()
        if token is None or not token.has_digest(secret_digest, now):
            return Refusal(Denial.UNKNOWN, "the token of this session was revoked or has another secret; sign in again")
        if token.expired(now):
            return Refusal(Denial.EXPIRED, f"the token {token.name} has expired; sign in with another")
        refusal = misplaced(token, origin)
        if refusal is not None:
            return refusal
        self._uses[token.id] = now
        return caller_of(token, origin)

    def _too_fast(self, token: TokenRecord, cost: float) -> Refusal | None:
        if token.rate is None:
            return None
        taken = take(self._buckets.get(token.id), token.rate, burst_of(token.rate), self._clock.monotonic(), cost)
        self._buckets[token.id] = taken.bucket
        if taken.wait == 0.0:
            return None
        message = f"the token {token.name} may make {token.rate:g} requests a second here; come again in {taken.wait:.3g} s"
        return Refusal(Denial.TOO_FAST, message, taken.wait)

    async def note_uses(self) -> int:
        uses, self._uses = self._uses, {}
        try:
            await self._store.note_use(uses)
        except BaseException:
            self._uses = uses | self._uses
            raise
        return len(uses)


class UseNotes(Service):
    """Stores when tokens were last used, every few seconds. At the end `note_uses` stores the rest."""

    name = "token uses"

    def __init__(self, tokens: Tokens, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._tokens = tokens

    async def run_once(self) -> float | None:
        await self._tokens.note_uses()
        return NOTE_EVERY


def _check_name(name: str) -> str:
    check_name(name, "name")
    if len(name) > 100:
        raise InvalidValue(f"the name of a token must have at most 100 characters, got {len(name)}")
    if _LIKE_AN_ID.fullmatch(name):
        raise InvalidValue("the name of a token must not look like a token or its id; choose one that tells who uses it")
    return name


def _check_owner(owner: str) -> str:
    if owner:
        check_name(owner, "owner")
    if len(owner) > 100:
        raise InvalidValue(f"the owner of a token must have at most 100 characters, got {len(owner)}")
    return owner


def _check_note(note: str) -> str:
    if len(note) > 1_000 or not note.isprintable():
        raise InvalidValue("note must have at most 1,000 characters and none that cannot be printed")
    return note


def _expiry(expires: Seconds | datetime, now: Instant) -> Instant:
    at = to_instant(expires, "expires") if isinstance(expires, datetime) else now + to_micros(expires, "expires")
    if not now < at <= LATEST:
        raise InvalidValue(f"expires must lie in the future and before the year 10000, got {expires}; to end a token now, revoke it")
    return at


def _grace(grace: Seconds) -> int:
    micros = to_micros(grace, "grace")
    if micros < 0:
        raise InvalidValue(f"grace must not be negative, got {grace}; 0 ends the old secret at once")
    return micros


def _described(token: TokenRecord) -> str:
    parts = [f"id {token.id}", f"scopes {', '.join(token.scopes)}"]
    if token.handlers:
        parts.append(f"handlers {', '.join(token.handlers)}")
    if token.owner:
        parts.append(f"owner {token.owner}")
    if token.addresses:
        parts.append(f"from {', '.join(token.addresses)}")
    if token.expires_at is not None:
        parts.append(f"expires {to_datetime(token.expires_at):%Y-%m-%d %H:%M:%S} UTC")
    return "; ".join(parts)


def _datetime(at: Instant | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def _not_found(name: str) -> TokenNotFound:
    return TokenNotFound(f"there is no token {public_name(name)!r}; `duetime tokens` lists all")
