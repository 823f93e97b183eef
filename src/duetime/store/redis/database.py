"""What all roles of the store share: the server, the SQL store beside it, the clock, the lanes, the gates and the wake-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from duetime.clock import Clock, Instant
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.claim_order import ClaimOrder
from duetime.model.gate import Gate, Gates
from duetime.model.names import HandlerNames
from duetime.model.task import TaskRecord
from duetime.runtime.forks import Original
from duetime.store import Store
from duetime.store.redis.address import Address
from duetime.store.redis.changes import Changes
from duetime.store.redis.keys import Keys
from duetime.store.redis.link import Word
from duetime.store.redis.records import Stored, read_content, read_end, read_facts, read_progress, record_of
from duetime.store.redis.scripts import CHANGE, MIRROR, READ, Script
from duetime.store.redis.server import Server
from duetime.store.redis.wakeups import Wakeups
from duetime.store.server_clock import ServerClock
from duetime.store.values import HintKind

READ_AT_ONCE = 500  # tasks of one script: it holds the server for about two milliseconds
ROUNDS = 100  # how often a change is decided anew because others changed the same tasks meanwhile


class Mirror(msgspec.Struct):
    """Gates and names of handlers as they are copied from control."""

    gates: list[Gate]
    aliases: dict[str, str]


_read_mirror = msgspec.json.Decoder(Mirror).decode


def refused(what: str) -> InvalidValue:
    """Return the refusal of something that this store cannot do."""
    return InvalidValue(f"a Redis store has no {what} yet; use a PostgreSQL or SQLite store for handlers that need it (docs/redis.md)")


def _last(name: str, named: Mapping[str, str]) -> str:
    """Return the name that a name leads to, over names in between."""
    for _ in range(len(named)):
        if name not in named:
            break
        name = named[name]
    return name


class OpenServer:
    """One server and the SQL store beside it. Each role of the store is a class on top of this one."""

    def __init__(self, address: Address, control: Store, clock: Clock | None) -> None:
        self._address = address
        self._control = control
        self._keys = Keys(address.prefix)
        self._clock = ServerClock(clock)
        self._claim_order = ClaimOrder()
        self._server: Server | None = None
        self._wakeups = Wakeups(self._keys.channel)
        self._lanes: frozenset[str] = frozenset()
        self._gates = Gates()
        self._names = HandlerNames()
        self._original = Original()

    @property
    def url(self) -> str:
        return self._address.shown

    @property
    def _opened(self) -> Server:
        if self._server is None or self._original.copied:
            raise StoreUnavailable(f"the store {self.url} is not open; await open() first")
        return self._server

    def now(self) -> Instant:
        return self._clock.now()

    def reached(self) -> Instant:
        return self._clock.reached()

    def _hint(self, kind: HintKind, at: Instant | None = None) -> None:
        self._wakeups.send(kind, at)

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        return await self._opened.run(script, keys, arguments)

    # ---- tasks ----

    async def _read_tasks(self, ids: Sequence[str]) -> tuple[Instant, dict[str, Stored]]:
        """Return the server's time, and those of these tasks that there are."""
        now, found = self.now(), {}
        for start in range(0, max(1, len(ids)), READ_AT_ONCE):
            some = ids[start : start + READ_AT_ONCE]
            now, *rows = await self._run(READ, [], some)
            for id, (facts, content, end, progress) in zip(some, rows, strict=True):
                if facts is not None and content is not None:
                    found[id] = Stored(
                        id,
                        facts,
                        read_facts(facts),
                        read_content(content),
                        None if end is None else read_end(end),
                        None if progress is None else read_progress(progress),
                    )
        return now, found

    async def _records(self, ids: Sequence[str]) -> dict[str, TaskRecord]:
        _, found = await self._read_tasks(ids)
        return await self._records_of(found.values())

    async def _records_of(self, stored: Iterable[Stored]) -> dict[str, TaskRecord]:
        """Return records. The error of a task that goes on is that of its last attempt, which is looked up where there was one."""
        stored = list(stored)
        going_on = [each for each in stored if each.facts.f is None and each.facts.a - (each.facts.s == "r") > 0]
        commands = [("HGET", self._keys.attempts(each.id), each.facts.a - (each.facts.s == "r")) for each in going_on]
        ends = await self._opened.call_all(commands) if commands else []
        errors = {each.id: read_end(end).error for each, end in zip(going_on, ends, strict=True) if end is not None}
        return {each.id: record_of(each, errors.get(each.id)) for each in stored}

    def _changes(self) -> Changes:
        return Changes(self._keys)

    async def _write(self, changes: Changes) -> bool:
        """Make changes if everything is still as they expect it; return whether they were made."""
        if changes.is_empty:
            return True
        done: int = await self._run(CHANGE, changes.keys, changes.arguments)
        if done > 1:
            await self._release()
        return done > 0

    async def _release(self) -> None:
        """Move tasks that wait for no other one any more to their lanes. Whoever freed them does that, or the sweeper if he died."""
        while ids := await self._opened.call("ZRANGE", self._keys.freed, 0, READ_AT_ONCE - 1):
            now, found = await self._read_tasks([id.decode() for id in ids])
            changes = self._changes()
            for stored in found.values():
                changes.seen(stored)
                changes.do("ZREM", self._keys.freed, stored.id)
                if stored.facts.s == "b" and not stored.facts.q:
                    changes.leave(stored)
                    changes.wait(stored.id, stored.facts, now)
            for id in ids:
                if id.decode() not in found:
                    changes.do("ZREM", self._keys.freed, id)
            await self._write(changes)
            self._hint(HintKind.DUE)

    # ---- lanes, gates and names ----

    async def _learn_lanes(self) -> None:
        found: list[bytes] = await self._opened.call("HKEYS", self._keys.lanes)
        self._lanes = frozenset(name.decode() for name in found)

    async def _learn_gates(self) -> None:
        """Read the copy of the gates and names that claims must know."""
        version, text = await self._opened.call("HMGET", self._keys.meta, "gates", "mirror")
        if text is not None:
            mirror = _read_mirror(text)
            self._names = HandlerNames(mirror.aliases)
            self._gates = Gates(int(version), mirror.gates, self._names)

    async def _mirror_gates(self) -> None:
        """Copy gates and names from control. Claims obey them once this has returned, whichever process they come from."""
        gates = await self._control.gates()
        named = {alias: each.name for each in await self._control.declarations() for alias in each.aliases}
        aliases = {alias: _last(alias, named) for alias in named}  # a handler may have been renamed twice
        text = msgspec.json.encode(Mirror(gates.as_set, aliases))
        await self._run(MIRROR, [], ["gates", gates.version, "mirror", text])
        await self._learn_gates()

    async def _mirror_targets(self) -> None:
        versions = await self._control.target_versions()
        await self._run(MIRROR, [], ["targets", versions.version, "", ""])

    def _key_fields(self, handler: str, key: str) -> list[str]:
        """Return under which names a key is looked up: first that of the handler as it is called here, then its other names."""
        return [f"{handler}\0{key}", *(f"{name}\0{key}" for name in self._names.all(handler) if name != handler)]
