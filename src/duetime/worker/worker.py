"""The worker: lease, feeder, executor and settler wired together, with a clean start and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache, partial
from importlib import metadata
from types import TracebackType
from typing import Literal, NoReturn, Self, get_args

import msgspec

from duetime.artifacts.source import ArtifactSource
from duetime.clock import SECOND, ahead_of, monotonic
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.ids import token
from duetime.model.addresses import AddressRules
from duetime.model.figures import BLOCKED_LOOPS, LEASE_LOSSES, STALE_WRITES, STORE_ERRORS, FigureKey
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running
from duetime.model.retry import RetryPolicy
from duetime.model.wording import count
from duetime.runtime.service import Alarms, Pulse, Service
from duetime.secrets.reading import SecretReader
from duetime.store import Store
from duetime.store.alerts import DocumentKind
from duetime.store.shard import HintReceiver, Lease
from duetime.store.timing import VerbTimes, timing_of
from duetime.store.values import Hint, HintKind, NewWorker, Renewal
from duetime.targets.context import Resources
from duetime.targets.declaring import declaration_of
from duetime.targets.host import TargetHost
from duetime.targets.http.callbacks import CallbackDoor
from duetime.targets.output import Capture, Echo
from duetime.targets.python.children import ChildPool
from duetime.targets.python.middleware import Middleware
from duetime.targets.spawned import Tracking
from duetime.targets.spec import DEFAULT_PROCESSES, HandlerSpec
from duetime.targets.target import Stop
from duetime.worker.attempt import Attempt
from duetime.worker.disabling import TargetWatch
from duetime.worker.executor import Executor
from duetime.worker.feeder import Feeder, ParkedLooks
from duetime.worker.health import Watch, WorkerHealth, judge
from duetime.worker.keeper import Keeper
from duetime.worker.metrics import Counting, FigureWriter
from duetime.worker.permits import Permits, counted_limits
from duetime.worker.reconciler import Reconciler
from duetime.worker.settler import Settler
from duetime.worker.shipping import begin_shipping
from duetime.worker.step_door import AddTasks, WorkerDoor
from duetime.worker.stored import Serving, StoredTargets
from duetime.worker.updates import Updates
from duetime.worker.withdrawals import Withdrawals

logger = logging.getLogger("duetime.worker")

DEFAULT_LEASE = 15.0
DEFAULT_GRACE = 30.0
EXIT_STUCK = 70
# How long a thread may keep Python's lock while another waits for it. With Python's own 5 ms the store's thread makes no progress
# between its statements as long as handlers run: a drain of no-op tasks did 22,000 a second, with this 26,000.
SWITCH_INTERVAL = 0.0005
INTENTS_AT_ONCE = 1_000
FIRST_PROOF = 5.0  # seconds, or the lease if that is longer, in which a worker must have renewed once before it begins
LAST_WORD = 5.0  # seconds that a cancelled coroutine may use to clean up when the worker stops
FENCE_EVERY = 0.02  # of the lease: how often the event loop, too, looks whether it must stop its attempts, once that may be

Lifespan = Callable[[], AbstractAsyncContextManager[object]]
OnStuck = Literal["exit", "report"]
OnLeaseLost = Literal["exit", "cancel"]


@cache
def _version() -> str:
    """Return which Duetime this is; finding it out reads a file."""
    return metadata.version("duetime")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker runs. `concurrency` bounds all handlers of the process together; `grace` is for stopping.

    `on_stuck`: what to do when an attempt's code does not end although it was told to. "exit" ends the process after the
    others have finished (for workers of their own), "report" only says so (for workers inside a user's program).

    `on_lease_lost`, on stores that go by leases: how far to go when the lease cannot be renewed. Either way coroutines are
    cancelled, children killed and threads told to stop at 0.7 of the lease. With "exit" the kernel ends the process at 0.9 if
    anything still runs there, so that nothing can overlap with its successor; with "cancel" it does not, and a blocked event
    loop or a thread that does not stop may overlap. The fence still keeps it from writing.

    `echo` gets each line that an attempt prints, from any thread, beside its being kept. `addresses` says where HTTP handlers may
    connect to, `callback_door` where servers report on work that they have accepted. `stored`: which stored targets it serves.
    """

    concurrency: int | None = None
    lease: float = DEFAULT_LEASE
    grace: float = DEFAULT_GRACE
    on_stuck: OnStuck = "report"
    on_lease_lost: OnLeaseLost = "cancel"
    output_folder: str | None = None
    output_cap: int = 1 << 20
    echo: Echo | None = None
    addresses: AddressRules = AddressRules()
    callback_door: CallbackDoor | None = None
    stored: Serving | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise InvalidValue(f"concurrency must be at least 1, got {self.concurrency}")
        if self.lease < 0.5:
            raise InvalidValue(f"lease must be at least half a second, got {self.lease}")
        for name, allowed in (("on_stuck", get_args(OnStuck)), ("on_lease_lost", get_args(OnLeaseLost))):
            if getattr(self, name) not in allowed:
                raise InvalidValue(f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}")


