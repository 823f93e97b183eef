"""Who may do what: scopes, stored tokens, the text of a token, rate limits, and the audit.

A token is `dt_<id>_<secret>`. The id is public: it finds the record and appears in the audit. Of the secret only a digest is stored.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.task import check_name

ID_BYTES = 8
SECRET_BYTES = 32
MAX_HANDLERS = 100
MAX_ADDRESSES = 100
# A higher limit would mean nothing: one process does not answer so many requests.
HIGHEST_RATE = 1_000_000.0
BURST_SECONDS = 2.0

_TEXT = re.compile(r"dt_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)


class Scope(StrEnum):
    """What a token is for.

    OWN: submit tasks, and look at and change those that the token's owner has submitted. READ: look at everything. SUBMIT: submit tasks.
    WORK: claim tasks and end their attempts, for workers over HTTP. OPERATE: cancel, retry, edit, gates and schedules. ADMIN: everything,
    tokens and the audit included.
    """

    OWN = "own"

    READ = "read"
    SUBMIT = "submit"
    WORK = "work"
    OPERATE = "operate"
    ADMIN = "admin"


# A submitter wants to see its tasks, and a retry or a schedule submits too. WORK stays apart: an operator does not claim tasks.
INCLUDED: dict[Scope, frozenset[Scope]] = {
    Scope.OWN: frozenset({Scope.OWN}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.WORK: frozenset({Scope.READ, Scope.WORK}),
    Scope.OPERATE: frozenset({Scope.READ, Scope.SUBMIT, Scope.OPERATE}),
    Scope.ADMIN: frozenset(Scope),
}


def parse_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    """Check the scopes of a token. Return them in the order of `Scope`, each once."""
    texts = [scopes] if isinstance(scopes, str) else list(scopes)
    for text in texts:
        if text not in tuple(Scope):
            raise InvalidValue(f"scope must be one of {', '.join(Scope)}, got {text!r}")
    if not texts:
        raise InvalidValue(f"a token needs at least one scope: {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in texts)


@functools.lru_cache(maxsize=64)  # called at every request; there are 63 results
def included(scopes: tuple[Scope, ...]) -> frozenset[Scope]:
    """Return all scopes that these include."""
    return frozenset[Scope]().union(*(INCLUDED[scope] for scope in scopes))


# ---- handlers ----


def parse_handlers(handlers: Iterable[str], scopes: Sequence[Scope]) -> tuple[str, ...]:
    """Check the handlers that a token is restricted to: names, or `shop.*` for all that begin so. None: no restriction."""
    patterns = tuple(dict.fromkeys([handlers] if isinstance(handlers, str) else handlers))
    for pattern in patterns:
        check_name(pattern, "handler")
        if "*" in pattern[:-1]:
            raise InvalidValue(f"handler must be a name, or a prefix that ends with one *, got {pattern!r}")
    if len(patterns) > MAX_HANDLERS:
        raise InvalidValue(f"a token names at most {MAX_HANDLERS} handlers, got {len(patterns)}; use a prefix such as shop.*")
    if patterns and Scope.ADMIN in scopes:
        raise InvalidValue("an admin token cannot be restricted to handlers, because it may create tokens that are not; use operate")
    return patterns


def fits(patterns: Sequence[str], handler: str) -> bool:
    """Return whether a token with these patterns is for a handler."""
    return not patterns or any(handler.startswith(pattern[:-1]) if pattern.endswith("*") else handler == pattern for pattern in patterns)


# ---- addresses ----


def parse_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """Check the networks that a token may be used from: addresses, or networks such as 10.0.0.0/8. None: from everywhere."""
    texts = [addresses] if isinstance(addresses, str) else list(addresses)
    try:
        networks = tuple(dict.fromkeys(str(ipaddress.ip_network(text)) for text in texts))
    except ValueError as error:
        raise InvalidValue(f"address must be an IP address or a network such as 10.0.0.0/8 or fd00::/8: {error}") from None
    if len(networks) > MAX_ADDRESSES:
        raise InvalidValue(f"a token names at most {MAX_ADDRESSES} networks, got {len(networks)}; give larger ones")
    return networks


@functools.lru_cache(maxsize=1_024)  # asked at every request
def comes_from(networks: Sequence[str], origin: str) -> bool:
    """Return whether a request from an address may use a token that is for these networks."""
    if not networks:
        return True
    try:
        address = ipaddress.ip_address(origin.partition("%")[0])
    except ValueError:  # such as a socket of the file system, which has no address
        return False
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((inner or address) in ipaddress.ip_network(network) for network in networks)


# ---- secrets ----


class TokenText(NamedTuple):
    """The parts of a token's text."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"dt_{self.id}_{self.secret}"


