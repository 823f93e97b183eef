"""A simulated cluster: processes of one or several programs on one store, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from duetime import clock, ids
from duetime.app.app import App
from duetime.app.operations import AppOperations
from duetime.client.fits import FitLook
from duetime.client.locks import Locks
from duetime.client.services import Services
from duetime.client.signals import Signals
from duetime.clock import SECOND, Instant
from duetime.errors import DuetimeError
from duetime.store.sqlite.shared import SharedMemory, SharedStore
from duetime.targets.python.function import PythonFunction
from duetime.targets.spec import HandlerSpec, TargetSpec
from duetime.testing.simulation.faults import CLIENT, Fault
from duetime.testing.simulation.keeper import SimulatedKeeper
from duetime.testing.simulation.loop import SimulatedLoop, abandon
from duetime.testing.simulation.process import Network, Process, current
from duetime.worker.worker import OnLeaseLost, Worker, WorkerSettings

T = TypeVar("T")

BEGINS_AT: Instant = 1_800_000_000 * SECOND
NewApp = Callable[[int], App]  # takes the version of the code


class Line(NamedTuple):
    """One line of the history."""

    at: float
    who: str
    what: str
    more: str

    def __str__(self) -> str:
        return f"{self.at:10.6f}  {self.who:<12} {self.what}{f': {self.more}' if self.more else ''}"


class StoreClock:
    """The store's clock: virtual time, and by how much it was set."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._since = loop.time()
        self.offset: Instant = 0

    def now(self) -> Instant:
        return BEGINS_AT + self.offset + round((self._loop.time() - self._since) * SECOND)

    def monotonic(self) -> float:
        return self._loop.time()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the workers of a simulation run. `client_waits`: for the client calls last until the store is back, instead of failing."""

    workers: int = 2
    lease: float = 5.0
    grace: float = 2.0
    concurrency: int | None = None
    on_lease_lost: OnLeaseLost = "exit"
    claim_ahead: int = 0
    client_waits: bool = False


class Cluster:
    """Starts, kills and freezes simulated processes. Everything that happens follows from `seed`, `faults` and the programs."""

    def __init__(self, seed: int, new_app: NewApp, faults: Sequence[Fault], settings: Settings) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(random.Random(f"{seed} order"))
        self.outside = contextvars.copy_context()
        self.memory = SharedMemory()
        self.clock = StoreClock(self.loop)
        self.began_at = self.loop.time()
        self.settings = settings
        self.history: list[Line] = []
        self.processes: list[Process] = []
        self.present: dict[int, Process] = {}  # the process of each number
        self.version = 0  # of the code that is started next
        self.away_until = 0.0
        self.finished_tasks = 0
        self.died: Callable[[Process], None] = lambda process: None
        self.stepped: Callable[[Instant], None] = lambda offset: None
        self.requests: TargetSpec | None = None  # performs the attempts of handlers that send requests, which are left out otherwise
        self.errors: list[str] = []  # exceptions that no task waited for
        self.loop.set_exception_handler(self._note_error)
        self._new_app = new_app
        self._apps: dict[int, App] = {}
        self._faults = [fault for fault in faults if fault.verb]
        self._timed = [fault for fault in faults if not fault.verb]
        self._timers: list[asyncio.TimerHandle] = []
        self._supervised = True
        self._chance = random.Random(f"{seed} cluster")

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    # ---- what happens ----

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.loop.time() - self.began_at

    @property
    def away(self) -> bool:
        """Whether the store does not answer."""
        return self.loop.time() < self.away_until

    def note(self, process: Process | None, what: str, more: str = "") -> None:
        self.history.append(Line(self.now, "" if process is None else process.name, what, more))

    def fault_at(self, process: Process, verb: str) -> Fault | None:
        """Return the fault that hits a call, if one does; each does so once."""
        for fault in self._faults:
            if fault.at > self.now:
                return None
            if fault.process == process.number and fault.verb == verb:
                self._faults.remove(fault)
                self.note(process, "fault", str(fault))
                return fault
        return None

    def put_back(self, fault: Fault) -> None:
        """Let a fault hit a later call instead."""
        self._faults.insert(0, fault)

    def kill(self, process: Process) -> None:
        """End a process between two of its instructions."""
        if process.dead:
            return
        process.dead = True
        process.held.clear()
        process.store.leave()
        self.note(process, "dies")
        self.died(process)
        process.ended.set()

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop a process, as by SIGSTOP, for a while."""
        if process.dead:
            return
        process.frozen = True
        process.frozen_until = max(process.frozen_until, self.loop.time() + seconds)
        self.note(process, "is frozen", f"{seconds:.3f} s")
        self.outside.run(self.loop.call_at, process.frozen_until, self._thaw, process)

    def _thaw(self, process: Process) -> None:
        if process.frozen and not process.dead and self.loop.time() >= process.frozen_until:
            self.note(process, "goes on")
            self.loop.thaw(process)

    def _inject(self, fault: Fault) -> None:
        process = self.present.get(fault.process)
        now = self.loop.time()
        self.note(None, "fault", str(fault))
        if fault.kind == "away":
            self.away_until = max(self.away_until, now + fault.seconds)
        elif fault.kind == "step":
            self.set_clock(self.clock.offset + round(fault.seconds * SECOND))
        elif process is None or process.dead:
            return
        elif fault.kind == "kill" or fault.kind == "crash":
            self.kill(process)
        elif fault.kind == "freeze":
            self.freeze(process, fault.seconds)
        elif fault.kind == "skew":
            process.skew += round(fault.seconds * 1e9)
        elif fault.kind == "deaf":
            process.deaf_until = now + fault.seconds
        elif fault.kind == "echo":
            process.echo_until = now + fault.seconds
        elif fault.kind == "restart" and process.worker is not None:
            self.version += 1
            self.stop(process)

    def set_clock(self, offset: Instant) -> None:
        """Set the store's clock so far ahead of true time, in microseconds."""
        self.clock.offset = offset
        self.note(None, "the store's clock is set", f"{offset / SECOND:+.0f} s")
        self.stepped(offset)

    def stop(self, process: Process) -> None:
        """Stop a worker gracefully; its supervisor starts the present version."""
        process.begin(self._stop(process))

    def heal(self) -> None:
        """Let nothing go wrong any more; what is wrong now, such as a frozen process, passes."""
        self._faults.clear()
        self.away_until = 0.0
        for handle in self._timers:
            handle.cancel()

    # ---- processes ----

    def new_process(self, number: int, version: int = 0) -> Process:
        start = sum(each.number == number for each in self.processes)
        process = self.outside.run(Process, self, number, start)
        process.network = Network(process)
        process.store = SharedStore(self.memory, process.network, self.clock, claim_ahead=self.settings.claim_ahead)
        app = self.app(version)
        process.app, process.version = app, version
        process.services = app._services_of(process.store)
        process.locks = Locks(process.services.locks, user=app.user, lease=self.settings.lease, opened=_is_open)
        self.processes.append(process)
        self.present[number] = process
        return process

    def app(self, version: int) -> App:
        """Return a version of the program, whose services are those of the process that uses them."""
        if version not in self._apps:
            app = self._new_app(version)
            if not any(each is app for each in self._apps.values()):
                self._on_leaving.append(_on_each_process(app))
            self._apps[version] = app
        return self._apps[version]

    async def _work(self, process: Process, app: App) -> None:
        """Be a worker: the main task of a process."""
        settings = self.settings
        try:
            await process.store.open()
            await app.client.admission.declare(app.declared())
            await app.schedules.declare()
            specs = _without_network(app._specs_for(None), self.requests)
            worker = Worker(
                process.store,
                specs,
                middleware=app.middlewares,
                secrets=app.secret_reader(process.store),
                add=app.submit_many,
                lifespan=app.lifespan,
                settings=WorkerSettings(
                    concurrency=settings.concurrency,
                    lease=settings.lease,
                    grace=settings.grace,
                    on_lease_lost=settings.on_lease_lost,
                    output_folder="off",
                ),
                duties=lambda store, alarms: [*app.duties(store, alarms, lease=settings.lease), FitLook(store, specs, alarms)],
                keeper=SimulatedKeeper,
            )
            await worker.start()
        except DuetimeError as error:
            self.note(process, "could not start", type(error).__name__)
            self.kill(process)
            return
        process.worker = worker
        self.note(process, "works")

    async def _stop(self, process: Process) -> None:
        """Stop a worker gracefully and end its process."""
        assert process.worker is not None
        self.note(process, "is stopped")
        await process.worker.stop()
        self.note(process, "has stopped")
        self.kill(process)

    async def _supervise(self, number: int) -> None:
        """Keep a worker running: start another process when one has ended."""
        while self._supervised:
            process = self.new_process(number, self.version)
            process.begin(self._work(process, process.app))
            await process.ended.wait()
            await asyncio.sleep(self._chance.choice((0.0, 0.1, 1.0, 3.0)))

    # ---- the simulation ----

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run workers, faults and `main`, which belongs to no process; return what that returns."""
        with self._seams():
            try:
                return self.loop.run_until_complete(self._run(main))
            finally:
                for process in self.processes:
                    process.dead = True
                for process in self.processes:
                    abandon(process)
                for task in self.loop.unowned:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.loop.close()
                self.memory.close()

    async def _run(self, main: Callable[[], Awaitable[T]]) -> T:
        self._timers = [self.loop.call_at(self.began_at + fault.at, self._inject, fault) for fault in self._timed]
        supervisors = [self.loop.create_task(self._supervise(number)) for number in range(self.settings.workers)]
        try:
            return await main()
        finally:
            self._supervised = False
            for supervisor in supervisors:
                supervisor.cancel()

    async def client(self) -> Process:
        """Return the process that submits; a new one if it has died."""
        process = self.present.get(CLIENT)
        if process is None or process.dead:
            process = self.new_process(CLIENT)
            await process.begin(process.store.open())
        return process

    @contextlib.contextmanager
    def _seams(self) -> Iterator[None]:
        """Let the code of the product see virtual time and predictable numbers within the block."""
        state = random.getstate()
        self._on_leaving: list[Callable[[], None]] = []
        with ids.predictable(self.seed), clock.clocks_from(wall=self._wall, monotonic=self.loop.time):
            random.seed(self.seed)
            ids.new_id.begin_with(random.Random(self.seed + 1))  # again, because now it sees virtual time
            try:
                yield
            finally:
                for leave in reversed(self._on_leaving):
                    leave()
                random.setstate(state)

    def _wall(self) -> int:
        process = current()
        return BEGINS_AT * 1_000 + round(self.now * 1e9) + (0 if process is None else process.skew)


class _Here:
    """Stands for a service of the process whose code runs."""

    def __init__(self, find: Callable[[Process], object]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        process = current()
        assert process is not None, "outside of all simulated processes"
        return getattr(self._find(process), name)


async def _is_open() -> None:
    """Each process opens its store first."""


def _on_each_process(app: App) -> Callable[[], None]:
    """Let an App use the services of the process whose code runs; return a function that undoes it."""
    before = app._services
    services: Any = {name: _Here(attrgetter(f"services.{name}")) for name in Services.__struct_fields__}

    async def open_here(migrate: bool) -> None:
        process = current()
        assert process is not None
        await process.services.open(migrate)

    async def close_here() -> None:
        """A process closes its store by ending."""

    services |= {"url": before.url, "open": open_here, "close": close_here}
    here: Any = app
    here._services = Services(**services)
    for name in (
        *("client", "insight", "output", "failures", "secrets", "artifacts", "targets", "flows", "tokens", "doctor"),
        *("limits", "weights", "alerts", "channels"),
    ):
        setattr(here, name, services[name])
    here.event_source = services["events"]
    here.locks = _Here(attrgetter("locks"))
    here.signals = Signals(services["signals"], user=app.user, opened=_is_open, ready=_is_open)
    for name in ("gates", "schedules", "calendars"):
        setattr(here, name, _Here(attrgetter(f"services.client.{name}")))
    here.operations = AppOperations(_Here(attrgetter("services.client.operations")))
    here._is_open = lambda *, declare: True

    def undo() -> None:
        del here._is_open
        app._use(before)

    return undo


def _without_network(specs: Mapping[str, HandlerSpec], requests: TargetSpec | None) -> dict[str, HandlerSpec]:
    """Return the handlers that are Python functions, all as coroutines: there are neither threads nor sub-processes here.

    Those that send requests have the target `requests` instead, if there is one.
    """
    targets: dict[str, TargetSpec | None] = {
        name: _as_coroutine(spec.target) if isinstance(spec.target, PythonFunction) else requests if spec.target.kind == "http" else None
        for name, spec in specs.items()
    }
    return {name: msgspec.structs.replace(specs[name], target=target) for name, target in targets.items() if target is not None}


def _as_coroutine(function: PythonFunction) -> PythonFunction:
    if function.is_async:
        return msgspec.structs.replace(function, isolation="auto")
    call = function.function

    async def called(*args: object, **kwargs: object) -> object:
        await asyncio.sleep(random.uniform(0.0, 0.01))  # a thread takes its time to begin, and may not come to that
        return call(*args, **kwargs)

    return PythonFunction(function=called, takes_context=function.takes_context, is_async=True)
