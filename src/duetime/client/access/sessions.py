"""People who are signed in to the dashboard: sessions, each with a token, checked at every request without a read of the store.

What a browser keeps is a random secret that is good for the dashboard only; the token's own text stays with the person. A session is in
the store, so that every server knows it, and signing out or revoking the token ends it on all of them within five seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from duetime.client.access.service import Tokens
from duetime.clock import SECOND, Clock, SystemClock
from duetime.model.access import Bucket, Caller, Denial, Refusal, SessionRecord, digest, read_token, take
from duetime.store import Store

LONGEST = 12 * 3_600 * SECOND
IDLE = 3_600 * SECOND  # a page that is open asks again and again, so this is the time after the last one was closed
RENEW_AFTER = 300 * SECOND  # used sessions are renewed no more often, which keeps reading free of writes
KEEP = 5.0  # seconds after which it is noticed that a session was ended by another process
MOST_KEPT = 10_000
# Somebody may guess cookies or tokens. Neither can be guessed; the limits keep guesses from becoming load.
UNKNOWN_RATE, UNKNOWN_BURST = 5.0, 50.0
SIGN_IN_RATE, SIGN_IN_BURST = 0.5, 10.0
MOST_ORIGINS = 10_000

_SECRET_BYTES = 32


class Sessions:
    """The sessions of a store."""

    def __init__(
        self,
        store: Callable[[], Store],
        tokens: Callable[[], Tokens],
        *,
        clock: Clock | None = None,
        random_hex: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock or SystemClock()
        self._random_hex = random_hex
        self._known: dict[str, SessionRecord] = {}
        self._read_at = float("-inf")
        self._unknown: Bucket | None = None
        self._failures: dict[str, Bucket] = {}

    async def begin(self, text: str, *, origin: str) -> tuple[str, Caller] | Refusal:
        """Sign somebody in with the text of a token. Return what the browser keeps, and who it is; or why not."""
        attempt = take(self._failures.get(origin), SIGN_IN_RATE, SIGN_IN_BURST, self._clock.monotonic())
        if attempt.wait:
            message = f"too many tokens from here were not good; try again in {max(1, round(attempt.wait))} s"
            return Refusal(Denial.TOO_FAST, message, attempt.wait)
        caller = await self._tokens().identify(text, origin=origin)
        parts = read_token(text)
        if isinstance(caller, Refusal) or parts is None:
            if len(self._failures) >= MOST_ORIGINS:
                self._failures.clear()
            self._failures[origin] = attempt.bucket
            return caller if isinstance(caller, Refusal) else Refusal(Denial.UNKNOWN, "this is not a token")
        secret, now = self._random_hex(_SECRET_BYTES), self._store().now()
        session = SessionRecord(
            digest=digest(secret),
            token=parts.id,
            token_digest=digest(parts.secret),
            origin=origin[:200],
            created_at=now,
            idle_at=now + IDLE,
            expires_at=now + LONGEST,
        )
        await self._store().put_session(session)
        self._keep(session)
        return secret, caller

    async def identify(self, secret: str | None, *, origin: str = "") -> Caller | Refusal:
        """Return who a browser's secret belongs to, or why it is good no more."""
        if not secret:
            return Refusal(Denial.MISSING, "sign in with a token")
        session = await self._find(digest(secret))
        now = self._store().now()
        if session is None or session.over(now):
            return Refusal(Denial.EXPIRED, "the session is over; sign in again")
        caller = await self._tokens().holder(session.token, session.token_digest, origin=origin)
        if isinstance(caller, Caller) and session.idle_at - now < IDLE - RENEW_AFTER:
            renewed = msgspec.structs.replace(session, idle_at=now + IDLE)
            self._known[session.digest] = renewed
            await self._store().renew_session(session.digest, renewed.idle_at)
        return caller

    async def end(self, secret: str) -> None:
        """Sign out."""
        self._known.pop(digest(secret), None)
        await self._store().remove_session(digest(secret))

    async def _find(self, key: str) -> SessionRecord | None:
        """Return a session, from memory if it was read a moment ago. All that are known are read again at once, in one query."""
        now = self._clock.monotonic()
        if now - self._read_at >= KEEP:
            asked = list({*self._known, key})
            found = await self._store().find_sessions(asked)
            self._known = {each.digest: each for each in found if each is not None}
            self._read_at = now
        elif key not in self._known:
            taken = take(self._unknown, UNKNOWN_RATE, UNKNOWN_BURST, now)
            self._unknown = taken.bucket
            if taken.wait == 0.0:
                [one] = await self._store().find_sessions([key])
                if one is not None:
                    self._keep(one)
        return self._known.get(key)

    def _keep(self, session: SessionRecord) -> None:
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[session.digest] = session
