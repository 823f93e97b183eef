"""Figures for Prometheus. Counting the store's tasks has a price, so it is done every few seconds at most, whoever asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.responses import Response

from duetime.api.models import NoQuery
from duetime.app import App
from duetime.errors import DuetimeError
from duetime.insight import Stats

if TYPE_CHECKING:
    from duetime.api.call import Call

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNT_EVERY = 5.0
# Counting may take this share of the time at most: a store that needs a second is counted every twenty.
SHARE = 0.05
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Figures:
    """What the server counts itself, and the latest count of the store."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests = Counter("duetime_http_requests", "Requests, by route and status.", ["route", "status"], registry=self._registry)
        self._seconds = Histogram(
            "duetime_http_request_seconds", "How long requests took.", ["route"], buckets=BUCKETS, registry=self._registry
        )
        self._submitted = Counter("duetime_tasks_submitted", "Tasks stored by this server.", registry=self._registry)
        self._store_errors = Counter("duetime_store_errors", "Requests that the store could not serve.", registry=self._registry)
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._stats: Stats | None = None
        self._counted_at = self._count_again_at = 0.0
        self._turn = asyncio.Lock()

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
        """Count the store again if the last count is old; without an answer the last one stays, and its age tells."""
        async with self._turn:
            began = time.monotonic()
            if began < self._count_again_at:
                return
            try:
                self._stats = await self._app.stats()
                self._counted_at = time.monotonic()
            except DuetimeError:
                self.note_store_error()
            took = time.monotonic() - began
            self._count_again_at = time.monotonic() + max(COUNT_EVERY, took / SHARE)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        if stats is None:
            return
        tasks = GaugeMetricFamily("duetime_tasks", "Tasks in the store, by handler and state.", labels=["handler", "state"])
        oldest = GaugeMetricFamily(
            "duetime_oldest_due_seconds", "For how long the oldest due task has waited; 0 if none is due.", labels=["handler"]
        )
        for each in stats.handlers:
            live: dict[str, int] = {"due": each.due, "later": each.later, "blocked": each.blocked, "running": each.running}
            for state, number in (*live.items(), *each.finals.items()):
                tasks.add_metric([each.handler, str(state)], number)
            waited = 0.0 if each.oldest_due_at is None else (stats.now - each.oldest_due_at).total_seconds()
            oldest.add_metric([each.handler], max(0.0, waited))
        yield tasks
        yield oldest
        yield GaugeMetricFamily("duetime_workers", "Live workers.", value=stats.workers)
        yield GaugeMetricFamily(
            "duetime_count_age_seconds", "How old the count of the store's tasks is.", value=time.monotonic() - self._counted_at
        )

    def describe(self) -> Iterable[Metric]:
        """Tell the registry nothing beforehand: names depend on nothing that could clash."""
        return []


async def metrics(call: Call) -> Response:
    call.query(NoQuery)
    figures = call.shared.figures
    await figures.refresh()
    return Response(figures.text(), media_type=None, headers={"content-type": MEDIA_TYPE})