def read_token(text: str) -> TokenText | None:
    """Parse a token; return None if the text is not a token. White space around it is ignored: files and variables often have some."""
    match = _TEXT.fullmatch(text.strip())
    return None if match is None else TokenText(match[1], match[2])


def public_name(name: str) -> str:
    """Return a token's name as it may be shown and sent. It may be the token's text, of which only the id is public."""
    text = read_token(name)
    if text is not None:
        return text.id
    return "dt_…" if name.strip().startswith("dt_") else name


def digest(secret: str) -> str:
    """Return the digest that is stored of a secret.

    Plain SHA-256 is right here. Slow salted hashes (scrypt, Argon2) protect passwords that can be guessed. A secret of 256 random bits
    cannot be guessed, and a slow hash would cost each request tens of milliseconds.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token. `version` counts changes. After a rotation the old secret is valid until `old_until_at`.

    `rate` is how many requests per second it may make, None for any number. `owner` is who has it: what comes with it is submitted by
    them. `addresses` are the networks that it may be used from, none for everywhere.
    """

    id: str
    name: str
    owner: str = ""
    addresses: tuple[str, ...] = ()
    version: int = 1
    scopes: tuple[Scope, ...]
    handlers: tuple[str, ...] = ()
    digest: str
    old_digest: str | None = None
    old_until_at: Instant | None = None
    rate: float | None = None
    note: str = ""
    created_at: Instant
    created_by: str
    rotated_at: Instant | None = None
    expires_at: Instant | None = None
    last_used_at: Instant | None = None

    def expired(self, now: Instant) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def has_digest(self, digest: str, now: Instant) -> bool:
        """Return whether a digest is that of a secret which is valid now, in constant time."""
        is_new = hmac.compare_digest(digest, self.digest)
        is_old = hmac.compare_digest(digest, self.old_digest or self.digest)
        return is_new or (is_old and self.old_until_at is not None and now < self.old_until_at)

    def has_secret(self, secret: str, now: Instant) -> bool:
        """Return whether a secret is this token's, in constant time."""
        return self.has_digest(digest(secret), now)


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is signed in to the dashboard with a token. `digest` is of what the browser keeps.

    It is over at `expires_at`, and before that at `idle_at` unless it is used; and when the token is gone, has expired, or has another
    secret than the one whose digest is `token_digest`.
    """

    digest: str
    token: str
    token_digest: str
    origin: str
    created_at: Instant
    idle_at: Instant
    expires_at: Instant

    def over(self, now: Instant) -> bool:
        return now >= self.idle_at or now >= self.expires_at


def rotated(token: TokenRecord, new_digest: str, *, now: Instant, old_until_at: Instant, expires_at: Instant | None) -> TokenRecord:
    """Return the token with another secret. The present one stays valid until `old_until_at`; an older one does not."""
    old_is_valid = old_until_at > now
    return msgspec.structs.replace(
        token,
        version=token.version + 1,
        digest=new_digest,
        old_digest=token.digest if old_is_valid else None,
        old_until_at=old_until_at if old_is_valid else None,
        rotated_at=now,
        expires_at=expires_at,
    )


# ---- callers ----


class Denial(StrEnum):
    """Why a request is refused. MISSING, UNKNOWN and EXPIRED are about the token, SCOPE, HANDLER and ADDRESS about the request."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    SCOPE = "scope"
    HANDLER = "handler"
    ADDRESS = "address"
    TOO_FAST = "too fast"


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is refused, for a person to read. `wait` is the seconds until the next try, for TOO_FAST."""

    why: Denial
    message: str
    wait: float = 0.0


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller. `name` is stored as `by` in the audit; `owner`, or else the name, as `submitted_by` of tasks.

    `token` is the token's id.

    `scopes` are all allowed scopes. `handlers` are the patterns of the token: a request for several handlers is checked for each.
    """

    name: str
    token: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    handlers: tuple[str, ...] = ()
    origin: str = ""
    owner: str = ""

    @property
    def submitted_by(self) -> str:
        return self.owner or self.name

    def only_own(self, scope: Scope) -> bool:
        """Return whether the caller may do what a scope allows, but only with its owner's tasks."""
        return scope not in self.scopes and Scope.OWN in self.scopes

    def may(self, scope: Scope, handler: str | None = None) -> bool:
        return self.refusal(scope, handler) is None

    def refusal(self, scope: Scope, handler: str | None = None) -> Refusal | None:
        """Return why something is not allowed, None if it is. Without a handler only the scope counts."""
        if scope not in self.scopes:
            return Refusal(Denial.SCOPE, f"the token {self.name} lacks the scope {scope}; use one that has it")
        if handler is not None and not fits(self.handlers, handler):
            # the handler is not named: it may be known to the server only, by an alias or by a task's id
            return Refusal(Denial.HANDLER, f"the token {self.name} is for these handlers only: {', '.join(self.handlers)}")
        return None


