"""Setting gates, and waiting until they are in force."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

import msgspec

from duetime.clock import Instant, Seconds, to_datetime, to_micros, to_seconds
from duetime.errors import InvalidValue, UnknownHandler
from duetime.model.gate import Gate, GateAction
from duetime.model.query import fits_pattern
from duetime.model.task import check_name
from duetime.store import Store
from duetime.store.shard import Registering
from duetime.store.values import Hint, HintKind

# A gate is in force within one round trip of each worker; a worker that does not answer is reaped after its lease (15 s).
IN_FORCE_WITHIN = 20.0
LOOK_AGAIN = 0.25


class Named(Protocol):
    """A handler."""

    name: str


class GateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as people see it. An `automatic` one was set by the system; from `probe_at` on the next task may try to pass it."""

    handler: str
    collection: str | None
    action: GateAction
    until_at: datetime | None
    note: str
    set_by: str
    set_at: datetime
    automatic: bool = False
    probe_at: datetime | None = None


class GateSet(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that was set, and which live workers have confirmed that they start nothing against it."""

    gate: GateInfo
    version: int
    confirmed: list[str]
    waiting: list[str]

    @property
    def in_force(self) -> bool:
        """Whether every live worker has confirmed it. Then no affected task starts any more."""
        return not self.waiting

    def __str__(self) -> str:
        total = len(self.confirmed) + len(self.waiting)
        return "in force" if self.in_force else f"in force on {len(self.confirmed)} of {total} workers"


class GateBarrier(msgspec.Struct, frozen=True):
    """Which live workers have confirmed a version of the gates."""

    confirmed: list[str]
    waiting: list[str]


async def barrier(store: Registering, version: int) -> GateBarrier:
    """Return which live workers have confirmed at least this version and which have not. Workers known to be dead do not count."""
    live = [worker for worker in await store.workers() if worker.alive is not False]
    return GateBarrier(
        confirmed=[worker.id for worker in live if worker.seen_gates >= version],
        waiting=[worker.id for worker in live if worker.seen_gates < version],
    )


def gate_info(gate: Gate) -> GateInfo:
    return GateInfo(
        handler=gate.handler,
        collection=gate.collection,
        action=gate.action,
        until_at=None if gate.until_at is None else to_datetime(gate.until_at),
        note=gate.note,
        set_by=gate.set_by,
        set_at=to_datetime(gate.set_at),
        automatic=gate.automatic,
        probe_at=None if gate.probe_at is None else to_datetime(gate.probe_at),
    )


class GateKeeper(Protocol):
    """`app.gates`: pause or drop a handler's tasks, all of them or those of one collection."""

    _user: str

    def _now(self) -> Instant: ...

    async def pause(
        self,
        handler: str | Named,
        *,
        collection: str | None = None,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
        allow_unknown: bool = False,
    ) -> GateSet:
        """Keep such tasks from starting until the gate opens: by itself after `lasting`, or by `open`.

        Returns when every live worker has confirmed it, or after `timeout`; `in_force` of the result says which.
        """
        gate = self._gate(GateAction.PAUSE, handler, collection, lasting, note)
        return await self.put(gate, timeout=timeout, allow_unknown=allow_unknown)

    async def drop(
        self,
        handler: str | Named,
        *,
        collection: str | None = None,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
        allow_unknown: bool = False,
    ) -> GateSet:
        """Record such tasks that come due as `dropped` instead of running them, as long as the gate is closed."""
        gate = self._gate(GateAction.DROP, handler, collection, lasting, note)
        return await self.put(gate, timeout=timeout, allow_unknown=allow_unknown)

    async def put(self, gate: Gate, *, timeout: Seconds = IN_FORCE_WITHIN, allow_unknown: bool = False) -> GateSet:
        """Set a gate and wait until every live worker has confirmed it."""
        ...

    async def pause_all(
        self, pattern: str = "*", *, lasting: Seconds | None = None, note: str = "", timeout: Seconds = IN_FORCE_WITHIN
    ) -> builtins.list[GateSet]:
        """Pause every handler that is declared now and fits a pattern, in which `*` stands for any characters: by default all."""
        return await self.close_all(pattern, GateAction.PAUSE, lasting=lasting, note=note, timeout=timeout)

    async def drop_all(
        self, pattern: str, *, lasting: Seconds | None = None, note: str = "", timeout: Seconds = IN_FORCE_WITHIN
    ) -> builtins.list[GateSet]:
        """Drop the tasks of every handler that is declared now and fits a pattern, as they come due."""
        return await self.close_all(pattern, GateAction.DROP, lasting=lasting, note=note, timeout=timeout)

    async def close_all(
        self,
        pattern: str,
        action: GateAction,
        *,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
        by: str | None = None,
        visible: Callable[[str], bool] | None = None,
    ) -> builtins.list[GateSet]:
        """Set a gate on every declared handler that fits, and wait once until every live worker has confirmed them all.

        `by` is who sets them, `visible` which handlers they may act on; both are for a server.
        """
        ...

    async def open_all(self, pattern: str = "*", *, visible: Callable[[str], bool] | None = None) -> builtins.list[GateInfo]:
        """Open every gate of handlers that fit a pattern, those of their collections too; return what was closed."""
        ...

    async def open(self, handler: str | Named, *, collection: str | None = None) -> bool:
        """Remove a gate; return whether there was one. Of one that was set automatically the failures begin to count anew."""
        ...

    async def list(self) -> list[GateInfo]:
        """Return the closed gates, by handler and collection."""
        ...

    def _gate(self, action: GateAction, handler: str | Named, collection: str | None, lasting: Seconds | None, note: str) -> Gate:
        now = self._now()
        return Gate(
            handler=check_name(_name(handler), "handler"),
            collection=None if collection is None else check_name(collection, "collection"),
            action=action,
            until_at=None if lasting is None else now + lasting_of(lasting),
            note=check_note(note),
            set_by=self._user,
            set_at=now,
        )


class LocalGates(GateKeeper):
    """Gates of a store."""

    def __init__(
        self, store: Store, *, user: str, known: Callable[[str], Awaitable[object]], opened: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._user = user
        self._known = known
        self._opened = opened

    def _now(self) -> Instant:
        return self._store.now()

    async def put(self, gate: Gate, *, timeout: Seconds = IN_FORCE_WITHIN, allow_unknown: bool = False) -> GateSet:
        seconds = to_seconds(timeout, "timeout")
        await self._opened()
        if not allow_unknown:
            await self._known(gate.handler)
        version = await self._store.put_gate(gate)
        reached = await self._confirmed(version, seconds)
        return GateSet(gate=gate_info(gate), version=version, confirmed=reached.confirmed, waiting=reached.waiting)

    async def close_all(
        self,
        pattern: str,
        action: GateAction,
        *,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
        by: str | None = None,
        visible: Callable[[str], bool] | None = None,
    ) -> builtins.list[GateSet]:
        await self._opened()
        check_name(pattern, "pattern")
        names = [each.name for each in await self._store.declarations() if fits_pattern(pattern, each.name)]
        gates = [self._gate(action, name, None, lasting, note) for name in names if visible is None or visible(name)]
        done = [await self.put(msgspec.structs.replace(gate, set_by=by or gate.set_by), timeout=0) for gate in gates]
        if not done:
            raise UnknownHandler(f"no handler that is declared fits {pattern!r}; `duetime handlers` lists them")
        # versions grow, so who has confirmed the last gate has confirmed them all
        reached = await self._confirmed(done[-1].version, to_seconds(timeout, "timeout"))
        return [msgspec.structs.replace(each, confirmed=reached.confirmed, waiting=reached.waiting) for each in done]

    async def open_all(self, pattern: str = "*", *, visible: Callable[[str], bool] | None = None) -> builtins.list[GateInfo]:
        closed = [each for each in await self.list() if fits_pattern(pattern, each.handler)]
        allowed = [each for each in closed if visible is None or visible(each.handler)]
        return [each for each in allowed if await self.open(each.handler, collection=each.collection)]

    async def open(self, handler: str | Named, *, collection: str | None = None) -> bool:
        await self._opened()
        return await self._store.remove_gate(_name(handler), collection) is not None

    async def list(self) -> list[GateInfo]:
        await self._opened()
        gates = [gate_info(gate) for gate in (await self._store.gates()).as_set]
        return sorted(gates, key=lambda gate: (gate.handler, gate.collection or ""))

    async def _confirmed(self, version: int, seconds: float) -> GateBarrier:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        changed = asyncio.Event()

        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.GATES, HintKind.ANY):
                changed.set()

        listener = self._store.listen(on_hint)
        try:
            while True:
                changed.clear()
                reached = await barrier(self._store, version)
                left = min(LOOK_AGAIN, end - loop.time())
                if not reached.waiting or left <= 0:
                    return reached
                try:
                    async with asyncio.timeout(left):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            listener.close()


def _name(handler: str | Named) -> str:
    return handler if isinstance(handler, str) else handler.name


def lasting_of(lasting: Seconds) -> int:
    micros = to_micros(lasting, "lasting")
    if micros <= 0:
        raise InvalidValue(f"lasting must be positive, got {lasting}; to end it now, open or reset it")
    return micros


def check_note(note: str) -> str:
    if len(note) > 1_000:
        raise InvalidValue(f"note must have at most 1,000 characters, got {len(note)}")
    return note
