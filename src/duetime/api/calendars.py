"""Calendars over HTTP: named days and hours that schedules share."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.model.access import Scope
from duetime.model.task import check_name
from duetime.remote.address import part
from duetime.wire.calendars import CalendarBody, CalendarList, CalendarView, calendar_of, view_of
from duetime.wire.fields import NoQuery
from duetime.wire.problem import pointing

_body = msgspec.json.Decoder(CalendarBody)


async def list_calendars(call: Call) -> Response:
    call.query(NoQuery)
    return answer(CalendarList([view_of(name, each) for name, each in (await call.app.calendars.list()).items()]))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    name = _name(call)
    return answer(view_of(name, await call.app.calendars.get(name)))


async def put(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_body)
    name = _name(call)
    async with call.acting("calendars.put", name):
        call.allow_whole("a calendar matters to schedules of all of them")
        with pointing("", {**{each: each for each in CalendarBody.__struct_fields__}, "calendar": "also", "calendars": "also"}):
            calendar = calendar_of(body)
            created = name not in await call.app.calendars.list()
            await call.app.calendars.put(name, calendar)
    if not created:
        return answer(view_of(name, calendar))
    return answer(view_of(name, calendar), 201, {"location": f"{call.prefix}/v1/calendars/{part(name)}"})


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = _name(call)
    async with call.acting("calendars.delete", name):
        call.allow_whole("a calendar matters to schedules of all of them")
        await call.app.calendars.delete(name)
    return Response(status_code=204)


def _name(call: Call) -> str:
    return check_name(call.path["name"], "name")


ROUTES = (
    Route(
        name="list_calendars", method="GET", path="/v1/calendars", endpoint=list_calendars, scope=Scope.READ,
        summary="List the calendars.", answer=CalendarList,
    ),
    Route(
        name="get_calendar", method="GET", path="/v1/calendars/{name}", endpoint=get, scope=Scope.READ,
        summary="Return a calendar.", answer=CalendarView, problems=(404,),
    ),
    Route(
        name="put_calendar", method="PUT", path="/v1/calendars/{name}", endpoint=put, scope=Scope.OPERATE,
        summary="Make a calendar, or change it; schedules that use it are planned anew.",
        body=CalendarBody, answer=CalendarView, also=(201,), problems=(409,),
    ),
    Route(
        name="delete_calendar", method="DELETE", path="/v1/calendars/{name}", endpoint=delete, scope=Scope.OPERATE,
        summary="Remove a calendar that nothing uses.", status=204, problems=(404, 409),
    ),
)  # fmt: skip
