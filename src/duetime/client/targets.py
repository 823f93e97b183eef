"""`app.targets`: handlers whose target is stored, so that workers serve them without code of their own."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duetime.client.client import Client
from duetime.client.liveness import lives
from duetime.clock import to_datetime
from duetime.errors import ChangedMeanwhile, Conflict, InvalidValue, TargetNotFound
from duetime.ids import new_id
from duetime.model.targets import NewTarget, StoredTarget
from duetime.model.task import NewTask, Task, check_name
from duetime.model.test_run import as_test
from duetime.model.wording import count
from duetime.store import Store
from duetime.targets.declaring import declaration_of
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec
from duetime.targets.stored.definitions import Definition, kind_of, read_definition, write_definition
from duetime.targets.stored.specs import spec_of

MOST_TARGETS = 10_000


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored target. `version` changes with it; no other target ever has the same one.

    `shadowed`: a program declares a handler of that name, and its code runs the tasks instead. `target` is None if a newer Duetime has
    stored something that this one does not know.
    """

    name: str
    kind: str
    version: int
    changed_at: datetime
    changed_by: str
    shadowed: bool = False
    target: Definition | None


class Targets(Protocol):
    """Stored targets by the names of their handlers."""

    async def put(self, name: str, target: Definition, *, seen: int | None = None, by: str | None = None) -> TargetInfo:
        """Store a target under a handler's name, in place of an earlier one. Workers with `targets=True` serve it within a second.

            await app.targets.put("ping", StoredHttp(url="https://example.com/health", method="GET"))
            await app.handler("ping").now()

        `seen` is the version that it must have, 0 if there must be none; ChangedMeanwhile otherwise. Raises InvalidValue for a definition
        that cannot work, and Conflict if code has a handler of that name. `by` is who puts it, by default the user of this program; a
        server records the name of the token.
        """
        ...

    async def get(self, name: str) -> TargetInfo:
        """Return the target that is stored under a handler's name. Raises TargetNotFound if there is none."""
        ...

    async def list(self) -> builtins.list[TargetInfo]:
        """Return all stored targets by name."""
        ...

    async def delete(self, name: str, *, seen: int | None = None) -> None:
        """Remove a target. Its tasks wait until there is a handler of that name again. Raises TargetNotFound, or ChangedMeanwhile."""
        ...

    async def test(self, name: str, /, **payload: Any) -> Task[Any]:
        """Submit one task of a handler that shows how its attempts go from where its workers are; by code or stored, of any kind.

            task = await app.targets.test("ping", order_id=7)
            async for event in app.output.follow(task): ...

        It comes before others (priority 9), is tried once, and expires if no worker takes it within a minute. An attempt that is a request
        writes its phases to its output as they begin. Handlers see `duetime.test` in the task's meta.
        """
        ...


class LocalTargets(Targets):
    """Targets of a store."""

    def __init__(
        self,
        store: Store,
        *,
        user: str,
        specs: Mapping[str, HandlerSpec],
        client: Client,
        opened: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._user = user
        self._specs = specs
        self._client = client
        self._opened = opened

    async def put(self, name: str, target: Definition, *, seen: int | None = None, by: str | None = None) -> TargetInfo:
        spec = spec_of(name, target)
        new = NewTarget(name=name, kind=kind_of(target), definition=write_definition(target), changed_by=by or self._user)
        await self._opened()
        stored = await self._stored(name)
        if stored is None or stored.shadowed:
            await self._refuse_taken(name)
        if stored is None and len(await self._store.targets()) >= MOST_TARGETS:
            raise Conflict(f"there are {MOST_TARGETS:,} stored targets already; delete those that nobody uses")
        put = await self._store.put_target(new, declaration_of(spec), seen)
        if put is None:
            raise _changed(name, seen, stored)
        self._client.admission.forget()
        return info_of(put)

    async def get(self, name: str) -> TargetInfo:
        check_name(name, "the name of a handler")
        await self._opened()
        stored = await self._stored(name)
        if stored is None:
            raise target_not_found(name)
        return info_of(stored)

    async def list(self) -> builtins.list[TargetInfo]:
        await self._opened()
        return [info_of(stored) for stored in await self._store.targets()]

    async def delete(self, name: str, *, seen: int | None = None) -> None:
        check_name(name, "the name of a handler")
        await self._opened()
        removed = await self._store.remove_target(name, seen)
        if removed is None:
            raise _changed(name, seen, await self._stored(name))
        if not removed:
            raise target_not_found(name)
        self._client.admission.forget()

    async def test(self, name: str, /, **payload: Any) -> Task[Any]:
        spec = self._specs.get(check_name(name, "the name of a handler"))
        payloads = OpenPayloads(name) if spec is None else spec.payloads
        task = NewTask[Any](
            id=new_id(), handler=name if spec is None else spec.name, payload=payloads.bind((), payload), submitted_by=self._user
        )
        await self._opened()
        return await self._client.submit(as_test(task))

    async def _stored(self, name: str) -> StoredTarget | None:
        return next(iter(await self._store.targets([name])), None)

    async def _refuse_taken(self, name: str) -> None:
        """Raise Conflict if code has a handler of that name, which would win over the stored one."""
        other = "store the target under another name"
        if name in self._specs:
            raise Conflict(f"this program declares a handler {name!r}, and code comes before stored targets; {other}")
        now = self._store.now()
        running = [worker for worker in await self._store.workers() if name in worker.slots and lives(worker, now)]
        if running:
            run = "runs" if len(running) == 1 else "run"
            raise Conflict(
                f"{count(len(running), 'live worker')} {run} {name!r} by code of their own, which comes before stored targets; {other}, "
                "or stop them first"
            )
        alias_of = next((each.name for each in await self._store.declarations() if name in each.aliases), None)
        if alias_of is not None:
            raise Conflict(f"{name!r} is a former name of the handler {alias_of!r}, whose tasks it still stands for; {other}")


def info_of(stored: StoredTarget) -> TargetInfo:
    """Return a stored target as people see it."""
    try:
        definition = read_definition(stored.definition)
    except InvalidValue:
        definition = None
    return TargetInfo(
        name=stored.name,
        kind=stored.kind,
        version=stored.version,
        changed_at=to_datetime(stored.changed_at),
        changed_by=stored.changed_by,
        shadowed=stored.shadowed,
        target=definition,
    )


def target_not_found(name: str) -> TargetNotFound:
    return TargetNotFound(f"no target is stored under {name!r}; `duetime handlers` lists all handlers")


def _changed(name: str, seen: int | None, stored: StoredTarget | None) -> ChangedMeanwhile:
    if stored is None:
        return ChangedMeanwhile(f"no target is stored under {name!r} any more; version {seen} was expected")
    if seen == 0:
        return ChangedMeanwhile(f"a target is stored under {name!r} already; look at it first: duetime handlers show")
    return ChangedMeanwhile(f"the target of {name!r} is version {stored.version} by now, not {seen}; look at it again")
