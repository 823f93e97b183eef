"""`app.shards`: the databases that a store's tasks are spread over, and changing them while everything runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from duetime.errors import Conflict, DuetimeError, InvalidValue, StoreUnavailable
from duetime.ids import SHARDS, token
from duetime.model import sharding
from duetime.model.sharding import CONTROL, ShardEntry, ShardMap
from duetime.store import Store
from duetime.store.open import engine_of, file_of, store_from_url
from duetime.store.sharded.routing import ShardConnection, read_map, write_map
from duetime.store.sharded.store import ShardedStore

Problems: TypeAlias = list[str]


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as people see it. `control` is the store that the App's URL names.

    `state` is `active` if it gets new tasks, `draining` if not. `share` is its part of new tasks, from 0 to 1. `problem`: why it does not
    answer; then nothing is known of what it holds. `live` are its tasks that have not ended, `running` those of them that run.
    """

    name: str
    url: str
    state: str
    share: float
    problem: str | None = None
    live: int | None = None
    running: int | None = None
    finished: int | None = None


class Shards(Protocol):
    """`app.shards`: the databases that tasks are spread over."""

    async def list(self) -> list[ShardInfo]:
        """Return control and all shards, each with what it holds; control alone if the store has no shards."""
        ...

    async def add(self, name: str, url: str, *, start: bool | None = None) -> ShardInfo:
        """Add an empty database as a shard; `${NAME}` in its URL stands for a variable of each process's environment.

        With `start` it gets its share of new tasks within seconds. Nothing that is stored is moved, and nothing is paused. Without, it
        waits for `start`; so does a first shard, because processes that were started before it was added know of no shards.
        """
        ...

    async def start(self, name: str) -> ShardInfo:
        """Let a shard get new tasks."""
        ...

    async def drain(self, name: str) -> ShardInfo:
        """Let a shard get no new tasks; what it has is worked off there."""
        ...

    async def delete(self, name: str) -> None:
        """Forget a drained shard, with the tasks that have ended there. Raises Conflict while it has live ones."""
        ...

    async def check(self) -> Problems:
        """Return what is wrong with the shards, in sentences; nothing if all is well."""
        ...


class LocalShards(Shards):
    """The shards of a store."""

    def __init__(self, store: Callable[[], Store], *, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._opened = opened

    async def list(self) -> list[ShardInfo]:
        store = await self._open()
        if not isinstance(store, ShardedStore):
            return [await _info(store, CONTROL, store.url, "active", 1.0)]
        map = await store.read_map()
        return [await self._describe(store, map, name) for name in map.names]

    async def add(self, name: str, url: str, *, start: bool | None = None) -> ShardInfo:
        url = _stored_url(url)
        store = await self._open()
        control = store.control if isinstance(store, ShardedStore) else store
        for _ in range(10):
            found = await read_map(control)
            map, seen = found or (sharding.new_map(token(8)), "")
            starts = found is not None if start is None else start
            changed = sharding.with_shard(map, name, url, control.now(), starts=starts)
            await _try(changed, name)
            if await write_map(control, changed, seen):
                return ShardInfo(name=name, url=url, state="active" if starts else "draining", share=0.0, live=0, running=0, finished=0)
        raise StoreUnavailable("the shards change too fast; try again")

    async def start(self, name: str) -> ShardInfo:
        return await self._change(name, lambda store, map: sharding.with_tasks_for(map, name, store.now()))

    async def drain(self, name: str) -> ShardInfo:
        return await self._change(name, lambda store, map: sharding.without_tasks_for(map, name, store.now()))

    async def delete(self, name: str) -> None:
        store = await self._sharded()
        info = await self._describe(store, await store.read_map(), name)
        if info.problem is not None:
            raise StoreUnavailable(f"shard {name} does not answer, so nobody knows whether it has live tasks: {info.problem}")
        if info.live:
            raise Conflict(f"shard {name} has {info.live:,} live tasks; wait until they have ended, or cancel them")
        found = await read_map(store.control)
        assert found is not None
        if not await write_map(store.control, sharding.without_shard(found[0], name), found[1]):
            raise Conflict("the shards have changed meanwhile; try again")

    async def check(self) -> Problems:
        store = await self._open()
        if not isinstance(store, ShardedStore):
            return []
        problems: Problems = []
        map = await store.read_map()
        for name in map.names:
            try:
                async with store.visit(name) as part:
                    found = await part.inspect(repair=False)
            except DuetimeError as problem:
                problems.append(str(problem))
                continue
            problems += [f"{name}: {each.kind} {each.subject}: {each.detail}" for each in found]
        return problems

    async def _change(self, name: str, change: Callable[[Store, ShardMap], ShardMap]) -> ShardInfo:
        store = await self._sharded()
        for _ in range(10):
            found = await read_map(store.control)
            assert found is not None
            changed = change(store.control, found[0])
            if await write_map(store.control, changed, found[1]):
                return await self._describe(store, await store.read_map(), name)
        raise StoreUnavailable("the shards change too fast; try again")

    async def _describe(self, store: ShardedStore, map: ShardMap, name: str) -> ShardInfo:
        if name not in map.names:
            raise InvalidValue(f"there is no shard {name!r}; there are: {', '.join(map.names[1:]) or 'none'}")
        entry = map.entry(name) or ShardEntry(name=CONTROL, url=store.control.url, state="draining")
        share = sum(map.shard_of(cell) == name for cell in range(SHARDS)) / SHARDS
        state = "active" if share else entry.state
        try:
            async with store.visit(name) as part:
                return await _info(part, name, entry.url, state, share)
        except DuetimeError as problem:
            return ShardInfo(name=name, url=entry.url, state=state, share=share, problem=str(problem))

    async def _open(self) -> Store:
        await self._opened()
        return self._store()

    async def _sharded(self) -> ShardedStore:
        store = await self._open()
        if not isinstance(store, ShardedStore):
            raise InvalidValue("this store has no shards; add the first one: duetime shards add NAME URL")
        return store


async def _info(store: Store, name: str, url: str, state: str, share: float) -> ShardInfo:
    counts = await store.counts()
    running = sum(lane.running for lane in counts.lanes)
    live = running + sum(lane.due + lane.later + lane.blocked for lane in counts.lanes)
    finished = sum(each.count for each in counts.finals)
    return ShardInfo(name=name, url=url, state=state, share=share, live=live, running=running, finished=finished)


def _stored_url(url: str) -> str:
    """Return a URL as it is stored: it must mean the same to every process, and have no secret."""
    engine, url = engine_of(url)
    if engine == "sqlite" and ":memory:" in url:
        raise InvalidValue("a shard must outlast this process; sqlite:///:memory: does not")
    password = urlsplit(url).password
    if password and "${" not in password:
        raise InvalidValue(
            "the URL of a shard is stored for all processes to read, so it must have no password: write ${NAME} instead, which stands for "
            "a variable of their environment, or let the driver find it (PGPASSFILE)"
        )
    path = file_of(url)
    return url if path is None or path.is_absolute() else f"sqlite:///{path.absolute()}"


async def _try(map: ShardMap, name: str) -> None:
    """Open the new shard once, and let it know whose it is; raise if it cannot be one."""
    entry = map.entry(name)
    assert entry is not None
    shard = ShardConnection(entry, map.id, store_from_url)
    try:
        await shard.ready()
    finally:
        await shard.close()
