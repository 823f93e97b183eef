"""Where verbs go: the map of shards, the stores behind it, and calls to one, to some or to all of them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from duetime.clock import monotonic
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.sharding import CONTROL, ShardEntry, ShardMap, cell_of, settled
from duetime.store import Store
from duetime.store.alerts import MAP, Document, DocumentChange, DocumentKind

T = TypeVar("T")
V = TypeVar("V")
Item = TypeVar("Item")

MAP_EVERY = 2.0  # seconds after which the map is read again, by whoever uses it next
MAP_LEASE = 8.0  # seconds for which a map that was read counts: less than a change takes (`SETTLING`)
IDENTITY = "identity"  # the document in a shard
_VARIABLE = re.compile(r"\$\{(\w+)\}")

MakeStore = Callable[[str], Store]


def same(id: str) -> str:
    """Return what an id is the id of."""
    return id


class Identity(msgspec.Struct, frozen=True):
    """What a shard knows of itself: whose it is, and its name there."""

    control: str
    name: str


async def read_map(control: Store) -> tuple[ShardMap, str] | None:
    """Return the map in control with its version as a document; None if the store has no shards."""
    for found in await control.alert_documents(DocumentKind.SHARDS, [MAP]):
        return msgspec.json.decode(found.body, type=ShardMap), found.version
    return None


async def write_map(control: Store, map: ShardMap, seen: str) -> bool:
    """Write a map in shard of the one that was seen; return whether it was still that."""
    return await control.change_alert_documents([DocumentChange(DocumentKind.SHARDS, MAP, seen, msgspec.json.encode(map))])


def with_variables(url: str) -> str:
    """Return a shard's URL with the variables of the environment that it names."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise InvalidValue(f"the URL of a shard names ${{{found[1]}}}, which is not set in the environment of this process")
        return os.environ[found[1]]

    return _VARIABLE.sub(value, url)


class ShardConnection:
    """A shard's store, opened when it is first needed. It must be the shard that the map means."""

    def __init__(self, entry: ShardEntry, control: str, make: MakeStore) -> None:
        self.name = entry.name
        self.entry = entry
        self.synced_gates = -1  # the version of control's gates that it has
        self.declared = False
        self.sync_after = 0.0  # the monotonic instant before which it is not asked to
        self._identity = Identity(control, entry.name)
        self._make = make
        self._store: Store | None = None
        self._door = asyncio.Lock()

    @property
    def opened(self) -> Store | None:
        return self._store

    async def ready(self) -> Store:
        """Return the store, open."""
        if self._store is None:
            async with self._door:
                if self._store is None:
                    self._store = await self._open()
        return self._store

    async def _open(self) -> Store:
        store = self._make(with_variables(self.entry.url))
        try:
            await store.open()
            await self._identify(store)
        except BaseException:
            await store.close()
            raise
        return store

    async def _identify(self, store: Store) -> None:
        found = await store.alert_documents(DocumentKind.SHARDS)
        if any(each.name == MAP for each in found):
            raise InvalidValue(f"{store.url} has shards of its own, so it cannot be shard {self.name}; give an empty database")
        identity = next((each for each in found if each.name == IDENTITY), None)
        if identity is None:
            change = DocumentChange(DocumentKind.SHARDS, IDENTITY, "", msgspec.json.encode(self._identity))
            if await store.change_alert_documents([change]):
                return
            [identity] = await store.alert_documents(DocumentKind.SHARDS, [IDENTITY])
        self._compare(identity, store.url)

    def _compare(self, identity: Document, url: str) -> None:
        known = msgspec.json.decode(identity.body, type=Identity)
        if known != self._identity:
            whose = "of another store" if known.control != self._identity.control else "here"
            raise InvalidValue(f"{url} is shard {known.name} {whose}, so it cannot be shard {self.name}; give an empty database")

    async def close(self) -> None:
        self._door = asyncio.Lock()
        store, self._store = self._store, None
        if store is not None:
            await store.close()


