"""A simulated process: what it has begun, its own clock, and what lies between it and the store."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from duetime.errors import StoreUnavailable
from duetime.store.values import Hint
from duetime.testing.simulation.faults import Fault
from duetime.testing.simulation.loop import OWNER, Owner

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.locks import Locks
    from duetime.client.services import Services
    from duetime.store.sqlite.shared import SharedStore
    from duetime.testing.simulation.cluster import Cluster
    from duetime.worker.worker import Worker

T = TypeVar("T")
Answered = Callable[[Any, Exception | None], None]


class Process(Owner):
    """One process. `number` says which worker it is; each start makes another process of the same number."""

    app: App
    store: SharedStore
    services: Services
    locks: Locks
    network: Network
    worker: Worker | None

    def __init__(self, cluster: Cluster, number: int, start: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.number = number
        self.start = start
        self.name = "client" if number < 0 else f"worker {number}.{start}"
        self.worker = None
        self.version = 0  # of its code
        self.skew = 0  # nanoseconds
        self.frozen_until = 0.0
        self.deaf_until = 0.0
        self.echo_until = 0.0
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, self)
        self.ended = asyncio.Event()  # it has ended, in whatever way

    def begin(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self.cluster.loop.create_task(coroutine, context=self.context.copy())


def current() -> Process | None:
    """Return the process whose code runs now."""
    owner = OWNER.get()
    return owner if isinstance(owner, Process) else None


class Network:
    """A `Link`: calls take a while, and faults of the plan happen to them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._cluster = process.cluster
        self._chance = random.Random(f"{process.cluster.seed} {process.name}")

    async def call(self, verb: str, execute: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._cluster.loop.create_future()
        self.begin(verb, execute, partial(_resolve, future))
        return await future

    def begin(self, verb: str, execute: Callable[[], T], answered: Answered) -> None:
        """Send a call; `answered` is called with its answer, in this process."""
        cluster, process = self._cluster, self._process
        if process.dead:
            return
        fault = cluster.fault_at(process, verb)
        delay = self._delay() + (fault.seconds if fault is not None and fault.kind == "slow" and not _on_its_way_back(fault) else 0.0)
        cluster.outside.run(cluster.loop.call_later, delay, self._arrive, verb, execute, answered, fault)

    def call_now(self, verb: str, execute: Callable[[], T]) -> T:
        fault = self._cluster.fault_at(self._process, verb)
        if self._cluster.away or (fault is not None and fault.kind == "fail"):
            raise StoreUnavailable("the store is away (simulated)")
        value = execute()
        self._cluster.note(self._process, verb, "")
        if fault is not None and fault.kind == "lose":
            raise StoreUnavailable("the answer was lost (simulated)")
        return value

    def deliver(self, on_hint: Callable[[Hint], None], hint: Hint) -> None:
        process, cluster = self._process, self._cluster
        now = cluster.loop.time()
        if process.dead or now < process.deaf_until or cluster.away:
            return
        for _ in range(2 if now < process.echo_until else 1):
            delay = self._delay() if now >= process.echo_until else self._chance.uniform(0.0, 2.0)
            cluster.loop.call_later(delay, on_hint, hint, context=process.context)

    def _delay(self) -> float:
        """Return how long a message takes: mostly a millisecond, one in ten up to 40, one in fifty up to 800."""
        chance = self._chance.random()
        if chance < 0.9:
            return chance * 0.002
        return (chance - 0.9) * 0.5 if chance < 0.98 else (chance - 0.98) * 40.0

    def _arrive(self, verb: str, execute: Callable[[], T], answered: Answered, fault: Fault | None) -> None:
        """Carry a call out on the server, for a process that may have ended meanwhile."""
        cluster, process = self._cluster, self._process
        value: T | None = None
        error: Exception | None = None
        kind = None if fault is None else fault.kind
        if cluster.away and process.number < 0 and cluster.settings.client_waits:
            cluster.outside.run(cluster.loop.call_at, cluster.away_until, self._arrive, verb, execute, answered, fault)
            return
        if kind == "kill":
            cluster.kill(process)
            return
        if cluster.away or kind == "fail":
            error = StoreUnavailable("the store is away (simulated)")
            cluster.note(process, verb, "fails")
        else:
            try:
                value = execute()
            except Exception as refused:
                error = refused
            cluster.note(process, verb, _told(verb, value) if error is None else type(error).__name__)
            if fault is not None and verb == "claim" and not getattr(value, "tasks", True):
                cluster.put_back(fault)  # to lose the answer to a claim that found nothing would change nothing
                fault = kind = None
            if kind == "crash":
                cluster.kill(process)
                return
            if kind == "lose":
                cluster.note(process, verb, "its answer is lost")
                value, error = None, StoreUnavailable("the answer was lost (simulated)")
        delay = self._delay() + (fault.seconds if fault is not None and kind == "slow" and _on_its_way_back(fault) else 0.0)
        if error is not None and cluster.away:
            delay += self._chance.choice((0.0, 0.05, 1.0))
        cluster.loop.call_later(delay, answered, value, error, context=process.context)


def _on_its_way_back(fault: Fault) -> bool:
    """Return whether a slow call is slow after it was carried out."""
    return fault.verb == "claim" or fault.seconds <= 1


def _told(verb: str, value: Any) -> str:
    """Return what the history says of an answer: which tasks a claim brought, by their handlers."""
    return ", ".join(task.handler for task in value.tasks) if verb == "claim" else ""


def _resolve(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
