"""Reading what happened when: values in equal steps of time, for one handler or all, as charts and `duetime top` show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from duetime.clock import SECOND, Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.names import HandlerNames
from duetime.model.series import ALL, Reading, SeriesName, Step, beginnings, chosen_step, read_names
from duetime.store import Store

USUAL = 900 * SECOND  # how far back a series reaches if nobody says


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values by name, each with one number per `step` seconds from `since` on; None where nothing is known.

    `handler` None: of all handlers together. The last value is that of the present step, which may not be over. `until` is the end that
    was asked for.
    """

    handler: str | None
    step: int
    since: datetime
    until: datetime
    values: Mapping[SeriesName, list[float | None]]

    def __getitem__(self, name: str) -> list[float | None]:
        return self.values[SeriesName(name)]

    @property
    def at(self) -> list[datetime]:
        """When each step begins."""
        size = max(map(len, self.values.values()), default=0)
        return [self.since + index * timedelta(seconds=self.step) for index in range(size)]

    def per_second(self, name: str, steps: int = 6) -> float:
        """Return the rate of a count over the last whole steps."""
        whole = [value for value in self[name][-steps - 1 : -1] if value is not None]
        return sum(whole) / (len(whole) * self.step) if whole else 0.0

    def last(self, name: str) -> float | None:
        """Return the latest value that is known."""
        return next((value for value in reversed(self[name]) if value is not None), None)


class Span(msgspec.Struct, frozen=True):
    """A span of time in equal steps."""

    since: Instant
    until: Instant
    step: Step

    @property
    def at(self) -> range:
        return beginnings(self.since, self.until, self.step)


def span_of(now: Instant, since: datetime | None, until: datetime | None, step: int | None) -> Span:
    """Return the span that was asked for: without an end until now, without a beginning the fifteen minutes before its end."""
    end = now + 1 if until is None else to_instant(until, "until")  # the present step is part of it
    start = end - USUAL if since is None else to_instant(since, "since")
    if start >= end:
        raise InvalidValue(f"since must lie before until, got {to_datetime(start).isoformat()} and {to_datetime(end).isoformat()}")
    return Span(start, end, chosen_step(start, now, step))


async def read_series(store: Store, names: Iterable[str], handler: str | None, span: Span, present: HandlerNames) -> Series:
    """Return a series of a handler, which may be given by a former name, or of all together."""
    wanted, at = read_names(names), span.at
    own = ALL if handler is None else present.present(handler)
    page = await store.series(span.step, at.start, span.until, own)
    reading = Reading(buckets=page.buckets, last=page.last, step=span.step, now=page.now)
    return _series(reading, wanted, own, span)


async def read_series_by_handler(store: Store, names: Iterable[str], handlers: Iterable[str], span: Span) -> list[Series]:
    """Return a series of each handler: of those that are named, and of all that have something to show. Sorted by name."""
    wanted, at = read_names(names), span.at
    page = await store.series(span.step, at.start, span.until)
    reading = Reading(buckets=page.buckets, last=page.last, step=span.step, now=page.now)
    sampled = {} if page.last is None else page.last.handlers
    found = {*handlers, *(handler for _, handler in page.buckets), *sampled} - {ALL}
    return [_series(reading, wanted, handler, span) for handler in sorted(found)]


def _series(reading: Reading, names: Iterable[SeriesName], handler: str, span: Span) -> Series:
    at = span.at
    return Series(
        handler=handler or None,
        step=span.step,
        since=to_datetime(at.start),
        until=to_datetime(span.until),
        values={name: reading.values(name, handler, at) for name in names},
    )
