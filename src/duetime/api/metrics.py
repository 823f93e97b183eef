"""Metrics for Prometheus: what this server counts itself (`duetime_http_…`), and what the store knows of all workers.

Reading from the store is expensive, so it is done at most every few seconds, however many scrapes there are. docs/metrics.md explains
every metric.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter as Numbers
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.responses import Response

from duetime.api.health import loops_of
from duetime.app.app import App
from duetime.client.alerts.alerts import Alert
from duetime.client.gates import GateInfo
from duetime.client.insight import Stats
from duetime.client.limits import LimitInfo
from duetime.client.locks import LockInfo
from duetime.errors import DuetimeError
from duetime.model.figures import (
    ATTEMPTS,
    ATTEMPTS_LOST,
    BLOCKED_LOOPS,
    DURATION,
    HOOK_CALLS,
    LATENESS,
    LEASE_LOSSES,
    OPERATED,
    RETRIES,
    STALE_WRITES,
    STORE_ERRORS,
    TASKS_FAILED,
    WORKERS_LOST,
    FigureKey,
    distributions,
)
from duetime.store.timing import BUCKETS as VERB_BUCKETS
from duetime.store.timing import Timing
from duetime.wire.fields import NoQuery
from duetime.wire.overview import LoopHealth

if TYPE_CHECKING:
    from duetime.api.call import Call

T = TypeVar("T")

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNT_EVERY = 5.0
SUM_EVERY = 1.0
# Reading may take at most this share of the time: a store that needs a second to count is read every twenty seconds.
SHARE = 0.05
PATIENCE = 3.0  # seconds that a scrape waits for the store; then it shows what was known before
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Counted per process. Shown from the start, because Prometheus does not see a rise from a missing value.
OF_PROCESSES = (
    ("duetime_stale_writes", "Outcomes that were refused because the task was no longer that worker's.", STALE_WRITES),
    ("duetime_lease_losses", "Times that a worker stopped all its attempts because it could not renew its lease.", LEASE_LOSSES),
    ("duetime_workers_lost", "Workers that were found dead.", WORKERS_LOST),
    ("duetime_attempts_taken_back", "Attempts that were taken back from dead workers.", ATTEMPTS_LOST),
    ("duetime_store_errors", "Turns of the loops of workers and servers that failed because the store did not answer.", STORE_ERRORS),
    ("duetime_blocked_loops", "Times that a handler blocked the event loop of its worker for a second or longer.", BLOCKED_LOOPS),
)
SPREADS = (
    ("duetime_lateness_seconds", "From the due time to the start of an attempt.", LATENESS),
    ("duetime_duration_seconds", "From the start of an attempt to its end.", DURATION),
)

_logger = logging.getLogger("duetime.api")


class Kept(Generic[T]):
    """The latest result of an expensive read, shared by all requests."""

    def __init__(self, ask: Callable[[], Awaitable[T]], every: float, failed: Callable[[], None]) -> None:
        self._question = ask
        self._every = every
        self._failed = failed
        self._asking: asyncio.Task[None] | None = None
        self._again_at = 0.0
        self.answer: T | None = None
        self.answered_at = 0.0

    async def refresh(self) -> None:
        """Read again if the last result is old, and wait a moment for it. If no new result comes, the last one stays."""
        if self._asking is None and time.monotonic() >= self._again_at:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait((self._asking,), timeout=PATIENCE)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            self.answer = await self._question()
            self.answered_at = time.monotonic()
        except DuetimeError:
            self._failed()
        except Exception:
            _logger.exception("metrics cannot be gathered")
        finally:
            now = time.monotonic()
            self._again_at = now + max(self._every, (now - began) / SHARE)
            self._asking = None


class Figures:
    """What the server counts itself, and the latest values from the store."""

    def __init__(self, app: App) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(self)
        self._requests = Counter("duetime_http_requests", "Requests, by route and status.", ["route", "status"], registry=registry)
        self._seconds = Histogram("duetime_http_request_seconds", "How long requests took.", ["route"], buckets=BUCKETS, registry=registry)
        self._submitted = Counter("duetime_http_tasks_submitted", "Tasks stored by this server.", registry=registry)
        self._store_errors = Counter("duetime_http_store_errors", "Requests that the store could not serve.", registry=registry)
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._stats = Kept(lambda: app.stats(), COUNT_EVERY, self.note_store_error)
        self._sums = Kept(lambda: app.insight.figures(), SUM_EVERY, self.note_store_error)
        self._gates = Kept(lambda: app.gates.list(), COUNT_EVERY, self.note_store_error)
        self._locks = Kept(lambda: app.locks.list(), COUNT_EVERY, self.note_store_error)
        self._flows = Kept(lambda: app.flows.counts(), COUNT_EVERY, self.note_store_error)
        self._limits = Kept(lambda: app.limits.list(), COUNT_EVERY, self.note_store_error)
        self._alerts = Kept(lambda: app.alerts.firing(state=None), COUNT_EVERY, self.note_store_error)
        self._app = app
        self.timing: Timing | None = None
        self._ready = True
        self._loops: Sequence[LoopHealth] = ()

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        try:
            counter, histogram = self._by_route[route, status]
        except KeyError:
            counter, histogram = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._by_route[route, status] = counter, histogram
        counter.inc()
        histogram.observe(seconds)

    def note_submitted(self, number: int) -> None:
        self._submitted.inc(number)

    def note_store_error(self) -> None:
        self._store_errors.inc()

    async def refresh(self) -> None:
        """Read from the store again if the last values are old."""
        kept = (self._stats, self._sums, self._gates, self._locks, self._flows, self._limits, self._alerts)
        await asyncio.gather(*(each.refresh() for each in kept))

    def close(self) -> None:
        """Stop reading from the store."""
        self._stats.close()
        self._sums.close()
        self._gates.close()
        self._locks.close()
        self._flows.close()
        self._limits.close()
        self._alerts.close()

    def text(self, *, ready: bool, loops: Sequence[LoopHealth]) -> bytes:
        self._ready, self._loops = ready, loops
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("duetime_http_ready", "Whether this server can accept tasks: 1, or 0.", value=self._ready)
        stalls = GaugeMetricFamily("duetime_http_loop_seconds", "How long the present run of a loop has lasted.", labels=["loop"])
        for name in sorted({loop.name for loop in self._loops}):  # a worker in the same process has loops of the same names
            stalls.add_metric([name], max(loop.seconds for loop in self._loops if loop.name == name))
        yield stalls
        if self._stats.answer is not None:
            age = time.monotonic() - self._stats.answered_at
            yield GaugeMetricFamily("duetime_http_count_age_seconds", "How old the count of the store's tasks is.", value=age)
            yield from _counted(self._stats.answer)
        if self._gates.answer is not None:
            yield _closed(self._gates.answer)
        if self._locks.answer is not None:
            yield _locked(self._locks.answer)
        if self._flows.answer is not None:
            flows = GaugeMetricFamily("duetime_flows", "Flows in the store, by name and state.", labels=["name", "state"])
            for each in self._flows.answer:
                flows.add_metric([each.name, each.state], each.number)
            yield flows
        if self._limits.answer is not None:
            yield from _limited(self._limits.answer)
        if self._alerts.answer is not None:
            yield _alerting(self._alerts.answer)
        if self._sums.answer is not None:
            seen = () if self._stats.answer is None else [each.handler for each in self._stats.answer.handlers]
            yield from _summed(self._sums.answer, seen)

        if self.timing is not None:
            yield _took(self.timing)
        if (quotas := self._app.client.admission.quotas) is not None:
            yield _refused(quotas.refused)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because no name can clash with those of other collectors."""
        return []


