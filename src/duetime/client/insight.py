"""Read models for the API, the dashboard and the command line: overviews, and why a task is where it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duetime.client.activity import USUAL_UPCOMING, Activity, check_upcoming, read_activity
from duetime.client.health import gather
from duetime.client.liveness import lives, silence
from duetime.client.series import Series, read_series, read_series_by_handler, span_of
from duetime.client.servers import ServerInfo, server_info
from duetime.client.targets import TargetInfo, info_of
from duetime.client.workers import WorkerInfo, worker_info
from duetime.clock import Instant, to_datetime
from duetime.errors import StoreUnavailable, UnknownHandler
from duetime.model.figures import DURATION, LATENESS, Distribution, FigureKey, distributions
from duetime.model.health import HealthFacts, HealthVerdict, verdict
from duetime.model.limit import LimitRecord
from duetime.model.names import HandlerNames
from duetime.model.outcome import Outcome
from duetime.model.retry import DEFAULT_TRIES
from duetime.model.rules.reading import duration_text
from duetime.model.steps import StepRecord
from duetime.model.task import FINAL, ErrorInfo, State, TaskRecord
from duetime.model.why import MOST_NAMED, Awaited, HandlerSource, Reason, ReasonKind, Under, WhyFacts, WorkerLoad, requested, why
from duetime.store import Store
from duetime.store.values import Counts, Declaration, WorkerRecord

_decode = msgspec.json.Decoder(dict[str, Any]).decode

UNSEEN = "other handlers"  # in place of the names of handlers that the reader may not see


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task; without an outcome it still runs.

    `detail` is what its target observed, such as the status and the phases of a request; None if it says nothing.
    `left_out` is how many attempts between the one before and this one are not kept any more.
    """

    attempt: int
    outcome: Outcome | None
    worker: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: ErrorInfo | None
    detail: dict[str, Any] | None = None
    left_out: int = 0


class HandlerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared handler: its policies, the schema of its payload, and counts of its tasks.

    `keep`: for how many seconds its finished tasks are kept, by state, where it differs from the settings. `start_within`: how many
    seconds after being due its tasks should start. `target`: how its attempts are performed, if that is stored and not in code.
    """

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
    aliases: Sequence[str] = ()
    keep: Mapping[State, float] = {}
    start_within: float | None = None
    target: TargetInfo | None = None


class HandlerDetails(HandlerInfo, frozen=True, kw_only=True):
    """A declared handler, and what it does: what runs, how its last attempt went, when its next task is due."""

    activity: Activity


class Quantiles(msgspec.Struct, frozen=True):
    """The estimated median, 95th and 99th percentile over all attempts that were ever counted, in seconds."""

    p50: float
    p95: float
    p99: float


class HandlerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a handler's tasks by state. `due`, `later` and `parked` are pending; `oldest_due_at` is that of the oldest due task.
    `accepted` are among the running: somebody outside works on them, and they take no slot.

    `more`: more are due than were counted (a million of each collection and priority), and `later` need not be right.

    `lateness` (from due to start) and `duration` (from start to end) are of its attempts, None if none has been counted yet.
    """

    handler: str
    due: int
    later: int
    blocked: int
    running: int
    finals: Mapping[State, int]
    oldest_due_at: datetime | None
    parked: int = 0
    accepted: int = 0
    lateness: Quantiles | None = None
    duration: Quantiles | None = None
    more: bool = False


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole store at a glance. `workers` counts live workers. Silent ones are not counted."""

    now: datetime
    states: Mapping[State, int]
    handlers: list[HandlerCounts]
    workers: int
    durability: str
    silent_workers: int = 0

    def part(self, may_see: Callable[[str], bool]) -> Stats:
        """Return what somebody may see who may see some handlers: the counts of these."""
        handlers = [each for each in self.handlers if may_see(each.handler)]
        return msgspec.structs.replace(self, handlers=handlers, states=_sums(handlers))


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

    async def why(self, record: TaskRecord, *, may_see: Callable[[str], bool] | None = None) -> list[Reason]:
        """Return everything that a task waits for, or how it ended. Handlers that the reader may not see are not named."""
        ...

    async def attempts(self, task_id: str, *, after: int = 0, limit: int | None = None) -> list[AttemptInfo]:
        """Return the attempts of a task that are kept, the first one first: those with numbers above `after`.

        At most `limit`, and then fewer where their errors are large, but at least one if there is one.
        """
        ...

    async def handlers(self) -> list[HandlerInfo]:
        """Return all declared handlers, by name."""
        ...

    async def handler(self, name: str) -> HandlerDetails:
        """Return a declared handler and what it does; by any of its names. Raises UnknownHandler if nobody has declared it."""
        ...

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[TaskRecord]:
        """Return the pending tasks of a handler that only time holds back, in the order in which they are due."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Return all registered workers, also dead ones that have not been reaped, by start."""
        ...

    async def servers(self) -> list[ServerInfo]:
        """Return the servers that have made themselves known, by start."""
        ...

    async def stats(self) -> Stats: ...

    async def health(self) -> HealthVerdict:
        """Return whether all is well, and what is not, worst first; also while the store is away."""
        ...

    async def figures(self) -> dict[FigureKey, int]:
        """Return what all workers have counted together."""
        ...

    async def series(
        self,
        names: Iterable[str] = (),
        *,
        handler: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        """Return what happened when, of a handler or of all together; see `App.series`."""
        ...

    async def series_by_handler(
        self, names: Iterable[str] = (), *, since: datetime | None = None, until: datetime | None = None, step: int | None = None
    ) -> list[Series]:
        """Return the same of each handler that is declared or has something to show, by name."""
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

    async def why(self, record: TaskRecord, *, may_see: Callable[[str], bool] | None = None) -> list[Reason]:
        reasons = why(record, await self._facts(record, may_see))
        if record.state not in FINAL and (intents := await self._store.intents(record.id)):
            reasons.insert(0, requested(["cancel" if intent.edit is None else "edit" for intent in intents]))
        if record.state is not State.RUNNING:
            return reasons
        doubt = await self._doubt(record)
        return [
            msgspec.structs.replace(reason, text=reason.text + doubt) if reason.kind is ReasonKind.RUNNING else reason for reason in reasons
        ]

    async def attempts(self, task_id: str, *, after: int = 0, limit: int | None = None) -> list[AttemptInfo]:
        found = some = await self._store.attempts(task_id, after=after, limit=limit)
        while some and limit is None:
            some = await self._store.attempts(task_id, after=some[-1].attempt)
            found = [*found, *some]
        return [
            AttemptInfo(
                attempt=each.attempt,
                outcome=each.outcome,
                worker=each.worker,
                started_at=_datetime(each.started_at),
                finished_at=_datetime(each.finished_at),
                error=each.error,
                detail=None if each.detail is None else _decode(each.detail),
                left_out=each.attempt - previous - 1,
            )
            for previous, each in zip([after, *(each.attempt for each in found)], found, strict=False)
        ]

    async def handlers(self) -> list[HandlerInfo]:
        counts = await self._store.counts()
        workers = [worker for worker in await self._store.workers() if lives(worker, counts.now) and not worker.draining]
        declarations = await self._store.declarations()
        names = names_of(declarations)
        by_name = {each.handler: each for each in _by_handler(counts, names)}
        present = [declared for declared in declarations if names.present(declared.name) == declared.name]
        targets = {each.name: info_of(each) for each in await self._store.targets()}
        return [_handler_info(each, workers, by_name.get(each.name), targets.get(each.name)) for each in present]

    async def handler(self, name: str) -> HandlerDetails:
        found = next((each for each in await self.handlers() if name in (each.name, *each.aliases)), None)
        if found is None:
            raise unknown_handler(name)
        return HandlerDetails(**msgspec.structs.asdict(found), activity=await read_activity(self._store, found.name, found.states))

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[TaskRecord]:
        return await self._store.upcoming(handler, check_upcoming(limit))

    async def workers(self) -> list[WorkerInfo]:
        workers = sorted(await self._store.workers(), key=lambda worker: worker.started_at)
        now = self._store.now()
        return [worker_info(worker, now) for worker in workers]

    async def servers(self) -> list[ServerInfo]:
        found, now = await self._store.servers(), self._store.now()
        return [server_info(server, now) for server in found]

    async def stats(self) -> Stats:
        counts = await self._store.counts()
        names = names_of(await self._store.declarations())
        handlers = _with_spreads(_by_handler(counts, names), await self.figures())
        states: Counter[State] = Counter()
        for each in handlers:
            states.update(_states(each))
        workers = await self._store.workers()
        return Stats(
            now=to_datetime(counts.now),
            states=_sums(handlers),
            handlers=handlers,
            workers=sum(lives(worker, counts.now) for worker in workers),
            durability=self._store.traits.durability,
            silent_workers=sum(silence(worker, counts.now) is not None for worker in workers),
        )

    async def health(self) -> HealthVerdict:
        now = self._store.now()
        try:
            silent = {worker.id: seconds for worker in await self._store.workers() if (seconds := silence(worker, now)) is not None}
            facts = await gather(self._store, names_of(await self._store.declarations()), silent)
        except StoreUnavailable as problem:
            facts = HealthFacts(now=now, away=str(problem))
        return verdict(facts)

    async def figures(self) -> dict[FigureKey, int]:
        return await self._store.figures()

    async def series(
        self,
        names: Iterable[str] = (),
        *,
        handler: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        span = span_of(self._store.now(), since, until, step)
        present = HandlerNames() if handler is None else names_of(await self._store.declarations())
        return await read_series(self._store, names, handler, span, present)

    async def series_by_handler(
        self, names: Iterable[str] = (), *, since: datetime | None = None, until: datetime | None = None, step: int | None = None
    ) -> list[Series]:
        span = span_of(self._store.now(), since, until, step)
        declared = await self._store.declarations()
        present = names_of(declared)
        return await read_series_by_handler(self._store, names, {present.present(each.name) for each in declared}, span)

    async def _facts(self, record: TaskRecord, may_see: Callable[[str], bool] | None) -> WhyFacts:
        now = self._store.now()
        attempts = await self._store.attempts(record.id, after=max(0, record.attempt - 2))
        last = next((each for each in reversed(attempts) if each.outcome is not None), None)
        allowed = await self._tries_allowed(record)
        if record.state in FINAL or record.state is State.RUNNING:
            return WhyFacts(now=now, tries_allowed=allowed)
        live = [worker for worker in await self._store.workers() if lives(worker, now)]
        serving = [worker for worker in live if record.handler in worker.slots]
        draining = [worker.id for worker in serving if worker.draining]
        starting = [worker for worker in serving if not worker.draining]
        load = await self._store.handler_load(record.handler)
        awaited, in_all = await self._awaited(record, may_see)
        gates = (await self._store.gates()).all_holding(record.handler, record.collection, now)
        declared = await self._store.declarations()
        present = names_of(declared).present(record.handler)
        limits = [limit for limit in await self._store.limits() if record.handler in limit.uses]
        return WhyFacts(
            now=now,
            under=await self._under(record, limits, may_see) if record.parked else None,
            awaited=awaited,
            awaited_in_all=in_all,
            gates=[msgspec.structs.replace(gate, handler=present) for gate in gates],  # the name by which it is set and opened
            live_workers=len(live),
            workers=await self._loads(record.handler, starting, may_see),
            draining=draining,
            limits=limits,
            weights=next((each.weights for each in await self._store.weights() if each.handler == present and each.is_fair), None),
            reserve=next((each.reserve for each in declared if each.name == present), {}),
            source=HandlerSource.CODE if serving else await self._source(record.handler),
            due_before=load.due if load.more else max(0, load.due - 1),
            more_due=load.more,
            tries_allowed=allowed,
            step=await self._open_step(record),
            last_outcome=last.outcome if last else None,
            last_error=last.error if last else None,
        )

    async def _under(self, record: TaskRecord, limits: Sequence[LimitRecord], may_see: Callable[[str], bool] | None) -> Under | None:
        """Return the limit that has parked a task; tasks of handlers that the caller may not see are not named."""
        parked = await self._store.parked_under(record.id)
        limit = next((each for each in limits if parked is not None and each.name == parked.limit), None)
        if parked is None or limit is None:
            return None
        found = await self._store.partitions(parked.limit, only=parked.partition)
        if not found:
            return None  # it has just gone on
        partition = found[0]
        if may_see is not None and not all(may_see(handler) for handler in limit.uses):
            partition = msgspec.structs.replace(partition, tasks=())
        return Under(limit, partition, parked.before)

    async def _open_step(self, record: TaskRecord) -> StepRecord | None:
        """Return the step that a task waits for between two of its attempts."""
        steps = await self._store.steps(record.id) if record.attempt else []
        return next((step for step in reversed(steps) if not step.done), None)

    async def _awaited(self, record: TaskRecord, may_see: Callable[[str], bool] | None) -> tuple[list[Awaited], int]:
        """Return the first tasks that a blocked one waits for, and how many these are in all."""
        edges = await self._store.unmet_edges(record.id) if record.state is State.BLOCKED else []
        parents = await self._store.get([edge.parent for edge in edges[:MOST_NAMED]])
        awaited = []
        for edge, parent in zip(edges, parents, strict=False):
            seen = parent is not None and (may_see is None or may_see(parent.handler))
            name = f"task {edge.parent}" + (f" of {parent.handler}" if parent is not None and seen else "")
            if parent is not None and seen and parent.key is not None and (parent.handler, parent.key) == (record.handler, record.key):
                name += ", which has its key,"
            awaited.append(Awaited(name, parent.state if parent is not None and seen else None, edge.needs))
        return awaited, len(edges)

    async def _source(self, handler: str) -> HandlerSource:
        """Return where workers find out how a handler's attempts are performed."""
        stored = next(iter(await self._store.targets([handler])), None)
        if stored is not None and not stored.shadowed:
            return HandlerSource.STORED_COMMAND if stored.kind == "command" else HandlerSource.STORED
        names = names_of(declared := await self._store.declarations())
        known = any(names.present(handler) == each.name for each in declared)
        return HandlerSource.CODE if known else HandlerSource.NOWHERE

    async def _loads(self, handler: str, workers: Iterable[WorkerRecord], may_see: Callable[[str], bool] | None) -> list[WorkerLoad]:
        """Return how busy these workers are, all of which run the handler. The names of a handler share its slots."""
        names = names_of(await self._store.declarations())
        running: dict[str, Counter[str]] = defaultdict(Counter)
        for each in await self._store.running_counts():
            name = names.present(each.handler)
            seen = may_see is None or may_see(name) or name == names.present(handler)
            running[each.worker][name if seen else UNSEEN] += each.count
        return [
            WorkerLoad(
                slots=worker.slots[handler],
                running=running[worker.id][names.present(handler)],
                concurrency=_bound(worker, names),
                by_handler=running[worker.id],
            )
            for worker in workers
        ]

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
            declarations = {each.name: each for each in await self._store.declarations()}
            declared = declarations.get(names_of(declarations.values()).present(record.handler))
            numbers = b"{}" if declared is None else declared.retry
        policy: dict[str, Any] = msgspec.json.decode(numbers)
        return int(policy.get("tries", DEFAULT_TRIES))


def _bound(worker: WorkerRecord, names: HandlerNames) -> int | None:
    """Return a worker's slots over all handlers, if the slots of its handlers are more together."""
    by_handler = {names.present(name): slots for name, slots in worker.slots.items()}
    return worker.concurrency if worker.concurrency is not None and worker.concurrency < sum(by_handler.values()) else None


def unknown_handler(name: str) -> UnknownHandler:
    return UnknownHandler(f"nobody has declared a handler {name[:80]!r}; `duetime handlers` lists all")


def names_of(declarations: Iterable[Declaration]) -> HandlerNames:
    """Return which names belong to one handler, as it is declared at present."""
    return HandlerNames({alias: each.name for each in declarations for alias in each.aliases})


def _by_handler(counts: Counts, names: HandlerNames) -> list[HandlerCounts]:
    """Count tasks by handler, those that were submitted by a former name with the others."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, Instant] = {}
    more: set[str] = set()
    finals: dict[str, Counter[State]] = defaultdict(Counter)
    for lane in counts.lanes:
        handler = names.present(lane.handler)
        sums[handler].update(
            due=lane.due, later=lane.later, blocked=lane.blocked, parked=lane.parked, running=lane.running, accepted=lane.accepted
        )
        if lane.more:
            more.add(handler)
        if lane.oldest_due_at is not None:
            oldest[handler] = min(lane.oldest_due_at, oldest.get(handler, lane.oldest_due_at))
    for final in counts.finals:
        finals[names.present(final.handler)][final.state] += final.count
    return [
        HandlerCounts(
            handler=name,
            due=sums[name]["due"],
            later=sums[name]["later"],
            blocked=sums[name]["blocked"],
            parked=sums[name]["parked"],
            running=sums[name]["running"],
            accepted=sums[name]["accepted"],
            finals=finals.get(name, {}),
            oldest_due_at=_datetime(oldest.get(name)),
            more=name in more,
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
    if spread is None:
        return None
    found = [round(value, 6) for share in (0.5, 0.95, 0.99) if (value := spread.quantile(share)) is not None]
    return Quantiles(*found) if found else None


def _states(counts: HandlerCounts) -> dict[State, int]:
    live = {State.PENDING: counts.due + counts.later + counts.parked, State.BLOCKED: counts.blocked, State.RUNNING: counts.running}
    return {**live, **counts.finals}


def _sums(handlers: Iterable[HandlerCounts]) -> dict[State, int]:
    states: Counter[State] = Counter()
    for each in handlers:
        states.update(_states(each))
    return {state: states[state] for state in State}


def _handler_info(
    declared: Declaration, workers: list[WorkerRecord], counts: HandlerCounts | None, target: TargetInfo | None
) -> HandlerInfo:
    names = (declared.name, *declared.aliases)  # a worker whose code is from before a renaming runs it by a former name
    slots = [max(worker.slots_of(name) for name in names) for worker in workers if not worker.slots.keys().isdisjoint(names)]
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
        workers=len(slots),
        slots=sum(slots),
        states={state: states.get(state, 0) for state in State},
        aliases=declared.aliases,
        keep=declared.keep,
        start_within=declared.start_within,
        target=target,
    )


def _datetime(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
