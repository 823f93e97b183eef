"""Read models for the API, the dashboard and the command line: overviews, and why a task is where it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.model.figures import DURATION, LATENESS, Distribution, FigureKey, distributions
from duetime.model.outcome import Outcome
from duetime.model.retry import DEFAULT_TRIES
from duetime.model.rules.reading import duration_text
from duetime.model.task import FINAL, ErrorInfo, State, TaskRecord
from duetime.model.why import Reason, WhyFacts, why
from duetime.store import Store
from duetime.store.values import Counts, Declaration, WorkerRecord


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task; without an outcome it still runs."""

    attempt: int
    outcome: Outcome | None
    worker: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: ErrorInfo | None


class HandlerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared handler: its policies, the schema of its payload, and counts of its tasks."""

    name: str
    doc: str
    schema: dict[str, Any]
    timeout: float
    priority: int
    concurrency: int
    isolation: str
    retry: dict[str, Any]
    declared_at: datetime
    workers: int
    slots: int
    states: Mapping[State, int]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker.

    `alive` is None where only its next beats can show it. `silent_for` is then how many seconds ago the last beat was, by the store's
    clock, if that is longer than its lease. A pull worker speaks over HTTP; its `host` is the name it gave.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    running: int
    started_at: datetime
    beat_at: datetime | None
    alive: bool | None
    pull: bool = False
    silent_for: float | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """The estimated median and 99th percentile over all attempts that were ever counted, in seconds."""

    p50: float
    p99: float


class HandlerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a handler's tasks by state. `due` and `later` are pending; `oldest_due_at` is the due time of the oldest due task.

    `lateness` (from due to start) and `duration` (from start to end) are of its attempts, None if none has been counted yet.
    """

    handler: str
    due: int
    later: int
    blocked: int
    running: int
    finals: Mapping[State, int]
    oldest_due_at: datetime | None
    lateness: Quantiles | None = None
    duration: Quantiles | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole store at a glance. `workers` counts live workers. Silent ones are not counted."""

    now: datetime
    states: Mapping[State, int]
    handlers: list[HandlerCounts]
    workers: int
    durability: str
    silent_workers: int = 0


class Insight(Protocol):
    """`app.insight`: overviews, and why a task is where it is."""

    @property
    def durability(self) -> str:
        """What committed data survives, in one sentence."""
        ...

    async def ping(self) -> None:
        """Return if tasks can be accepted; raise StoreUnavailable otherwise."""
        ...

    def now(self) -> Instant:
        """Return the time by the store's clock, as far as it is known."""
        ...

    async def why(self, record: TaskRecord) -> list[Reason]:
        """Return everything that a task waits for, or how it ended."""
        ...

    async def attempts(self, task_id: str) -> list[AttemptInfo]: ...

    async def handlers(self) -> list[HandlerInfo]:
        """Return all declared handlers, by name."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Return all registered workers, also dead ones that have not been reaped, by start."""
        ...

    async def stats(self) -> Stats: ...

    async def figures(self) -> dict[FigureKey, int]:
        """Return what all workers have counted together."""
        ...