def _took(timing: Timing) -> Metric:
    took = HistogramMetricFamily("duetime_store_seconds", "How long the store took in this process, by verb.", labels=["verb"])
    for verb, times in timing.times().items():
        buckets = [*zip(map(str, VERB_BUCKETS), times.buckets, strict=True), ("+Inf", times.calls)]
        took.add_metric([verb], buckets, times.seconds)
    return took


def _counted(stats: Stats) -> Iterator[Metric]:
    tasks = GaugeMetricFamily("duetime_tasks", "Tasks in the store, by handler and state.", labels=["handler", "state"])
    oldest = GaugeMetricFamily(
        "duetime_oldest_due_seconds", "For how long the oldest due task has waited; 0 if none is due.", labels=["handler"]
    )
    accepted = GaugeMetricFamily(
        "duetime_accepted_attempts", "Running attempts whose work somebody outside has accepted; they take no slot.", labels=["handler"]
    )
    for each in stats.handlers:
        accepted.add_metric([each.handler], each.accepted)
        live: dict[str, int] = {"due": each.due, "later": each.later, "blocked": each.blocked, "running": each.running}
        live["parked"] = each.parked
        for state, number in (*live.items(), *each.finals.items()):
            tasks.add_metric([each.handler, str(state)], number)
        waited = 0.0 if each.oldest_due_at is None else (stats.now - each.oldest_due_at).total_seconds()
        oldest.add_metric([each.handler], max(0.0, waited))
    yield tasks
    yield oldest
    yield accepted
    yield GaugeMetricFamily("duetime_workers", "Live workers.", value=stats.workers)


