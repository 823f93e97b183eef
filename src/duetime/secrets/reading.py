"""Reading secrets where an attempt uses them: from the store, with a small cache that follows changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from duetime.clock import monotonic
from duetime.errors import SecretNotFound, SecretUnreadable, StoreUnavailable
from duetime.model.secrets import SealedSecret
from duetime.secrets.keys import KeyRing, no_keys
from duetime.secrets.redacting import Redactor
from duetime.store.secrets import SecretStore

KEEP = 3.0  # seconds after which a change is noticed
KEEP_WITHOUT_STORE = 60.0  # seconds for which known values are used while the store cannot be read
TRY_AGAIN = 1.0  # seconds between reads of a store that does not answer
MOST_CACHED = 1_000


class Revealed(msgspec.Struct, frozen=True):
    """The live values of a secret, the newest first, and what blanks them."""

    values: tuple[str, ...]
    redactor: Redactor

    @classmethod
    def of(cls, values: Sequence[str]) -> Revealed:
        return cls(tuple(values), Redactor.of(values))

    def __repr__(self) -> str:
        return f"<Revealed, {len(self.values)} versions>"


class SecretReader(Protocol):
    """Where the attempts of a worker get secrets."""

    async def reveal(self, name: str) -> Revealed:
        """Return the live values of a secret. Raises SecretNotFound, or SecretUnreadable if no key here opens the newest one."""
        ...


class GivenSecrets(SecretReader):
    """Plain values, for tests; what they lack comes from somewhere else."""

    def __init__(self, values: Mapping[str, str], otherwise: SecretReader, advice: str) -> None:
        self._values = values
        self._otherwise = otherwise
        self._advice = advice

    async def reveal(self, name: str) -> Revealed:
        if name in self._values:
            return Revealed.of([self._values[name]])
        try:
            return await self._otherwise.reveal(name)
        except (SecretNotFound, SecretUnreadable) as error:
            raise type(error)(f"{error}. {self._advice}") from None


class _Cached:
    __slots__ = ("read_at", "renew_at", "revealed", "rows")

    def __init__(self, rows: list[SealedSecret], revealed: Revealed, read_at: float) -> None:
        self.rows = rows
        self.revealed = revealed
        self.read_at = read_at
        self.renew_at = read_at + KEEP


class StoredSecrets(SecretReader):
    """The secrets of a store. A value in use is read again every few seconds, by one attempt at a time.

    What cannot be found or read is not remembered: an attempt right after a put must find it.
    """

    def __init__(self, store: SecretStore, keys: KeyRing | None, *, now: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._keys = keys
        self._now = now
        self._cache: dict[str, _Cached] = {}
        self._reading = asyncio.Lock()

    async def reveal(self, name: str) -> Revealed:
        known = self._usable(name, to_wait=self._reading.locked())
        if known is not None:
            return known
        async with self._reading:
            return self._usable(name) or await self._read(name)

    def _usable(self, name: str, *, to_wait: bool = False) -> Revealed | None:
        """Return a known value that need not be read again now; also an older one while somebody reads."""
        cached, now = self._cache.get(name), self._now()
        if cached is None or now >= (cached.read_at + KEEP_WITHOUT_STORE if to_wait else cached.renew_at):
            return None
        return cached.revealed

    async def _read(self, name: str) -> Revealed:
        cached, began_at = self._cache.get(name), self._now()
        try:
            [rows] = await self._store.sealed_secrets([name])
        except StoreUnavailable:
            if cached is None or began_at >= cached.read_at + KEEP_WITHOUT_STORE:
                raise
            cached.renew_at = self._now() + TRY_AGAIN
            return cached.revealed
        self._cache.pop(name, None)
        revealed = cached.revealed if cached is not None and cached.rows == rows else self._open(name, rows)
        if len(self._cache) >= MOST_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = _Cached(rows, revealed, began_at)
        return revealed

    def _open(self, name: str, rows: Sequence[SealedSecret]) -> Revealed:
        if not rows:
            raise SecretNotFound(f"there is no secret {name!r}; put it with `duetime secrets put`, then retry the task")
        if self._keys is None:
            raise SecretUnreadable(no_keys(f"the secret {name!r} cannot be read"))
        newest, *former = rows
        values = [self._keys.open(newest)]
        for each in former:
            try:
                values.append(self._keys.open(each))
            except SecretUnreadable:  # its key is gone, and it is good for some hours at most
                continue
        return Revealed.of(values)
