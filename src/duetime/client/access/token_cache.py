"""A cache of the tokens, so that a request costs no read of the store."""

from __future__ import annotations

import asyncio

from duetime.clock import Clock
from duetime.errors import StoreUnavailable
from duetime.model.access import Bucket, TokenRecord, take
from duetime.store import Store

KEEP = 5.0  # seconds after which a change made by another process is noticed
KEEP_WITHOUT_STORE = 60.0  # seconds for which known tokens stay valid while the store cannot be read
TRY_AGAIN = 1.0  # seconds between reads of a store that does not answer
# An unknown id may be a new token, so the tokens are read again; the limit is for callers that invent ids.
READS_FOR_UNKNOWN = 1.0
READS_AT_ONCE = 10.0


class TokenCache:
    """All tokens of a store, read again after KEEP seconds, one read at a time.

    All are read at once, because there are few, and an invented id then costs nothing while the cache is fresh.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, TokenRecord] = {}
        self._read_at = float("-inf")
        self._changes = 0
        self._reading: asyncio.Event | None = None
        self._trouble: tuple[float, StoreUnavailable] | None = None
        self._unknown: Bucket | None = None

    def forget(self) -> None:
        """Read the tokens again at the next request, because this process has changed them. A read in progress does not count."""
        self._changes += 1
        self._read_at = float("-inf")
        self._trouble = None

    async def find(self, id: str) -> TokenRecord | None:
        """Return a token from the cache. Raises StoreUnavailable if the cache is too old and the store cannot be read."""
        if self._is_old(id):
            await self._renew(id)
        if self._trouble is not None and self._age >= KEEP_WITHOUT_STORE:
            raise StoreUnavailable(str(self._trouble[1]))
        return self._tokens.get(id)

    @property
    def _age(self) -> float:
        return self._clock.monotonic() - self._read_at

    def _is_old(self, id: str) -> bool:
        now = self._clock.monotonic()
        if self._trouble is not None and now - self._trouble[0] < TRY_AGAIN:
            return False
        if self._age >= KEEP:
            return True
        if id in self._tokens:
            return False
        taken = take(self._unknown, READS_FOR_UNKNOWN, READS_AT_ONCE, now)
        self._unknown = taken.bucket
        return taken.wait == 0.0

    async def _renew(self, id: str) -> None:
        """Read the tokens, or wait for a read in progress; a caller with a known token does not wait."""
        asked_at = self._clock.monotonic()
        while self._reading is not None:
            if id in self._tokens and self._age < KEEP_WITHOUT_STORE:
                return
            await self._reading.wait()
            if self._trouble is not None or self._read_at >= asked_at or (id in self._tokens and self._age < KEEP):
                return
        await self._read()

    async def _read(self) -> None:
        self._reading = done = asyncio.Event()
        began_at, changes = self._clock.monotonic(), self._changes
        try:
            tokens = await self._store.tokens()
        except StoreUnavailable as error:
            self._trouble = (self._clock.monotonic(), error)
        else:
            self._tokens = {token.id: token for token in tokens}
            self._trouble = None
            if changes == self._changes:
                self._read_at = began_at
        finally:
            self._reading = None
            done.set()