def _locked(locks: Sequence[LockInfo]) -> Metric:
    found = GaugeMetricFamily("duetime_locks", "Locks, by state: held, silent or rests.", labels=["state"])
    numbers = Numbers("rests" if lock.free_at is not None else "silent" if lock.silent else "held" for lock in locks)
    for state in ("held", "silent", "rests"):
        found.add_metric([state], numbers[state])
    return found


def _limited(limits: Sequence[LimitInfo]) -> Iterator[Metric]:
    allowed = GaugeMetricFamily("duetime_limit_running", "How many may run at once under a limit of the whole fleet.", labels=["limit"])
    permits = GaugeMetricFamily(
        "duetime_limit_permits",
        "Permits of a limit, by state: with workers, accepted (work that goes on elsewhere), lacking (what workers could use more), "
        "parked (tasks that wait, where the store counts).",
        labels=["limit", "state"],
    )
    for limit in limits:
        if limit.running is not None:
            allowed.add_metric([limit.name], limit.running)
        states = {"worker": limit.out - limit.accepted, "accepted": limit.accepted, "lacking": limit.lacking}
        if limit.by is not None or limit.rates or limit.over != "wait":
            states["parked"] = limit.parked
        for state, number in states.items():
            permits.add_metric([limit.name, state], number)
    yield allowed
    yield permits


def _refused(refused: Mapping[str, int]) -> Metric:
    counted = CounterMetricFamily("duetime_quota_refused", "Tasks refused by this server for a handler's quota.", labels=["handler"])
    for handler, number in sorted(refused.items()):
        counted.add_metric([handler], number)
    return counted


def _alerting(alerts: Sequence[Alert]) -> Metric:
    found = GaugeMetricFamily("duetime_alerts", "Alerts, by state: firing or pending.", labels=["state"])
    numbers = Numbers(alert.state for alert in alerts)
    for state in ("firing", "pending"):
        found.add_metric([state], numbers[state])
    return found


def _closed(gates: Sequence[GateInfo]) -> Metric:
    closed = GaugeMetricFamily(
        "duetime_gates", "Closed gates, by handler and kind: pause, drop, or disabled if the system set it.", labels=["handler", "kind"]
    )
    numbers = Numbers((gate.handler, "disabled" if gate.automatic else str(gate.action)) for gate in gates)
    for (handler, kind), number in sorted(numbers.items()):
        closed.add_metric([handler, kind], number)
    return closed


def _summed(sums: Mapping[FigureKey, int], handlers: Iterable[str] = ()) -> Iterator[Metric]:
    attempts = CounterMetricFamily("duetime_attempts", "Attempts that ended, by handler and outcome.", labels=["handler", "outcome"])
    operated = CounterMetricFamily(
        "duetime_operated_tasks", "Tasks that operations have acted on, by verb and answer.", labels=["handler", "verb", "answer"]
    )
    hooks = CounterMetricFamily("duetime_hook_calls", "Calls of hooks on events, by hook and how they ended.", labels=["hook", "outcome"])
    retries = CounterMetricFamily("duetime_retries", "Attempts that used up a try and are tried again.", labels=["handler"])
    for key, count in sorted(sums.items()):
        if key.name == ATTEMPTS:
            attempts.add_metric([key.handler, key.part], count)
        elif key.name == OPERATED:
            operated.add_metric([key.handler, *key.part.split(" ", 1)], count)
        elif key.name == HOOK_CALLS:
            hooks.add_metric([key.handler, key.part], count)
        elif key.name == RETRIES:
            retries.add_metric([key.handler], count)
    yield attempts
    yield retries
    yield operated
    yield hooks
    failed = CounterMetricFamily("duetime_tasks_failed", "Tasks that ended failed, by handler.", labels=["handler"])
    # also those that never failed: Prometheus does not see a rise from a missing value
    for handler in sorted({*handlers, *(key.handler for key in sums if key.name == ATTEMPTS)}):
        failed.add_metric([handler], sums.get(FigureKey(TASKS_FAILED, handler), 0))
    yield failed
    for title, text, name in SPREADS:
        family = HistogramMetricFamily(title, text, labels=["handler"])
        for handler, spread in distributions(sums, name).items():
            buckets = [("+Inf" if upper is None else str(upper), float(upto)) for upper, upto in spread.buckets]
            family.add_metric([handler], buckets, spread.sum)
        yield family
    for title, text, name in OF_PROCESSES:
        yield CounterMetricFamily(title, text, value=sums.get(FigureKey(name), 0))


async def metrics(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("metrics are of the whole store")
    shared = call.shared
    problem, _ = await asyncio.gather(shared.readiness.problem(), shared.figures.refresh())
    text = shared.figures.text(ready=problem is None and not shared.stopping, loops=loops_of(shared, time.monotonic()))
    return Response(text, media_type=None, headers={"content-type": MEDIA_TYPE})
