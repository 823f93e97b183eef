"""The forecast in JSON: its instants are microseconds in the library, and RFC 3339 here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.client.schedules.forecasting import Ahead
from duetime.clock import to_datetime, to_instant
from duetime.model.forecast import Collision, Forecast, Hour, Minute, Outlook, Quarter


class ForecastQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many days to forecast."""

    days: Annotated[float, Meta(gt=0, le=366)] = 7.0


class HourView(msgspec.Struct, frozen=True):
    """One hour: the runs that begin in it, the seconds of work, and the most runs at once."""

    at: datetime
    runs: int
    busy: float
    most: int


class MinuteView(msgspec.Struct, frozen=True):
    """The minute in which the most runs begin, and their schedules; `further` counts those that are not named."""

    at: datetime
    runs: int
    schedules: Sequence[str]
    further: int


class QuarterView(msgspec.Struct, frozen=True):
    """A quarter of an hour: the runs that begin in it, and their schedules; `further` counts those that are not named."""

    at: datetime
    runs: int
    schedules: Sequence[str]
    further: int


class CollisionView(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one handler that need more slots at once than there are."""

    handler: str
    schedules: Sequence[str]
    slots: int
    most: int
    times: int
    first_at: datetime
    seconds: float


class ForecastView(msgspec.Struct, frozen=True, kw_only=True):
    """The expected load until `until_at`.

    `cut`: there were too many occurrences to look further. `paused` and `broken` schedules are left out; the latter are listed with the
    reason. `quarters` are those of the first 24 hours, without the ones in which nothing begins.
    """

    start_at: datetime
    until_at: datetime
    cut: bool
    occurrences: int
    runs: int
    skipped: int
    busy: float
    most: int
    hours: list[HourView]
    quarters: list[QuarterView]
    busiest: MinuteView | None
    collisions: list[CollisionView]
    further_collisions: int
    schedules: Sequence[Outlook]
    paused: Sequence[str]
    broken: Mapping[str, str]


def view_of(ahead: Ahead) -> ForecastView:
    """Return a forecast as JSON shows it."""
    found, busiest = ahead.forecast, ahead.forecast.busiest
    return ForecastView(
        start_at=to_datetime(found.start_at),
        until_at=to_datetime(found.until_at),
        cut=found.cut,
        occurrences=found.occurrences,
        runs=found.runs,
        skipped=found.skipped,
        busy=found.busy,
        most=found.most,
        hours=[HourView(to_datetime(each.at), each.runs, each.busy, each.most) for each in found.hours],
        quarters=[QuarterView(to_datetime(each.at), each.runs, each.schedules, each.further) for each in found.quarters],
        busiest=None if busiest is None else MinuteView(to_datetime(busiest.at), busiest.runs, busiest.schedules, busiest.further),
        collisions=[_collision_view(each) for each in found.collisions],
        further_collisions=found.further_collisions,
        schedules=found.schedules,
        paused=ahead.paused,
        broken=ahead.broken,
    )


def forecast_of(view: ForecastView) -> Ahead:
    """Return the forecast that a view shows."""
    busiest = view.busiest
    forecast = Forecast(
        start_at=to_instant(view.start_at),
        until_at=to_instant(view.until_at),
        cut=view.cut,
        occurrences=view.occurrences,
        runs=view.runs,
        skipped=view.skipped,
        busy=view.busy,
        most=view.most,
        hours=tuple(Hour(to_instant(each.at), each.runs, each.busy, each.most) for each in view.hours),
        quarters=tuple(Quarter(to_instant(each.at), each.runs, tuple(each.schedules), each.further) for each in view.quarters),
        busiest=None if busiest is None else Minute(to_instant(busiest.at), busiest.runs, tuple(busiest.schedules), busiest.further),
        collisions=tuple(_collision_of(each) for each in view.collisions),
        further_collisions=view.further_collisions,
        schedules=tuple(view.schedules),
    )
    return Ahead(forecast, tuple(view.paused), view.broken)


def _collision_view(found: Collision) -> CollisionView:
    return CollisionView(
        handler=found.handler,
        schedules=found.schedules,
        slots=found.slots,
        most=found.most,
        times=found.times,
        first_at=to_datetime(found.first_at),
        seconds=found.seconds,
    )


def _collision_of(view: CollisionView) -> Collision:
    return Collision(
        handler=view.handler,
        schedules=tuple(view.schedules),
        slots=view.slots,
        most=view.most,
        times=view.times,
        first_at=to_instant(view.first_at),
        seconds=view.seconds,
    )
