"""App: the handlers of a program, and the verbs on the store that they share."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from duetime.app.around import Around
from duetime.app.filters import name_of
from duetime.app.handlers import AnyHandler, by_name
from duetime.app.operations import AppOperations
from duetime.app.registry import Handlers, Registry
from duetime.app.verbs import Verbs
from duetime.artifacts.blobs import Blobs, blobs_at
from duetime.client.admission import SubmitHook
from duetime.client.alerts.alerts import LocalAlerts
from duetime.client.flows import Flow, Flows
from duetime.client.locks import Locks, LockUse
from duetime.client.schedules.schedule import Schedule
from duetime.client.services import Program, Services, local_services
from duetime.client.signals import Signals
from duetime.clock import Seconds
from duetime.config import Settings, read_setting
from duetime.config import load as load_config
from duetime.errors import InvalidHandler, InvalidValue, UnknownHandler
from duetime.model.alerts.rule import AlertRule
from duetime.model.task import NewTask, Task
from duetime.remote.address import is_server, needs_store
from duetime.remote.services import server_services
from duetime.runtime.portal import PORTAL, Inline, refuse_inside_loop, running_loop
from duetime.secrets.keys import KeyRing
from duetime.secrets.reading import SecretReader, StoredSecrets
from duetime.store import Store
from duetime.store.flows import NewFlow
from duetime.store.open import artifacts_beside, store_from_url
from duetime.targets.hooks import Hook
from duetime.targets.http.callbacks import CallbackDoor
from duetime.targets.http.spec import HttpRequest
from duetime.targets.python.middleware import Middleware
from duetime.targets.spec import HandlerSpec

if TYPE_CHECKING:
    from duetime.artifacts.source import ArtifactSource
    from duetime.client.shards import Shards
    from duetime.model.addresses import AddressRules
    from duetime.model.operation import Operation
    from duetime.runtime.service import Alarms, Service
    from duetime.targets.output import Echo
    from duetime.worker.worker import Worker

R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M", bound=Middleware)
H = TypeVar("H", bound=SubmitHook)


class App(Registry, Verbs):
    """Declares handlers and submits tasks. It opens its store at the first use, in the event loop of that use.

    With the URL of a server (`https://…`) it sends requests to that server instead; what needs a store, such as a worker, then raises
    InvalidValue.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lifespan: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        imports: Sequence[str] = (),
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__()
        self.config = load_config({"url": url, **settings})
        self.user = self.config.user
        self._keys = KeyRing.of(self.config.secret_keys)
        self._blobs: Blobs | None = None
        self.lifespan = lifespan
        self._imports = list(imports)
        self.middlewares: list[Middleware] = []
        self._hooks: list[SubmitHook] = []
        self._groups: list[Handlers] = []
        self._names: dict[str, HandlerSpec] = {}
        self._door = threading.Lock()
        self._entered = 0
        self._of_parent: list[Services] = []
        self._before_close: list[Callable[[], Awaitable[None]]] = []
        self._use(self._new_services())

    def __repr__(self) -> str:
        return f"<App on {self.url}>"

    handler_info = Verbs.handler_info  # groups of handlers have it too, and ask the App
    upcoming = Verbs.upcoming

    # ---- opening ----

    @property
    def url(self) -> str:
        """Where the tasks are: the URL of the store or the server, without secrets."""
        return self._services.url

    @property
    def has_store(self) -> bool:
        return not is_server(self.url)

    @property
    def store(self) -> Store:
        """The store itself. Raises InvalidValue for an App that uses a server."""
        return self.store_for("this")

    @property
    def shards(self) -> Shards:
        """The databases that tasks are spread over. Raises InvalidValue for an App that uses a server."""
        from duetime.client.shards import LocalShards

        self.store_for("app.shards")
        return LocalShards(lambda: self.store, opened=lambda: self.ensure_open(declare=False))

    def store_for(self, what: str) -> Store:
        """Return the store; raise for something that needs one if this App uses a server."""
        if self._services.store is None:
            raise needs_store(what, self.url)
        return self._services.store

    def _new_services(self) -> Services:
        if is_server(self.config.url):
            return server_services(self.config, self._program())
        return self._services_of(store_from_url(self.config.url))

    def _services_of(self, store: Store) -> Services:
        config = self.config

        def reaper() -> Service:
            from duetime.duties.reaper import Reaper
            from duetime.runtime.service import Alarms

            return Reaper(store, Alarms(), lease=config.lease)

        async def perform(operation: Operation) -> tuple[Operation, float]:
            from duetime.duties.operations import step

            done = await step(store, operation)
            return done.operation, done.pause

        return local_services(
            store,
            self._program(),
            keys=self._keys,
            blobs=lambda: self.blobs(store),
            artifact_cap=config.artifact_cap,
            output=config.output,
            output_cap=config.output_cap,
            lease=config.lease,
            reaper=reaper,
            perform=perform,
        )

    def _program(self) -> Program:
        return Program(
            user=self.user,
            specs=self._names,
            hooks=self._hooks,
            opened=self.open,
            revision=self.config.revision,
            declared=self._all_schedules,
        )

    def _use(self, services: Services) -> None:
        self._services = services
        self.client, self.insight, self.output = services.client, services.insight, services.output
        self.secrets, self.tokens, self.doctor = services.secrets, services.tokens, services.doctor
        self.failures = services.failures
        self.event_source = services.events
        self.locks = Locks(services.locks, user=self.user, lease=self.config.lease, opened=self.open)
        self.signals = Signals(services.signals, user=self.user, opened=self.open, ready=lambda: self.ensure_open(declare=False))
        self.limits = services.limits
        self.weights = services.weights
        self.artifacts = services.artifacts
        self.targets = services.targets
        self.flows = services.flows
        self.alerts, self.channels = services.alerts, services.channels
        self.gates = self.client.gates
        self.schedules = self.client.schedules
        self.calendars = self.client.calendars
        self.operations = AppOperations(self.client.operations)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._opened = self._declared = False

    async def open(self) -> None:
        """Open the store and declare the handlers. Calling it is optional: every other method does it when needed."""
        await self.ensure_open(declare=True)

    async def ensure_open(self, *, declare: bool) -> None:
        """Open the store unless it is open. `declare`: declare the handlers too; calls on the caller's own connection must not."""
        self._leave_to_parent()
        if self._is_open(declare=declare):
            return
        while not self._door.acquire(blocking=False):  # noqa: ASYNC110  # two threads' loops may come at once; neither may block
            await asyncio.sleep(0.005)
        try:
            await self._services.open(self.config.migrate)
            await self._follow_shards()
            self._loop, self._opened = running_loop(), True
            if declare and not self._declared:
                self._declared = True  # before it is done, because a handler declared meanwhile takes it back
                try:
                    await self.client.admission.declare(self.declared())
                    await self._follow_for_hooks()
                except BaseException:
                    self._declared = False
                    raise
        finally:
            self._door.release()

    async def _follow_for_hooks(self) -> None:
        """Have events kept for the hooks from now on, whoever will call them."""
        hooks = list(self.declared_hooks())
        if hooks and self._services.store is not None:
            from duetime.duties.hooks import follow

            for hook in hooks:
                await follow(self._services.store, hook)

    async def _follow_shards(self) -> None:
        """Go on with the layer over the shards, if the store has some."""
        store = self._services.store
        if store is not None:
            from duetime.store.open import over_shards

            sharded = await over_shards(store)
            if sharded is not store:
                self._use(self._services_of(sharded))

    async def open_as_it_is(self) -> None:
        """Open the store without migrating it, and declare nothing."""
        await self._services.open(False)

    def _is_open(self, *, declare: bool) -> bool:
        loop = running_loop()
        return self._opened and (self._declared or not declare) and (loop is None or loop is self._loop)

    def _leave_to_parent(self) -> None:
        """In a forked child, begin anew. The parent's connections are kept as they are: collecting them would end them for the parent."""
        if self._pid != os.getpid():
            self._of_parent.append(self._services)
            self._use(self._new_services())

    async def close(self) -> None:
        """Close the store; the next use opens it again."""
        self._leave_to_parent()
        for stop in self._before_close:
            await stop()
        self._opened = self._declared = False
        await self._services.close()

    def before_close(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Have a function called whenever the App is about to close, while its store still answers."""
        self._before_close.append(stop)

    async def __aenter__(self) -> Self:
        await self.open()
        self._entered += 1
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._entered -= 1
        if self._entered == 0:
            await self.close()

    @asynccontextmanager
    async def using_store(self, store: Store) -> AsyncIterator[Self]:
        """Use another store within the block; for tests.

        The bytes of artifacts are in a folder that goes with the block. The store does not know which bytes the App's own store needs, so
        to delete a version would take them away.
        """
        before, entered, blobs = self._services, self._entered, self._blobs
        with TemporaryDirectory(prefix="duetime-") as folder:
            self._blobs = blobs_at(Path(folder).as_uri())
            self._use(self._services_of(store))
            self._entered = 0
            try:
                async with self:
                    yield self
            finally:
                self._use(before)
                self._entered, self._blobs = entered, blobs

    def sync(self, call: Awaitable[T], /) -> T:
        """Run a call from synchronous code: `app.sync(expire_order.now(order_id=7))`."""
        refuse_inside_loop(call)
        self._leave_to_parent()
        # if a loop of the program has opened the app, its connections belong to that loop
        loop = self._loop if self._entered and self._loop is not None and self._loop.is_running() else None
        if isinstance(call, Inline):
            inline: Inline[T] = call
            try:
                PORTAL.run(inline.prepare(), loop=loop)
                return inline.run()
            finally:
                inline.close()
        return PORTAL.run(call, loop=loop)

    # ---- declaring ----

    def include(self, group: Handlers, /) -> None:
        """Include a group of handlers, also those that it declares later."""
        for spec in group.declared():
            self.refuse_taken(spec)
        for schedule in group.declared_schedules():
            self.refuse_taken_schedule(schedule.name)
        for hook in group.declared_hooks():
            self.refuse_taken_hook(hook.name)
        for rule in group.declared_alerts():
            self.refuse_taken_alert(rule.name)
        group.belong_to(self)
        self._groups.append(group)
        self.changed()

    def declared_schedules(self) -> Iterator[Schedule]:
        yield from super().declared_schedules()
        for group in self._groups:
            yield from group.declared_schedules()

    def declared_hooks(self) -> Iterator[Hook]:
        yield from super().declared_hooks()
        for group in self._groups:
            yield from group.declared_hooks()

    def declared_alerts(self) -> Iterator[AlertRule]:
        yield from super().declared_alerts()
        for group in self._groups:
            yield from group.declared_alerts()

    async def declare_alerts(self) -> None:
        """Store the rules of alerts that are declared here."""
        if isinstance(self.alerts, LocalAlerts):
            await self.alerts.declare(list(self.declared_alerts()))

    def declared(self) -> Iterator[HandlerSpec]:
        yield from super().declared()
        for group in self._groups:
            yield from group.declared()

    def _all_schedules(self) -> list[Schedule]:
        """Return the declared schedules, those of `imports=` included."""
        self._import()
        return list(self.declared_schedules())

    def changed(self) -> None:
        self._declared = False
        self._names.clear()
        self._names.update({name: spec for spec in self.declared() for name in (spec.name, *spec.aliases)})

    def handler(self, name: str, /) -> AnyHandler:
        """Return a handler by name, even one whose code this program does not have. Its arguments are not typed."""
        spec = self._names.get(name)
        for registry in (self, *self._groups):
            if spec is not None and spec.name in registry._handlers:
                return registry._handlers[spec.name]
        return by_name(name, self)

    def middleware(self, function: M) -> M:
        """Run a function around each attempt: `async def f(ctx, call_next): …; return await call_next()`."""
        is_async: bool = inspect.iscoroutinefunction(function)
        if not is_async:
            raise InvalidHandler(f"middleware must be an `async def` of ctx and call_next, got {function!r}")
        self.middlewares.append(function)
        return function

    def on_submit(self, function: H) -> H:
        """Call a function with each task before it is stored. The mapping that it returns is added to the task's meta."""
        if inspect.iscoroutinefunction(function):
            raise InvalidHandler(
                f"an on_submit function must be a plain `def`, because submitting on a connection may not wait: {function!r}"
            )
        self._hooks.append(function)
        return function

    def around(self, event_at: datetime, /, *, key: str, offsets: Iterable[Seconds], formerly: Iterable[Seconds] = ()) -> Around:
        """Return the set of tasks around an event, to submit, move and cancel them together.

            reminders = app.around(booking.starts_at, key="booking-7", offsets=[-5400, -3600, -900, 900])
            await reminders.submit(remind.new(booking_id=7))

        `offsets` are seconds or timedeltas, negative before the event. `formerly` lists offsets of earlier versions of the program. It
        is needed only if no earlier offset is still in use: otherwise the stored tasks name them.
        """
        return Around(self, event_at, key=key, offsets=offsets, formerly=formerly)

    def lock(self, name: str, /, *, max_hold: Seconds | None = None, min_hold: Seconds = 0, wait: Seconds = 0) -> LockUse:
        """Hold a lock in a block: `async with app.lock("nightly", max_hold=600) as lock:`, or `with` in synchronous code.

        Raises LockTaken if somebody else has it, or still has it after `wait` seconds. It is renewed by itself, at most for `max_hold`
        seconds, and stays taken for `min_hold` at least. `lock.fence` grows with every holder; `lock.check()` raises LockLost when somebody
        else may have it. As a decorator it skips the function instead and returns None.
        """
        return LockUse(self.locks, name, self.sync, max_hold=max_hold, min_hold=min_hold, wait=wait)

    @property
    def specs(self) -> Mapping[str, HandlerSpec]:
        """All handlers by name and alias, those of `imports=` included. Only processes that run tasks import those modules."""
        self._import()
        return self._names

    def _import(self) -> None:
        while self._imports:
            importlib.import_module(self._imports[0])
            del self._imports[0]

    @asynccontextmanager
    async def worker(
        self,
        *,
        handlers: Iterable[str | AnyHandler] | None = None,
        concurrency: int | None = None,
        lease: Seconds | None = None,
        grace: Seconds | None = None,
        path: str | None = None,
        on_stuck: Literal["exit", "report"] = "report",
        on_lease_lost: Literal["exit", "cancel"] = "cancel",
        id: str | None = None,
        inherit: Sequence[int] = (),
        echo: Echo | None = None,
        hold: Callable[[Sequence[int]], None] | None = None,
        addresses: AddressRules | None = None,
        targets: bool = False,
        allow: Collection[Literal["command"]] = (),
    ) -> AsyncIterator[Worker]:
        """Run tasks inside this program as long as the block lasts, of the given handlers or of all.

        `concurrency` bounds the slots of all handlers together; it, `lease` and `grace` override the App's own. `path` is the import
        string of this App (`module:name`), by which sub-processes of isolation="process" import it; it is found automatically unless the
        App is defined in the main script. "exit" lets the worker end this process: when an attempt's code does not end (`on_stuck`), or,
        on stores that use leases, when the lease runs out (`on_lease_lost`). A supervisor passes the worker's `id`, and descriptors that
        every child holds (`inherit`); a guard is given those that prove the worker alive (`hold`). `echo` is called with each line that an
        attempt prints, from any thread; it must not raise. `addresses` says where HTTP
        handlers may connect to, by default what `http_allow` and `http_deny` say. With `targets` it also serves the handlers whose
        targets are stored (`app.targets`), also those that are put later; commands among them only with `allow=["command"]`. If
        `handlers` are given, they name stored ones too.
        """
        from duetime.client.fits import FitLook
        from duetime.duties.hooks import HookCalls
        from duetime.targets.python.children import import_string_of
        from duetime.worker.stored import Serving
        from duetime.worker.worker import Worker, WorkerSettings

        store = self.store_for("a worker")
        own_lease: float = self.config.lease if lease is None else read_setting("lease", lease)

        named = None if handlers is None else [name_of(handler) for handler in handlers]
        specs = self._specs_for(named, others=targets)
        settings = WorkerSettings(
            concurrency=self.config.concurrency if concurrency is None else concurrency,
            lease=own_lease,
            grace=self.config.grace if grace is None else read_setting("grace", grace),
            on_stuck=on_stuck,
            on_lease_lost=on_lease_lost,
            output_folder=self.config.output,
            output_cap=self.config.output_cap,
            echo=echo,
            addresses=self.config.addresses() if addresses is None else addresses,
            callback_door=self._callback_door(specs),
            stored=Serving(allow=_allowed(allow), only=named) if targets else None,
        )
        async with self:
            await self.schedules.declare()
            await self.declare_alerts()
            store = self.store_for("a worker")  # which may be another one than before it was opened: it has shards
            worker = Worker(
                store,
                specs,
                middleware=self.middlewares,
                secrets=self.secret_reader(store),
                artifacts=self.artifact_source(store),
                add=self.submit_many,
                lifespan=self.lifespan,
                app_path=path or self.config.app or import_string_of(self),
                settings=settings,
                duties=lambda store, alarms: [
                    *self.duties(store, alarms, lease=own_lease),
                    FitLook(store, specs, alarms),
                    *(HookCalls(store, hook, alarms) for hook in self.declared_hooks()),
                ],
                id=id,
                inherit=inherit,
                hold=hold,
            )
            async with worker:
                yield worker

    def secret_reader(self, store: Store) -> SecretReader:
        """Return what attempts read secrets from: the store, with the keys of this program."""
        return StoredSecrets(store, self._keys)

    def artifact_source(self, store: Store) -> ArtifactSource | None:
        """Return what attempts get artifacts from; None if nothing says where their bytes are."""
        from duetime.artifacts.cache import ArtifactCache, default_folder
        from duetime.artifacts.source import StoredArtifacts

        blobs, folder = self.blobs(store), self.config.artifact_cache
        if blobs is None:
            return None
        cache = ArtifactCache(default_folder() if folder is None else Path(folder).absolute(), self.config.artifact_cache_cap, blobs)
        return StoredArtifacts(store, cache)

    def blobs(self, store: Store) -> Blobs | None:
        """Return where the bytes of artifacts are; None if nothing says where, and the store is no file that they could be beside."""
        if self._blobs is None:
            folder = artifacts_beside(store.url)
            url = self.config.artifacts or (None if folder is None else folder.absolute().as_uri())
            self._blobs = None if url is None else blobs_at(url)
        return self._blobs

    def duties(self, store: Store, alarms: Alarms, *, lease: float | None = None) -> Sequence[Service]:
        """Create the system's duties for one process."""
        from duetime.duties import all_duties

        heartbeat = self.config.heartbeat_url
        return all_duties(
            store,
            alarms,
            lease=lease or self.config.lease,
            retention=self.config.retention(),
            heartbeat=None if heartbeat is None else heartbeat.reveal(),
        )

    def _callback_door(self, specs: Mapping[str, HandlerSpec]) -> CallbackDoor | None:
        """Return where servers report on work that they have accepted; None if nothing says it and no handler needs it."""
        needing = [spec.name for spec in specs.values() if isinstance(spec.target, HttpRequest) and spec.target.callback is not None]
        if self.config.public_url is None:
            if not needing:
                return None
            raise InvalidValue(
                f"{needing[0]} has a callback, and nothing says where servers reach this store's HTTP API to report: "
                "set DUETIME_PUBLIC_URL, or App(public_url=…), to its address, such as https://duetime.example"
            )
        return CallbackDoor(self.config.public_url, self.config.callback_keys())

    def _specs_for(self, handlers: Sequence[str] | None, *, others: bool = False) -> dict[str, HandlerSpec]:
        """Return the handlers of a worker by name and alias; `others`: there may be some that this App does not declare.

        Raises for one whose annotations cannot be resolved.
        """
        specs = self.specs
        names = list(specs) if handlers is None else handlers
        unknown = [name for name in names if name not in specs]
        names = [name for name in names if name in specs]
        if unknown and not others:
            raise UnknownHandler(f"this App declares no handler {unknown[0]!r}; it declares {', '.join(specs) or 'none'}")
        chosen = {specs[name].name: specs[name] for name in names}
        for spec in chosen.values():
            spec.payloads.schema()
        return {name: spec for name, spec in specs.items() if spec.name in chosen}

    # ---- submitting ----

    def submit(self, task: NewTask[R], /, *, connection: object | None = None, allow_unknown: bool = False) -> Coroutine[Any, Any, Task[R]]:
        """Store a task that `handler.new(…)` made."""
        call = self._submit(task, connection, allow_unknown)
        return call if connection is None else Inline(call, lambda: self.prepare([task], allow_unknown))

    async def _submit(self, task: NewTask[R], connection: object | None, allow_unknown: bool) -> Task[R]:
        await self.ensure_open(declare=connection is None)
        return await self.client.submit(task, connection=connection, allow_unknown=allow_unknown)

    @overload
    def submit_many(
        self, tasks: Iterable[NewTask[R]], /, *, connection: object | None = None, allow_unknown: bool = False
    ) -> Coroutine[Any, Any, Sequence[Task[R]]]: ...
    @overload
    def submit_many(
        self, tasks: Iterable[NewTask[Any]], /, *, connection: object | None = None, allow_unknown: bool = False
    ) -> Coroutine[Any, Any, Sequence[Task[Any]]]: ...
    def submit_many(
        self, tasks: Iterable[NewTask[Any]], /, *, connection: object | None = None, allow_unknown: bool = False
    ) -> Coroutine[Any, Any, Sequence[Task[Any]]]:
        """Store many tasks at once, all checked before anything is written; DuplicateKeys names those whose keys were taken."""
        new_tasks = list(tasks)
        call = self._submit_many(new_tasks, connection, allow_unknown)
        return call if connection is None else Inline(call, lambda: self.prepare(new_tasks, allow_unknown))

    async def _submit_many(self, tasks: Sequence[NewTask[Any]], connection: object | None, allow_unknown: bool) -> Sequence[Task[Any]]:
        await self.ensure_open(declare=connection is None)
        return await self.client.submit_many(tasks, connection=connection, allow_unknown=allow_unknown)

    def submit_flow(self, flow: NewFlow, /, *, connection: object | None = None) -> Coroutine[Any, Any, Flow[Any]]:
        """Store a flow that a plan has made."""
        call = self._submit_flow(flow, connection)
        tasks = [task for group in flow.tasks for task in group]
        return call if connection is None else Inline(call, lambda: self.prepare(tasks, False))

    def flow_door(self, name: str) -> Flows:
        """Return what reads and changes stored flows."""
        return self.flows

    async def _submit_flow(self, flow: NewFlow, connection: object | None) -> Flow[Any]:
        await self.ensure_open(declare=connection is None)
        return await self.flows.submit(flow, connection=connection)

    async def prepare(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool) -> None:
        """Read in advance everything that submitting on a connection needs. After that, submitting does not suspend."""
        # nothing may be declared here: the caller's transaction may hold the store's only write lock
        await self.ensure_open(declare=False)
        await self.client.prepare(tasks, allow_unknown=allow_unknown)


def _allowed(kinds: Collection[str]) -> frozenset[str]:
    """Check which kinds of stored targets a worker may run beside the usual ones."""
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind != "command":
            raise InvalidValue(
                f"allow lists kinds of stored targets that a worker runs only if told so, and command is the only one, got {kind!r}"
            )
    return frozenset([kinds] if isinstance(kinds, str) else kinds)
