"""The store on Valkey or Redis: tasks on their way there, everything else in a SQL store beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from duetime.clock import Clock
from duetime.errors import StoreUnavailable
from duetime.ids import token
from duetime.runtime.permissions import make_file
from duetime.store import Store
from duetime.store.redis.address import Address, Durable, read_address
from duetime.store.redis.confirmed import Confirmed
from duetime.store.redis.controlled import Controlled
from duetime.store.redis.mirrored import Mirrored
from duetime.store.redis.reading import Reading
from duetime.store.redis.refusing import Refusing
from duetime.store.redis.requests import Requests
from duetime.store.redis.server import Server
from duetime.store.redis.upkeep import Upkeep
from duetime.store.redis.work import Working
from duetime.store.redis.workers import Registering
from duetime.store.shard import Listener
from duetime.store.traits import Traits
from duetime.store.values import Hint, HintKind

FORMAT = "1"
_KEPT = {
    ("yes", "always"): "a crash of the server and a loss of power (appendfsync=always)",
    ("yes", "everysec"): "a crash of the server; a loss of power may take back the last one or two seconds (appendfsync=everysec)",
    ("yes", "no"): "a crash of the server; a loss of power may take back the last half a minute (appendfsync=no)",
}
_CONFIRMED: dict[Durable, str] = {
    "disk": "a crash of the server and a loss of power; a replica that takes over may lack the last ones",
    "replica": "the loss of the server, if the replica that had it takes over",
    "both": "the loss of the server, if the replica that had it takes over, and a loss of power of both",
}


def durability(appendonly: str, appendfsync: str, durable: Durable = "memory") -> str:
    """Return what a returned write survives, in two sentences for people at most."""
    if durable == "memory":
        kept = _KEPT.get((appendonly, appendfsync), "nothing but a crash of clients: the server writes no appendonly file")
        return f"A returned write survives {kept}; a replica that takes over may lack the last ones."
    return (
        f"A submission, cancel or edit that has returned survives {_CONFIRMED[durable]} (durable={durable}). "
        "Ends of attempts do not wait for that: one that is lost lets its task run again."
    )


class BothListeners:
    """A subscription to the hints of the server and of control."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


class RedisStore(Confirmed, Upkeep, Mirrored, Requests, Reading, Working, Registering, Refusing, Controlled):
    """A server and a SQL store behind the verbs of `duetime.store.Store`."""

    def __init__(self, address: Address, control: Store, *, clock: Clock | None = None) -> None:
        super().__init__(address, control, clock)
        self.traits = Traits(atomic="shard", durability=durability("", ""), liveness="lease", claim_ahead=2_000, settles_at_once=2)
        self._door = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, store_of: Callable[[str], Store], *, clock: Clock | None = None) -> Self:
        """Read a URL; `store_of` makes the store of its `control`."""
        address = read_address(url)
        return cls(address, store_of(address.control), clock=clock)

    @property
    def output_folder(self) -> str | None:
        return self._control.output_folder

    async def open(self, *, migrate: bool = True) -> None:
        async with self._door:
            if self._server is not None:
                return
            await self._control.open(migrate=migrate)
            server = Server(self._address, self._keys, self._clock)
            try:
                await self._meet(server)
            except BaseException:
                await server.close()
                await self._control.close()
                raise
            self._server = server
            self._wakeups.open(server)
            await self._learn_lanes()
            await self._mirror_gates()
            await self._mirror_targets()

    async def _meet(self, server: Server) -> None:
        """Check that this version can use what is there, that the server removes nothing by itself, and that it knows this control."""
        policy = await server.call("CONFIG", "GET", "maxmemory-policy")
        if policy and policy[-1] != b"noeviction":
            raise StoreUnavailable(
                f"{self.url} has maxmemory-policy {policy[-1].decode()}, which removes tasks when memory is short; set it to noeviction"
            )
        appendonly, appendfsync = [(await server.call("CONFIG", "GET", name))[-1].decode() for name in ("appendonly", "appendfsync")]
        said = durability(appendonly, appendfsync, self._address.durable)
        self.traits = msgspec.structs.replace(self.traits, durability=said)
        await self._check_durable(server)
        await server.call("HSETNX", self._keys.meta, "format", FORMAT)
        stored = await server.call("HGET", self._keys.meta, "format")
        if stored.decode() != FORMAT:
            raise StoreUnavailable(f"{self.url} was written by a newer version of Duetime (format {stored.decode()}); upgrade this one")
        identity = await asyncio.to_thread(self._identity)
        await server.call("HSETNX", self._keys.meta, "control", identity)
        known = (await server.call("HGET", self._keys.meta, "control")).decode()
        if known != identity:
            raise StoreUnavailable(
                f"{self.url} belongs to another control than {self._control.url}: schedules, gates and tokens would exist twice. Let all "
                "programs name the same one, on several hosts a PostgreSQL database: redis://…?control=postgresql://…"
            )

    async def _check_durable(self, server: Server) -> None:
        """Refuse a level that cannot be had here. A replica that was there before may come back, so then only new tasks wait for it."""
        link, durable = await server.link(), self._address.durable
        server.waiting.check(link, durable)
        if durable in ("replica", "both"):
            if link.replicas:
                await server.call("HSETNX", self._keys.meta, "replicated", 1)
            elif not await server.call("HEXISTS", self._keys.meta, "replicated"):
                raise StoreUnavailable(f"durable={durable} needs a replica, and none is connected to {self.url} ({link.server})")

    def _identity(self) -> str:
        """Return what tells control from any other: what stands in a file beside it, or its address."""
        folder = self._control.output_folder
        if folder is None:
            return self._control.url
        path = Path(folder).parent / "identity"
        if not path.exists():
            make_file(str(path))
            with path.open("a+") as file:
                file.seek(0)
                if not file.read():
                    file.write(token(16))
        return path.read_text().strip()

    async def close(self) -> None:
        self._door = asyncio.Lock()  # a later event loop needs its own
        server, self._server = self._server, None
        await self._wakeups.close()
        if server is not None:
            await server.close()
        await self._control.close()

    async def ping(self) -> None:
        await self._opened.call("PING")
        await self._control.ping()

    def script(self) -> str:
        return self._control.script()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        _ = self._opened

        def of_control(hint: Hint) -> None:
            if hint.kind not in (HintKind.DUE, HintKind.DONE):
                on_hint(hint)

        return BothListeners(self._wakeups.listen(on_hint), self._control.listen(of_control))