def caller_of(token: TokenRecord, origin: str) -> Caller:
    return Caller(name=token.name, token=token.id, scopes=included(token.scopes), handlers=token.handlers, origin=origin, owner=token.owner)


# An unknown id and a wrong secret get the same answer, so that nobody can find out which ids exist.
NO_TOKEN = Refusal(Denial.MISSING, "a token is needed, as Authorization: Bearer dt_…; `duetime tokens create` makes one")
BAD_TOKEN = Refusal(Denial.UNKNOWN, "the token is not known here: mistyped, rotated or revoked; `duetime tokens` lists those that are")


def admit(token: TokenRecord | None, secret: str, now: Instant, origin: str = "") -> Refusal | None:
    """Return why a token is not valid, None if it is. Only a caller that has its secret learns that it has expired."""
    if token is None or not token.has_secret(secret, now):
        return BAD_TOKEN
    if token.expired(now):
        return Refusal(Denial.EXPIRED, f"the token {token.name} has expired; `duetime tokens rotate` with --expires makes it good again")
    return misplaced(token, origin)


def misplaced(token: TokenRecord, origin: str) -> Refusal | None:
    """Return the refusal of a token that is used from elsewhere than where it may be, None if it is not."""
    if comes_from(token.addresses, origin):
        return None
    return Refusal(Denial.ADDRESS, f"the token {token.name} may not be used from {origin or 'here'}; it is for some addresses only")


def lockout(token: TokenRecord, tokens: Iterable[TokenRecord], caller: Caller, now: Instant) -> str | None:
    """Return why revoking a token would lock somebody out of managing tokens over a server, None if it would not.

    It guards against a slip, not against an attack: two admins who revoke each other's tokens at the same time may both succeed. Who
    reaches the store makes a new token there.
    """
    if token.id == caller.token:
        return f"the token {token.name} is the one that makes this request, and nothing can be done with it afterwards"
    if Scope.ADMIN not in token.scopes or token.expired(now):
        return None
    if any(other.id != token.id and Scope.ADMIN in other.scopes and not other.expired(now) for other in tokens):
        return None
    return f"the token {token.name} is the last one with the scope admin, and without it nobody manages tokens over a server"


# ---- how often ----


def check_rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or not 0 < rate <= HIGHEST_RATE:
        raise InvalidValue(f"rate must be a number of requests a second above 0 and at most {HIGHEST_RATE:,.0f}, got {rate!r}")
    return float(rate)


def burst_of(rate: float) -> float:
    """Return how many requests may come at once after a pause."""
    return max(1.0, rate * BURST_SECONDS)


class Bucket(msgspec.Struct, frozen=True):
    """How many requests are left, at a moment of a monotonic clock. A level below zero is debt."""

    level: float
    at: float


class Taken(msgspec.Struct, frozen=True):
    """The bucket afterwards. `wait` is 0 if the request may pass, otherwise the seconds until it may."""

    bucket: Bucket
    wait: float


def take(bucket: Bucket | None, rate: float, burst: float, now: float, cost: float = 1.0) -> Taken:
    """Let a request pass if the bucket holds its cost. A bucket gains `rate` per second up to `burst`; a new one is full.

    A request that costs more than a full bucket passes when it is full and leaves debt: it is never refused for good, and in the
    long run no more than `rate` passes. A clock that went back adds nothing.
    """
    if bucket is None:
        bucket = Bucket(burst, now)
    now = max(now, bucket.at)
    level = min(burst, bucket.level + rate * (now - bucket.at))
    needed = min(cost, burst)
    if level >= needed:
        return Taken(Bucket(level - cost, now), 0.0)
    # a wait is never 0 here, or it would say that the request may pass
    return Taken(Bucket(level, now), max((needed - level) / rate, 1e-6))


# ---- the audit ----


class AuditOutcome(StrEnum):
    """DONE. REFUSED: not allowed, or not possible now. FAILED: something broke, and the action may or may not have happened."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action of an operator: who, what, on what, when, from where, and how it ended.

    `by` is the name of the token or user, `token` the token's id if there was one: a name can be used again, an id cannot. `action` is
    a plural noun and a verb, such as gates.pause or tokens.revoke.
    """

    id: str
    at: Instant
    by: str
    token: str | None = None
    action: str
    subject: str
    origin: str = ""
    outcome: AuditOutcome = AuditOutcome.DONE
    detail: str = ""
