"""`app.secrets`: values that targets send and sign with. They can be put and deleted, but not read back."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Protocol

import msgspec

from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_micros
from duetime.errors import Conflict, InvalidValue, SecretNotFound, SecretUnreadable
from duetime.model.secrets import SealedSecret, SecretVersion, check_value
from duetime.model.task import check_name
from duetime.model.wording import count
from duetime.secrets.keys import KeyRing, no_keys
from duetime.store import Store

GRACE = 86_400.0  # seconds for which the former value stays good after a put
MOST_SECRETS = 10_000
BATCH = 100  # secrets that are read at once; each may have ten versions of 64 KB
RACES = 20  # puts of others at the same moment, before ours gives up


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as people see it: everything but its value.

    `version` is the newest one and `versions` how many are good now; former ones are until `old_until_at`. `key` is the id of the key
    that sealed the newest. `readable`: the process that answers has the keys of all of them.
    """

    name: str
    version: int
    versions: int
    key: str
    readable: bool
    created_at: datetime
    created_by: str
    old_until_at: datetime | None

    def __str__(self) -> str:
        former = "" if self.old_until_at is None else f"; former values are good until {self.old_until_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"version {self.version}, sealed with the key {self.key}{former}"


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """What `rotate` did: how many versions were sealed anew with the key `key`, and which secrets no key here can read."""

    key: str
    rotated: int
    unreadable: list[str]

    def __str__(self) -> str:
        left = f"; no key opens {', '.join(self.unreadable)}" if self.unreadable else ""
        return f"{count(self.rotated, 'version')} sealed anew with the key {self.key}{left}"


class Secrets(Protocol):
    """Secrets by name."""

    async def put(self, name: str, value: str, *, grace: Seconds = GRACE, by: str | None = None) -> SecretInfo:
        """Store a value of 1 to 65,536 bytes. Attempts use it within seconds.

        The former value stays good for `grace`, for signatures that are under way; 0 ends it now, if it has leaked. To put the
        value that is stored already changes nothing. Raises Conflict if there is no key to seal it with. `by` is who puts it, by
        default the user of this program; a server records the name of the token.
        """
        ...

    async def list(self) -> list[SecretInfo]:
        """Return all secrets by name, without their values."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a secret with all its versions. Raises SecretNotFound if there is none."""
        ...

    async def rotate(self) -> Rotation:
        """Seal everything anew with the first key. Then the keys after it can be taken out of the ring."""
        ...


class LocalSecrets(Secrets):
    """Secrets of a store."""

    def __init__(self, store: Store, keys: KeyRing | None, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._keys = keys
        self._user = user
        self._opened = opened

    async def put(self, name: str, value: str, *, grace: Seconds = GRACE, by: str | None = None) -> SecretInfo:
        check_secret_name(name)
        check_value(value)
        kept = check_grace(grace)
        await self._opened()
        keys = self._ring("secrets cannot be stored")
        for _ in range(RACES):
            now = self._store.now()
            [stored] = await self._store.sealed_secrets([name])
            if stored and _holds(keys, stored[0], value) and all((each.until_at or 0) <= now + kept for each in stored[1:]):
                return self._info(stored)
            if not stored and len({each.name for each in await self._store.secrets()}) >= MOST_SECRETS:
                raise Conflict(f"there are {MOST_SECRETS:,} secrets already; delete those that nobody uses")
            version = stored[0].version + 1 if stored else 1
            key, sealed = keys.seal(name, version, value)
            new = SealedSecret(name=name, version=version, key=key, sealed=sealed, created_at=now, created_by=by or self._user)
            if await self._store.put_secret(new, min(now + kept, LATEST)):
                [versions] = await self._store.sealed_secrets([name])
                return self._info(versions or [new])
        raise Conflict(f"others keep changing the secret {name!r} at this moment; try again")

    async def list(self) -> builtins.list[SecretInfo]:
        await self._opened()
        return [self._info([*versions]) for _, versions in groupby(await self._store.secrets(), key=lambda each: each.name)]

    async def delete(self, name: str) -> None:
        check_secret_name(name)
        await self._opened()
        if not await self._store.remove_secret(name):
            raise SecretNotFound(f"there is no secret {name!r}; `duetime secrets` lists all")

    async def rotate(self) -> Rotation:
        await self._opened()
        keys = self._ring("secrets cannot be sealed anew")
        rotated, unreadable = 0, set[str]()
        while True:
            names = {each.name for each in await self._store.secrets() if each.key != keys.first} - unreadable
            if not names:
                return Rotation(key=keys.first, rotated=rotated, unreadable=sorted(unreadable))
            # others may put a version with another key meanwhile, so it looks again until none is left
            for some in _some(names):
                changes = []
                for sealed in [each for versions in await self._store.sealed_secrets(some) for each in versions if each.key != keys.first]:
                    try:
                        key, again = keys.seal(sealed.name, sealed.version, keys.open(sealed))
                    except SecretUnreadable:
                        unreadable.add(sealed.name)
                    else:
                        changes.append((sealed, msgspec.structs.replace(sealed, key=key, sealed=again)))
                rotated += sum(await self._store.reseal_secrets(changes))

    async def unreadable(self) -> dict[str, str]:
        """Return the secrets of which a version cannot be read with the keys here, with the reason. Every one of them is opened."""
        await self._opened()
        found: dict[str, str] = {}
        keys = self._ring("secrets cannot be read")
        for some in _some({each.name for each in await self._store.secrets()}):
            for sealed in [each for versions in await self._store.sealed_secrets(some) for each in versions]:
                try:
                    keys.open(sealed)
                except SecretUnreadable as error:
                    found.setdefault(sealed.name, f"version {sealed.version}: {error}")
        return found

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def _ring(self, what: str) -> KeyRing:
        if self._keys is None:
            raise Conflict(no_keys(what))
        return self._keys

    def _info(self, versions: Sequence[SecretVersion]) -> SecretInfo:
        newest, *former = versions
        ends = [each.until_at for each in former if each.until_at is not None]
        return SecretInfo(
            name=newest.name,
            version=newest.version,
            versions=len(versions),
            key=newest.key,
            readable=self._keys is not None and all(each.key in self._keys for each in versions),
            created_at=to_datetime(newest.created_at),
            created_by=newest.created_by,
            old_until_at=to_datetime(max(ends)) if ends else None,
        )


def _holds(keys: KeyRing, sealed: SealedSecret, value: str) -> bool:
    try:
        return keys.open(sealed) == value
    except SecretUnreadable:
        return False


def _some(names: Iterable[str]) -> Iterator[builtins.list[str]]:
    """Yield names, some at a time."""
    ordered = sorted(names)
    return (ordered[index : index + BATCH] for index in range(0, len(ordered), BATCH))


def check_secret_name(name: str) -> str:
    return check_name(name, "the name of a secret")


def check_grace(grace: Seconds) -> Instant:
    """Return how many microseconds a former value stays good."""
    micros = to_micros(grace, "grace")
    if micros < 0:
        raise InvalidValue(f"grace must not be negative, got {grace}; 0 ends the former value at once")
    return micros