class Routing:
    """Control, the shards, and the map. Nothing in here knows what a verb means."""

    def __init__(self, control: Store, make: MakeStore, initial: ShardMap | None = None) -> None:
        self.control = control
        self._make = make
        self._initial = initial
        self._map: ShardMap | None = initial
        self._map_version = ""
        self._read_at = -MAP_LEASE
        self._shards: dict[str, ShardConnection] = {}
        self._held: dict[str, str] = {}  # where attempts are that this process has claimed, by task
        self._sent: dict[str, str] = {}  # where tasks went whose answer never came, by id
        self._claims = 0

    # ---- the map ----

    @property
    def map(self) -> ShardMap:
        if self._map is None:
            raise StoreUnavailable("the store is not open")
        return self._map

    async def _refreshed(self) -> ShardMap:
        """Return the map; read it again if it is time to. One that cannot be read counts until `MAP_LEASE` is over."""
        now = monotonic()
        if now - self._read_at < MAP_EVERY and self._map is not None:
            return self._map
        try:
            await self.read_map()
        except StoreUnavailable:
            if monotonic() - self._read_at >= MAP_LEASE or self._map is None:
                raise
        return self.map

    async def current(self) -> None:
        """Read the map again if it is time to and control answers. What only looks at tasks goes on with the one that is known."""
        try:
            await self._refreshed()
        except StoreUnavailable:
            if self._map is None:
                raise

    async def read_map(self) -> ShardMap:
        """Read the map now, and complete a change whose time has come."""
        sent_at = monotonic()
        found = await read_map(self.control)
        if found is None:
            if self._initial is None:
                raise StoreUnavailable("the map of shards is gone from control; restore it from a backup")
            await write_map(self.control, self._initial, "")
            return await self.read_map()
        map, version = found
        due = settled(map, self.control.now())
        if due is not None:
            await write_map(self.control, due, version)
            return await self.read_map()
        if version != self._map_version:
            await self._use(map)
        self._map_version, self._read_at = version, sent_at
        await self._sync()
        return map

    async def _use(self, map: ShardMap) -> None:
        self._map = map
        for entry in map.shards:
            if entry.name not in self._shards:
                self._shards[entry.name] = ShardConnection(entry, map.id, self._make)
        for gone in self._shards.keys() - set(map.names):
            await self._shards.pop(gone).close()

    async def _sync(self) -> None:
        """Bring what control decides to the shards."""

    # ---- calls ----

    def names(self) -> tuple[str, ...]:
        return self.map.names

    async def store_at(self, shard: str) -> Store:
        return self.control if shard == CONTROL else await self._shards[shard].ready()

    @asynccontextmanager
    async def visit(self, shard: str) -> AsyncIterator[Store]:
        """Lend the store of one shard; an error of it says which shard it is."""
        if shard == CONTROL:
            yield self.control
            return
        try:
            yield await self.store_at(shard)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"shard {shard} does not answer: {error}") from error

    async def at(self, shard: str, call: Callable[[Store], Awaitable[T]]) -> T:
        """Call a verb at one shard."""
        async with self.visit(shard) as store:
            return await call(store)

    async def everywhere(self, call: Callable[[Store], Awaitable[T]], names: Iterable[str] | None = None) -> dict[str, T]:
        """Call a verb at all names, or at these, at the same time. If one fails the others are done first."""
        await self.current()
        names = list(self.names() if names is None else names)
        answers = await asyncio.gather(*(self.at(name, call) for name in names), return_exceptions=True)
        found: dict[str, T] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found[name] = answer
        return found

    async def one_by_one(self, limit: int, call: Callable[[Store, int], Awaitable[Sequence[V]]]) -> list[V]:
        """Call a verb that has a limit at one shard after another, with what is left of it."""
        await self.current()
        done: list[V] = []
        for name in self.names():
            if len(done) < limit:
                async with self.visit(name) as store:
                    done += await call(store, limit - len(done))
        return done

    async def counted(self, limit: int, call: Callable[[Store, int], Awaitable[int]]) -> int:
        """Do the same for a verb that returns how many it dealt with."""
        await self.current()
        done = 0
        for name in self.names():
            if done < limit:
                async with self.visit(name) as store:
                    done += await call(store, limit - done)
        return done

    def shard_of(self, id: str) -> str:
        """Return where a task most likely is."""
        return self._held.get(id) or self.map.shard_of(cell_of(id))

    async def route(
        self,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        call: Callable[[Store, list[Item]], Awaitable[Sequence[V]]],
        missing: Callable[[V], bool],
    ) -> list[V]:
        """Call a verb on items where their tasks are; what is `missing` there is looked for everywhere else."""
        if not items:
            return []
        await self.current()
        answers: dict[int, V] = {}
        asked = [self.shard_of(id_of(item)) for item in items]
        await self._ask(items, answers, dict(enumerate(asked)), call)
        for shard in self.names():
            left = {index: shard for index, answer in answers.items() if missing(answer) and asked[index] != shard}
            if left:
                await self._ask(items, answers, left, call)
        return [answers[index] for index in range(len(items))]

    async def _ask(
        self,
        items: Sequence[Item],
        answers: dict[int, V],
        where: dict[int, str],
        call: Callable[[Store, list[Item]], Awaitable[Sequence[V]]],
    ) -> None:
        groups: dict[str, list[int]] = {}
        for index, shard in where.items():
            groups.setdefault(shard, []).append(index)

        async def ask(shard: str, indexes: list[int]) -> None:
            found = await self.at(shard, lambda store: call(store, [items[index] for index in indexes]))
            answers.update(zip(indexes, found, strict=True))

        outcomes = await asyncio.gather(*(ask(shard, indexes) for shard, indexes in groups.items()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