class LocalInsight(Insight):
    """Overviews read from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def durability(self) -> str:
        return self._store.traits.durability

    async def ping(self) -> None:
        await self._store.ping()

    def now(self) -> Instant:
        return self._store.now()

    async def why(self, record: TaskRecord) -> list[Reason]:
        reasons = why(record, await self._facts(record))
        if record.state is not State.RUNNING:
            return reasons
        doubt = await self._doubt(record)
        return [msgspec.structs.replace(reason, text=reason.text + doubt) for reason in reasons]

    async def attempts(self, task_id: str) -> list[AttemptInfo]:
        return [
            AttemptInfo(
                attempt=each.attempt,
                outcome=each.outcome,
                worker=each.worker,
                started_at=_datetime(each.started_at),
                finished_at=_datetime(each.finished_at),
                error=each.error,
            )
            for each in await self._store.attempts(task_id)
        ]

    async def handlers(self) -> list[HandlerInfo]:
        counts = await self._store.counts()
        workers = [worker for worker in await self._store.workers() if lives(worker, counts.now)]
        by_name = {each.handler: each for each in _by_handler(counts)}
        return [_handler_info(declared, workers, by_name.get(declared.name)) for declared in await self._store.declarations()]

    async def workers(self) -> list[WorkerInfo]:
        workers = sorted(await self._store.workers(), key=lambda worker: worker.started_at)
        now = self._store.now()
        return [
            WorkerInfo(
                id=worker.id,
                host=worker.host,
                pid=worker.pid,
                slots=worker.slots,
                running=worker.running,
                started_at=to_datetime(worker.started_at),
                beat_at=_datetime(worker.beat_at),
                alive=worker.alive,
                pull=worker.pull,
                silent_for=silence(worker, now),
            )
            for worker in workers
        ]

    async def stats(self) -> Stats:
        counts = await self._store.counts()
        handlers = _with_spreads(_by_handler(counts), await self.figures())
        states: Counter[State] = Counter()
        for each in handlers:
            states.update(_states(each))
        workers = await self._store.workers()
        return Stats(
            now=to_datetime(counts.now),
            states={state: states[state] for state in State},
            handlers=handlers,
            workers=sum(lives(worker, counts.now) for worker in workers),
            durability=self._store.traits.durability,
            silent_workers=sum(silence(worker, counts.now) is not None for worker in workers),
        )

    async def figures(self) -> dict[FigureKey, int]:
        return await self._store.figures()

    async def _facts(self, record: TaskRecord) -> WhyFacts:
        now = self._store.now()
        attempts = await self._store.attempts(record.id)
        last = next((each for each in reversed(attempts) if each.outcome is not None), None)
        allowed = await self._tries_allowed(record)
        if record.state in FINAL or record.state is State.RUNNING:
            return WhyFacts(now=now, tries_allowed=allowed)
        live = [worker for worker in await self._store.workers() if lives(worker, now)]
        own = [worker for worker in live if record.handler in worker.slots]
        load = await self._store.handler_load(record.handler)
        return WhyFacts(
            now=now,
            gate=(await self._store.gates()).holding(record.handler, record.collection, now),
            live_workers=len(live),
            workers_of_handler=len(own),
            slots=sum(worker.slots[record.handler] for worker in own),
            running=load.running,
            due_before=load.due if load.more else max(0, load.due - 1),
            more_due=load.more,
            tries_allowed=allowed,
            last_outcome=last.outcome if last else None,
            last_error=last.error if last else None,
        )

    async def _doubt(self, record: TaskRecord) -> str:
        """Return why a task that the store counts as running may not be running: the rest of the sentence, or nothing."""
        worker = next((worker for worker in await self._store.workers() if worker.id == record.worker), None)
        if worker is None:
            return ""
        if worker.alive is False:
            return "; but that worker has ended: the task goes back as soon as another worker, a server or `duetime doctor --repair` looks"
        silent = silence(worker, self._store.now())
        if silent is None:
            return ""
        return (
            f"; but that worker has been silent for {duration_text(round(silent))}: the task goes back as soon as another worker, "
            "a server or `duetime doctor --repair` has seen it silent for a lease"
        )

    async def _tries_allowed(self, record: TaskRecord) -> int:
        numbers = record.retry
        if numbers is None:
            declared = {each.name: each for each in await self._store.declarations()}.get(record.handler)
            numbers = b"{}" if declared is None else declared.retry
        policy: dict[str, Any] = msgspec.json.decode(numbers)
        return int(policy.get("tries", DEFAULT_TRIES))


def silence(worker: WorkerRecord, now: Instant) -> float | None:
    """Return for how many seconds a worker has sent no beat, if that exceeds its lease and the store cannot tell whether it is alive.

    `now` is by the store's clock, like the instants of beats. This is information for people and decides nothing: the clock may have
    been set, and no worker could beat while the store was down. The reaper, which watches the worker for a whole lease, takes its tasks
    back.
    """
    if worker.alive is not None or worker.beat_at is None:
        return None
    seconds = (now - worker.beat_at) / SECOND
    return seconds if seconds > worker.lease else None


def lives(worker: WorkerRecord, now: Instant) -> bool:
    """Return whether a worker counts as alive: not known to be dead, and not silent."""
    return worker.alive is not False and silence(worker, now) is None


def _by_handler(counts: Counts) -> list[HandlerCounts]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, Instant] = {}
    finals: dict[str, dict[State, int]] = defaultdict(dict)
    for lane in counts.lanes:
        sums[lane.handler].update(due=lane.due, later=lane.later, blocked=lane.blocked, running=lane.running)
        if lane.oldest_due_at is not None:
            oldest[lane.handler] = min(lane.oldest_due_at, oldest.get(lane.handler, lane.oldest_due_at))
    for final in counts.finals:
        finals[final.handler][final.state] = final.count
    return [
        HandlerCounts(
            handler=name,
            due=sums[name]["due"],
            later=sums[name]["later"],
            blocked=sums[name]["blocked"],
            running=sums[name]["running"],
            finals=finals.get(name, {}),
            oldest_due_at=_datetime(oldest.get(name)),
        )
        for name in sorted({*sums, *finals})
    ]


def _with_spreads(handlers: list[HandlerCounts], figures: Mapping[FigureKey, int]) -> list[HandlerCounts]:
    late, took = distributions(figures, LATENESS), distributions(figures, DURATION)
    return [
        msgspec.structs.replace(each, lateness=_quantiles(late.get(each.handler)), duration=_quantiles(took.get(each.handler)))
        for each in handlers
    ]


def _quantiles(spread: Distribution | None) -> Quantiles | None:
    if spread is None or (half := spread.quantile(0.5)) is None or (nearly_all := spread.quantile(0.99)) is None:
        return None
    return Quantiles(round(half, 6), round(nearly_all, 6))


def _states(counts: HandlerCounts) -> dict[State, int]:
    live = {State.PENDING: counts.due + counts.later, State.BLOCKED: counts.blocked, State.RUNNING: counts.running}
    return {**live, **counts.finals}


def _handler_info(declared: Declaration, workers: list[WorkerRecord], counts: HandlerCounts | None) -> HandlerInfo:
    own = [worker for worker in workers if declared.name in worker.slots]
    states = {} if counts is None else _states(counts)
    return HandlerInfo(
        name=declared.name,
        doc=declared.doc,
        schema=msgspec.json.decode(declared.schema),
        timeout=declared.timeout,
        priority=declared.priority,
        concurrency=declared.concurrency,
        isolation=declared.isolation,
        retry=msgspec.json.decode(declared.retry),
        declared_at=to_datetime(declared.declared_at),
        workers=len(own),
        slots=sum(worker.slots[declared.name] for worker in own),
        states={state: states.get(state, 0) for state in State},
    )


def _datetime(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