class Worker:
    """Claims and executes tasks in this process. Use it as an async context manager, or call `start` and `stop`.

    `id` is random unless a supervisor chose it, so that the supervisor knows which worker ended. Every sub-process holds the
    descriptors in `inherit` as long as it lives. `add` submits the tasks that handlers call.
    `hold` is given the descriptors by which the worker counts as alive, before it claims: whoever holds them
    too keeps its tasks from others until what it has started is gone. `keeper` is what renews its lease; a simulation has one
    without a thread.
    """

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, HandlerSpec],
        *,
        middleware: Sequence[Middleware] = (),
        secrets: SecretReader | None = None,
        artifacts: ArtifactSource | None = None,
        add: AddTasks | None = None,
        lifespan: Lifespan | None = None,
        app_path: str | None = None,
        settings: WorkerSettings | None = None,
        duties: Callable[[Store, Alarms], Sequence[Service]] = lambda store, alarms: (),
        id: str | None = None,
        inherit: Sequence[int] = (),
        hold: Callable[[Sequence[int]], None] | None = None,
        keeper: type[Keeper] = Keeper,
    ) -> None:
        self.id = token(8) if id is None else id
        self._inherit = tuple(inherit)
        self._hold = hold
        self._new_keeper = keeper
        self._store = store
        self._specs = specs
        self._middleware = middleware
        self._secrets = secrets
        self._artifacts = artifacts
        self._add = add
        self._lifespan = lifespan
        self._app_path = app_path
        self._settings = settings or WorkerSettings()
        self._make_duties = duties
        self._resources = AsyncExitStack()
        self._stopped = self._registered = False
        self._reconciler = Reconciler()
        self._confirmed_gates = -1
        self._lease_losses = 0
        self._lost = False
        self.draining = False  # told by an operator, through the store, to start nothing more
        self.left = False  # whether it has unregistered
        self.stuck: Attempt | None = None
        self.on_stuck: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # ---- start ----

    async def start(self) -> None:
        """Open resources, register, confirm the gates and begin to claim."""
        settings = self._settings
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._alarms = Alarms()
        self._shippers = begin_shipping(
            self._store, self._alarms, settings.output_folder, settings.output_cap, running=lambda: self.executor.attempts()
        )
        output = self._shippers[0].files if self._shippers else None
        if output is not None:
            output.echo = settings.echo
        self._capture = Capture()
        self._tracking = Tracking()
        self.settler = Settler(self._store, self.id, self._alarms)
        self.executor = Executor(
            self._store,
            self._specs,
            self._alarms,
            TargetHost(
                self._middleware,
                addresses=settings.addresses,
                secrets=self._secrets,
                artifacts=self._artifacts,
                callback_door=settings.callback_door,
            ),
            self.settler,
            concurrency=settings.concurrency,
            output=output,
            freed=lambda: self.feeder.freed(),
            stuck=self._on_stuck,
        )
        self.executor.host.steps = WorkerDoor(self._store, self.id, self._specs, self._add)
        self.executor.host.channels = self._channel
        self._permits = Permits(self._store, self.id, self.executor.queues.by_name.values(), self._alarms, more=self.executor.go_on)
        self.executor.permits, self.executor.queues.on_lack = self._permits, self._permits.need
        self.settler.on_handed_over = self._permits.handed_over
        self.executor.target_watch = self._target_watch = TargetWatch(self._store, self.id, self.executor.starts, self._alarms)
        self._withdrawals = Withdrawals(self._store, self.executor, self._alarms)
        self._declared = {name: declaration_of(spec).digest for name, spec in self._specs.items()}
        self.stored = StoredTargets(
            self._store, self.executor, self._alarms, own=self._specs, serving=settings.stored, changed=self._on_targets_changed
        )
        self.feeder = Feeder(self._store, self.id, self.executor, self._alarms, declared=self._declared)
        self._target_watch.probe_moved = self.feeder.look_for_probes
        try:
            if self._lifespan is not None:
                self.executor.resources = Resources(await self._resources.enter_async_context(self._lifespan()))
                if self._alarms.original.copied:
                    self._alarms.original.leave()
            if output is not None:
                self._capture.install()  # after the lifespan, in which programs set up their logging
            self._tracking.begin()
            # what was cancelled in a transaction while no worker was here must not start
            while await self._store.carry_out(INTENTS_AT_ONCE) >= INTENTS_AT_ONCE:
                pass
            await self.stored.run_once()
            await self._register()
        except BaseException:
            self._tracking.end()
            self._capture.uninstall()
            self._alarms.close()
            for shipper in self._shippers:
                shipper.leave()
            await self._resources.aclose()
            raise
        self._updates = Updates(self._store, self, self._alarms)
        self._duties = list(self._make_duties(self._store, self._alarms))
        self._counting = [duty for duty in self._duties if isinstance(duty, Counting)]
        self._hint_receivers = [duty for duty in self._duties if isinstance(duty, HintReceiver)]
        self._listener = self._store.listen(self._on_hint)
        settlers = (self.settler, self.settler.assistant) if self._store.traits.settles_at_once > 1 else (self.settler,)
        self._figures = FigureWriter(self._store, f"worker {self.id}", self._alarms, self.totals, self._note_lag)
        self._noted_lag = 0.0
        self._parked = ParkedLooks(self.feeder, self._alarms)
        watching = (self.stored, self._target_watch, self._withdrawals, self._permits)
        loops = (self.feeder, *settlers, self._updates, self._parked, *watching, self._figures, *self._shippers, *self._duties)
        self._pulses = (*(service.pulse for service in loops), self._keeper.pulse)
        self._watch = Watch(self._pulses, self._alarms, unsettled=self._unsettled, fence=self._fence)
        self._keeper.start()
        for service in (*loops, self._watch):
            service.start()

    async def _register(self) -> None:
        try:
            lease, registered_at = await self._prove()
            if self._hold is not None:
                self._hold(lease.inheritable())
            await self._store.declare_counted(*counted_limits(self.executor.queues.by_name.values()))
            # registered before the gates are read: a gate that is set either waits for this worker or is seen by it
            await self.confirm_gates()
        except BaseException:
            with contextlib.suppress(StoreUnavailable):
                await self._store.unregister(self.id)  # a write that was cancelled here may have been done all the same
            raise
        self._registered = True
        self.executor.host.inherit = (*lease.inheritable(), *(shipper.descriptor for shipper in self._shippers), *self._inherit)
        if self._app_path is not None:
            inherit = self.executor.host.inherit
            self.executor.host.children = ChildPool(
                self._app_path, inherit=inherit, max_idle=max(DEFAULT_PROCESSES, 4), output_cap=self._settings.output_cap
            )
        fenced = self._store.traits.liveness == "lease"
        if fenced and (ahead := ahead_of(self._store.now())):
            text = (
                "the clock of this machine is %.1f s %s that of the store, which decides what is due; `datetime.now()` in handlers is off"
            )
            logger.warning(text, abs(ahead), "ahead of" if ahead > 0 else "behind")
        self._keeper = self._new_keeper(
            lease,
            self.executor.current,
            period=self._settings.lease,
            fenced=fenced,
            deadly=fenced and self._settings.on_lease_lost == "exit",
            registered_at=registered_at,
            renewed=self._on_renewal,
            hold=self.executor.hold_starts,
            lost=self._on_lost,
            sever=self.kill_children,
            hopeless=self._on_hopeless,
            now=self._store.now,
        )
        self._keeper.pulse.outage = self._alarms.outage

    async def _prove(self) -> tuple[Lease, float]:
        """Register, and renew once before anything else uses a connection: a worker that cannot prove that it lives must not begin."""
        deadline = monotonic() + max(self._settings.lease, FIRST_PROOF)
        while True:
            registered_at = monotonic()
            lease = await self._store.register(self._registration())
            if self._store.traits.liveness != "lease":
                return lease, registered_at
            try:
                if (await asyncio.to_thread(lease.renew)).known:
                    return lease, registered_at
            except StoreUnavailable:
                if monotonic() > deadline:
                    lease.close()
                    raise
            lease.close()  # nothing has begun, so there is no hurry
            await asyncio.sleep(0.1)

    def _registration(self) -> NewWorker:
        slots = {name: queue.concurrency for name, queue in self.executor.queues.by_name.items() if queue.concurrency}
        return NewWorker(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=slots,
            concurrency=self.executor.queues.slots,
            lease=self._settings.lease,
            declared=self._declared,
            draining=self.draining,
            version=_version(),
            python=platform.python_version(),
        )

    async def register_again(self) -> None:
        """Go on after this worker was taken for dead and everything that it had has ended."""
        (await self._store.register(self._registration())).close()
        await self._store.declare_counted(*counted_limits(self.executor.queues.by_name.values()))
        self._permits.forget()
        self._confirmed_gates = -1
        await self.confirm_gates()
        if not self.draining and self._keeper.proves(monotonic()):  # otherwise the next renewal does
            self.executor.starts.allowed = True
        self.feeder.wake()
        logger.warning("worker %s is registered again", self.id)

    async def _channel(self, name: str) -> bytes | None:
        """Return where notices for a channel go."""
        return next((each.body for each in await self._store.alert_documents(DocumentKind.CHANNEL, [name])), None)

    async def _on_targets_changed(self) -> None:
        """Tell the store what this worker runs now, unless it is still to register."""
        for name in self._declared.keys() - self._specs.keys():
            del self._declared[name]
        self._declared |= self.stored.declared
        if self._registered:
            await self._store.change_slots(self._registration())
            self.feeder.wake()
            self._withdrawals.wake()

    async def confirm_gates(self) -> None:
        """Take the newest gates, give back what they hold, and only then confirm them."""
        gates = await self._store.gates()
        if gates.version != self._confirmed_gates:
            self.executor.starts.gates = gates
            self.executor.release_queued()
            if any(gate.probe_at is not None for gate in gates):
                self.feeder.look_for_probes()
            if self.executor.starts.too_late:  # an attempt that they hold is beginning: `on_begun` is called when it has begun
                self.executor.starts.on_begun = partial(self._updates.note, HintKind.GATES)
                return
            self.executor.starts.on_begun = None
            await self._store.confirm_gates(self.id, gates.version)
            self._confirmed_gates = gates.version

    # ---- metrics ----

    def store_times(self) -> Mapping[str, VerbTimes]:
        """Return how long the verbs of the store took in this process; counted from the first call on, from any thread."""
        return timing_of(self._store).times()

    def totals(self) -> dict[FigureKey, int]:
        """Return what this worker has counted since it started; from any thread."""
        totals = {key: count for name, tally in self.executor.tallies().items() for key, count in tally.totals(name)}
        for duty in self._counting:
            totals |= duty.totals()
        totals |= {
            FigureKey(STALE_WRITES): self.settler.stale,
            FigureKey(LEASE_LOSSES): self._lease_losses,
            FigureKey(STORE_ERRORS): sum(pulse.store_errors for pulse in self._pulses),
            FigureKey(BLOCKED_LOOPS): self._keeper.blocked,
        }
        return totals

    async def _note_lag(self) -> None:
        """Let others see that the event loop answers late; a worker whose loop never does writes nothing."""
        lag = self._keeper.take_lag()
        if lag != self._noted_lag:
            await self._store.note_lag(self.id, lag)
            self._noted_lag = lag

    # ---- health ----

    def health(self) -> WorkerHealth:
        """Return its health; from any thread, also while the event loop is blocked."""
        now = monotonic()
        stuck = self.stuck
        return judge(
            self._pulses,
            now,
            proved=self._keeper.proves(now) and not self._updates.dismissed,
            proved_ago=max(0.0, now - self._keeper.proved_at),
            blocked_for=self._keeper.blocked_for(now),
            running=len(self.executor.running),
            unsettled=self._unsettled(),
            store_away=self._alarms.outage.lasts,
            stuck=None if stuck is None else f"attempt {stuck.claimed.attempt} of task {stuck.claimed.id} ({stuck.spec.name})",
        )

    @property
    def pulses(self) -> Sequence[Pulse]:
        """The pulses of its loops, for others that watch this process."""
        return self._pulses

    def _unsettled(self) -> int:
        return len(self.settler.ids())

    # ---- hints and renewals ----

    def _on_hint(self, hint: Hint) -> None:
        if hint.kind is HintKind.GATES or hint.kind is HintKind.CANCEL:
            self._updates.note(hint.kind)
            if hint.kind is HintKind.CANCEL:
                self._withdrawals.wake()
        elif hint.kind is HintKind.PARKED:
            self._parked.wake()
            return
        elif hint.kind is HintKind.TARGETS:
            self.stored.wake()
            return
        elif hint.kind is HintKind.LIMITS:
            self._permits.wake()
            return
        elif hint.kind is not HintKind.SCHEDULES and hint.kind is not HintKind.INTENTS:
            self.feeder.on_hint(hint)
            if hint.kind is not HintKind.ANY:
                return
        for duty in self._hint_receivers:
            duty.on_hint(hint)

    def _on_renewal(self, renewal: Renewal) -> None:
        """Compare what the store has of this worker with what it runs; either side may have lost something."""
        if not renewal.known:
            if not self._stopped and not self._updates.dismissed:
                logger.error("worker %s was taken for dead: stopping all its attempts", self.id)
                self._updates.note_dismissed()
            self._on_lost(Stop.LOST)
            return
        self._lost = False
        if renewal.draining is not self.draining:
            self._on_draining(renewal.draining)
        if not self._stopped and not self.draining:
            self.executor.starts.allowed = True
        if renewal.gates_version != self._confirmed_gates:
            self._updates.note(HintKind.GATES)
        self.stored.on_version(renewal.targets_version)
        if any(attempt.cancelling for attempt in renewal.attempts):
            self._updates.note(HintKind.CANCEL)
        strays, losses = self._reconciler.compare(renewal.attempts, self.executor.attempts(), self.settler.ids(), self.feeder.known)
        now = self._store.now()
        for stray in strays:
            logger.warning("task %s was claimed for this worker but never arrived; it goes back", stray.id)
            facts = Running(stray.id, "", stray.attempt, stray.tries, stray.crashes, now, None)
            self.settler.put(conclude(facts, Ended(Outcome.RELEASED), RetryPolicy(), started_at=None, now=now, chance=0.0))
        for task in losses:
            logger.error("task %s is no longer this worker's: stopping its attempt", task)
            self.executor.lose(task)

    def _on_draining(self, draining: bool) -> None:
        """Start nothing more and give back what waits here; or go on."""
        self.draining = draining
        if draining:
            logger.info("worker %s drains: it finishes what runs and starts nothing more", self.id)
            self.executor.hold_starts()
        else:
            logger.info("worker %s claims again", self.id)
            self.feeder.wake()

    def _on_lost(self, why: Stop = Stop.RELEASE) -> None:
        """Stop everything. The ends are written when the store answers; they count for attempts that are still this worker's then."""
        self._lease_losses += not self._lost
        self._lost = True
        self.executor.hold_starts()
        self.executor.stop_all(why)

    def _fence(self) -> float:
        """Stop attempts if the lease says so; return the seconds after which to look again."""
        self._keeper.fence()
        if self.executor.at_rest:
            self._keeper.spare()
        return max(self._keeper.fenced_in(monotonic()), self._settings.lease * FENCE_EVERY)

    def kill_children(self) -> None:
        """Kill all sub-processes, and what attempts have started; from any thread, because the event loop may be blocked."""
        self.executor.kill_processes()

    def _on_stuck(self, attempt: Attempt) -> None:
        """Give up on an attempt whose code does not end; it stays claimed as long as this process lives."""
        logger.error(
            "attempt %d of task %s (%s) was told to stop but its code does not end; it stays claimed until this process ends",
            attempt.claimed.attempt,
            attempt.claimed.id,
            attempt.spec.name,
        )
        if self.stuck is None and self._settings.on_stuck == "exit":
            self.stuck = attempt
            if self.on_stuck is not None:
                self.on_stuck()

    def _on_hopeless(self, attempt: Attempt) -> None:
        """Called by the keeper's thread: the event loop has been blocked far beyond the attempt's deadline."""
        logger.error("handler %s blocks the event loop for good; its process must end", attempt.spec.name)
        if self._settings.on_stuck == "exit":
            os._exit(EXIT_STUCK)

    # ---- stop ----

    async def stop(self, grace: float | None = None) -> None:
        """Claim nothing more, let attempts finish for a while, then stop them, and give everything back."""
        if self._stopped:
            return
        if self._alarms.original.copied:
            self._alarms.original.leave(sys.exception())
        self._stopped = True
        grace = self._settings.grace if grace is None else grace
        await self._parked.stop()
        await self.stored.stop()
        await self.feeder.stop()
        self.executor.hold_starts()
        await self._until_idle(grace)
        self.executor.stop_all(Stop.RELEASE)
        await self._until_idle(LAST_WORD)
        services = (*self._duties, *self._shippers, self._updates, self._target_watch, self._withdrawals, self._permits, self._figures)
        for service in (*services, self.settler.assistant, self.settler, self._watch):
            await service.stop()
        await self.settler.drain()
        with contextlib.suppress(StoreUnavailable):
            await self._target_watch.tell()
        try:
            await self._figures.write()
        except StoreUnavailable:
            pass
        except Exception:  # counts are not worth a worker that stays registered
            logger.exception("worker %s could not write its last metrics; what it counted in its last seconds is missing", self.id)
        self._listener.close()
        await self.executor.close()
        await self._leave()
        for shipper in self._shippers:
            await shipper.finish()
        self._keeper.stop()
        self._alarms.outage.leave(self._keeper.pulse)
        self._tracking.end()
        self._capture.uninstall()
        self._alarms.close()
        await self._resources.aclose()

    async def _leave(self) -> None:
        """Unregister; but code that still runs keeps its claims, because nobody else may run them yet."""
        left = list(self.executor.running.values())
        if left and self._settings.on_stuck == "report":
            still = count(len(left), "attempt still runs", "attempts still run")
            logger.error("%s in threads that do not end; what they run stays claimed until this process ends", still)
            return
        if left:
            await self._leave_in_a_second(left)
        with contextlib.suppress(StoreUnavailable):
            await self._store.unregister(self.id)
            self.left = True

    async def _leave_in_a_second(self, left: Sequence[Attempt]) -> NoReturn:
        """End this process although threads still run in it.

        The kernel ends it within a second, whatever they do; what goes back may be claimed a second after that. An attempt that
        was stuck before stays claimed, is found lost, and runs in a sub-process next time, which can be ended alone.
        """
        self._keeper.arm(1.0)
        back = [attempt for attempt in left if attempt.stop is Stop.RELEASE]
        now = self._store.now()
        for attempt in back:
            settlement = conclude(
                attempt.claimed, Ended(Outcome.RELEASED), attempt.spec.retry, started_at=attempt.started_at, now=now, chance=0.0
            )
            self.settler.put(msgspec.structs.replace(settlement, due_at=now + 2 * SECOND))
        await self.settler.drain()
        self.kill_children()
        os._exit(0 if len(back) == len(left) else EXIT_STUCK)

    async def _until_idle(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.executor.running and asyncio.get_running_loop().time() < deadline:
            if self.stuck is not None and len(self.executor.running) == 1:
                return
            await asyncio.sleep(0.01)
