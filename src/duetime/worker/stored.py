"""Stored targets in a worker: served, changed and dropped while it runs.

A hint tells that something has changed, and each renewal tells the version of all targets, so a lost hint costs a fifth of the lease.
Code comes first: a target whose name one of the worker's own handlers has is shadowed, here and in all other workers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from duetime.errors import DuetimeError, InvalidValue
from duetime.model.targets import StoredTarget
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.targets.declaring import declaration_of
from duetime.targets.http.spec import HttpRequest
from duetime.targets.notices.notice import NOTIFY
from duetime.targets.spec import HandlerSpec
from duetime.targets.stored.definitions import read_definition
from duetime.targets.stored.specs import spec_of
from duetime.targets.target import Target
from duetime.worker.executor import Executor

logger = logging.getLogger("duetime.worker")

AT_ONCE = 100  # definitions that are read together
LOOK_AGAIN = 1.0  # seconds until the next look whether attempts of a former target have ended


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Which stored targets a worker serves: commands only if `command` is allowed, and of all names only those in `only`, if given."""

    allow: Collection[str] = ()
    only: Collection[str] | None = None

    def serves(self, name: str) -> bool:
        return self.only is None or name in self.only

    def allows(self, kind: str) -> bool:
        return kind in ("http", "publish", "notices") or kind in self.allow


class Served:
    """A stored target as this worker serves it. `closing` frees what it has opened."""

    def __init__(self, spec: HandlerSpec, target: Target, closing: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self.spec = spec
        self.target = target
        self.closing = closing


class StoredTargets(Service):
    """Keeps a worker's handlers in step with the stored targets. Without `serving` it lets its code come before them, and sends notices."""

    name = "targets"

    def __init__(
        self,
        store: Store,
        executor: Executor,
        alarms: Alarms,
        *,
        own: Collection[str],
        serving: Serving | None,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(alarms)
        self._store = store
        self._executor = executor
        self._own = own
        self._serving = serving
        self._changed = changed
        self._versions: dict[str, int] = {}  # of those that were looked at
        self._served: dict[str, Served] = {}
        self._former: list[Served] = []  # with attempts that still run
        self.version = -1
        self.declared: dict[str, str] = {}

    def spec(self, name: str) -> HandlerSpec | None:
        """Return the handler of a stored target that is served here."""
        served = self._served.get(name)
        return None if served is None else served.spec

    def on_version(self, version: int) -> None:
        """Look if this is not the version that is known."""
        if version != self.version:
            self.wake()

    async def run_once(self) -> float | None:
        found = await self._store.target_versions()
        for name in await self._store.shadow_targets([name for name in found.targets if name in self._own]):
            logger.warning(
                "a target is stored under the name %s, which is a handler of this program: its code runs the tasks, here and everywhere, "
                "and the stored target is left alone. Delete it, `duetime handlers delete`, or rename one of them",
                name,
            )
        await self._follow({name: version for name, version in found.targets.items() if name not in self._own and self._serves(name)})
        self.version = found.version
        await self._close_former()
        return LOOK_AGAIN if self._former else None

    def _serves(self, name: str) -> bool:
        """Return whether this worker serves a stored target. Notices of alerts are served by every one."""
        return name == NOTIFY or (self._serving is not None and self._serving.serves(name))

    async def _follow(self, wanted: dict[str, int]) -> None:
        gone = [name for name in self._versions if name not in wanted]
        new = [name for name, version in wanted.items() if self._versions.get(name) != version]
        if not gone and not new:
            return
        for name in gone:
            self._drop(name)
            del self._versions[name]
        for start in range(0, len(new), AT_ONCE):
            for target in await self._store.targets(new[start : start + AT_ONCE]):
                self._take(target)
                self._versions[target.name] = target.version
        await self._changed()

    def _take(self, stored: StoredTarget) -> None:
        """Serve a target in the form in which it is stored; one that cannot be served here is told and left to others."""
        if self._serving is not None and not self._serving.allows(stored.kind):
            self._drop(stored.name)
            logger.info(
                "%s is a stored %s, which this worker does not run; start one with --allow %s", stored.name, stored.kind, stored.kind
            )
            return
        try:
            served = self._opened(stored)
        except (DuetimeError, ImportError, OSError) as error:
            self._drop(stored.name)
            logger.error("this worker cannot serve the stored target of %s: %s", stored.name, error)
            return
        before = self._served.get(stored.name)
        self._executor.serve(served.spec, served.target, served.spec.concurrency)
        self._served[stored.name] = served
        self.declared[stored.name] = declaration_of(served.spec).digest
        if before is not None:
            self._former.append(before)

    def _opened(self, stored: StoredTarget) -> Served:
        definition = read_definition(stored.definition)
        spec = spec_of(stored.name, definition)
        host = self._executor.host
        if isinstance(spec.target, HttpRequest) and spec.target.callback is not None and host.callback_door is None:
            raise InvalidValue("it has a callback, and nothing says where servers reach this store's HTTP API: set DUETIME_PUBLIC_URL")
        already = len(host.closing)
        target = spec.target.open(spec, host)
        return Served(spec, target, host.closing[already:])

    def _drop(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is None:
            return
        self.declared.pop(name, None)
        self._executor.serve(served.spec, served.target, 0)
        self._former.append(served)

    async def _close_former(self) -> None:
        """Free what former targets have opened, once none of their attempts runs."""
        host = self._executor.host
        for served in tuple(self._former):
            if served.target in self._executor.former.values():
                continue
            self._former.remove(served)
            for close in served.closing:
                host.closing.remove(close)
                await close()
