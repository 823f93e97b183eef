"""The forecast over HTTP: what all schedules together will ask of the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.api.schedules import of_caller
from duetime.client.schedules.forecasting import Ahead
from duetime.clock import to_datetime
from duetime.model.access import Scope

MOST_OCCURRENCES = 100_000  # about a second's work; beyond it the forecast is cut, and says so


class ForecastQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How far to look."""

    days: Annotated[float, Meta(gt=0, le=366)] = 7.0


class HourView(msgspec.Struct, frozen=True):
    """One hour: runs that begin in it, seconds of work, and how many runs go on at once at most."""

    at: datetime
    runs: int
    busy: float
    most: int


class MinuteView(msgspec.Struct, frozen=True):
    """The minute in which the most runs begin, and of which schedules; `further` are not named."""

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


class OutlookView(msgspec.Struct, frozen=True, kw_only=True):
    """What one schedule will do. `duration` of a run in seconds, `measured` if there were any."""

    schedule: str
    handler: str
    runs: int
    skipped: int
    busy: float
    duration: float
    measured: bool


class ForecastView(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be expected until `until_at`; `cut`: there were too many occurrences to look further.

    Paused schedules are left out, and broken ones, by name with the reason.
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
    busiest: MinuteView | None
    collisions: list[CollisionView]
    further_collisions: int
    schedules: list[OutlookView]
    paused: Sequence[str]
    broken: Mapping[str, str]


async def forecast(call: Call) -> Response:
    query = call.query(ForecastQuery)
    return answer(forecast_view(await of_caller(call).forecast(days=query.days, limit=MOST_OCCURRENCES)))


def forecast_view(ahead: Ahead) -> ForecastView:
    """Show a forecast: its instants are microseconds, and here they are RFC 3339."""
    found = ahead.forecast
    facts = msgspec.to_builtins(found)
    return ForecastView(
        **{each: facts[each] for each in ("cut", "occurrences", "runs", "skipped", "busy", "most", "further_collisions")},
        start_at=to_datetime(found.start_at),
        until_at=to_datetime(found.until_at),
        hours=[HourView(to_datetime(each.at), each.runs, each.busy, each.most) for each in found.hours],
        busiest=None
        if found.busiest is None
        else MinuteView(to_datetime(found.busiest.at), found.busiest.runs, found.busiest.schedules, found.busiest.further),
        collisions=[CollisionView(**{**msgspec.structs.asdict(each), "first_at": to_datetime(each.first_at)}) for each in found.collisions],
        schedules=[OutlookView(**msgspec.structs.asdict(each)) for each in found.schedules],
        paused=ahead.paused,
        broken=ahead.broken,
    )


ROUTES = (
    Route(
        name="forecast", method="GET", path="/v1/forecast", endpoint=forecast, scope=Scope.READ,
        summary="Tell what the schedules will ask of the workers in the next days.", query=ForecastQuery, answer=ForecastView,
    ),
)  # fmt: skip
