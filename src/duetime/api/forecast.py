"""The forecast over HTTP: the expected load of all schedules together."""

from __future__ import annotations

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.api.schedules import of_caller
from duetime.model.access import Scope
from duetime.wire.forecast import ForecastQuery, ForecastView, view_of

MOST_OCCURRENCES = 100_000  # about a second of work; a longer forecast is cut and marked as `cut`


async def forecast(call: Call) -> Response:
    query = call.query(ForecastQuery)
    return answer(view_of(await of_caller(call).forecast(days=query.days, limit=MOST_OCCURRENCES)))


ROUTES = (
    Route(
        name="forecast", method="GET", path="/v1/forecast", endpoint=forecast, scope=Scope.READ,
        summary="Say what the schedules will ask of the workers in the next days.", query=ForecastQuery, answer=ForecastView,
    ),
)  # fmt: skip
