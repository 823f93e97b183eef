"""Calendars over HTTP: named days and hours that schedules share."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.models import Name, NoQuery, given_fields
from duetime.api.problems import FORBIDDEN, Refusal
from duetime.api.route import Route
from duetime.api.rule_models import Zone, pointing
from duetime.model.access import Scope
from duetime.model.rules import DayCalendar
from duetime.model.task import check_name

MOST_DAYS = 10_000
Texts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=20)]], Meta(max_length=MOST_DAYS)]


class CalendarBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A set of days and hours: `exclude` permits what does not match, `include` what does.

    `also` names other calendars that must permit the time too.
    """

    mode: Literal["exclude", "include"] = "exclude"
    dates: Annotated[Texts, Meta(examples=[["2030-04-22"]])] = field(default_factory=list)
    yearly: Annotated[Texts, Meta(examples=[["12-25", "12-26"]])] = field(default_factory=list)
    weekdays: Annotated[str, Meta(max_length=100, examples=["mon-fri"])] = ""
    times: Annotated[Texts, Meta(examples=[["09:00-17:00"]])] = field(default_factory=list)
    tz: Zone = "UTC"
    also: Annotated[list[Name], Meta(max_length=100)] = field(default_factory=list)


class CalendarView(CalendarBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A stored calendar."""

    name: str


class CalendarList(msgspec.Struct, frozen=True):
    """All calendars by name."""

    items: list[CalendarView]
    next: None = None


_body = msgspec.json.Decoder(CalendarBody)


async def list_calendars(call: Call) -> Response:
    call.query(NoQuery)
    return answer(CalendarList([_view(name, each) for name, each in (await call.app.calendars.list()).items()]))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    name = _name(call)
    return answer(_view(name, await call.app.calendars.get(name)))


async def put(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_body)
    name = _name(call)
    async with call.acting("calendars.put", name):
        _allow(call)
        with pointing("", {**{each: each for each in CalendarBody.__struct_fields__}, "calendar": "also", "calendars": "also"}):
            calendar = DayCalendar(**given_fields(body))
            created = name not in await call.app.calendars.list()
            await call.app.calendars.put(name, calendar)
    if not created:
        return answer(_view(name, calendar))
    return answer(_view(name, calendar), 201, {"location": call.request.scope["raw_path"].decode("latin-1")})


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = _name(call)
    async with call.acting("calendars.delete", name):
        _allow(call)
        await call.app.calendars.delete(name)
    return Response(status_code=204)


def _name(call: Call) -> str:
    return check_name(call.path["name"], "name")


def _allow(call: Call) -> None:
    if call.caller.handlers:
        raise Refusal(
            FORBIDDEN,
            f"the token {call.caller.name} is for some handlers only, and a calendar matters to schedules of all of them; use one for all",
        )


def _view(name: str, calendar: DayCalendar) -> CalendarView:
    return CalendarView(
        name=name,
        mode=calendar.mode,
        dates=list(calendar.dates),
        yearly=list(calendar.yearly),
        weekdays=str(calendar.weekdays),
        times=list(calendar.times),
        tz=calendar.tz,
        also=list(calendar.also),
    )


ROUTES = (
    Route(
        name="list_calendars", method="GET", path="/v1/calendars", endpoint=list_calendars, scope=Scope.READ,
        summary="List the calendars.", answer=CalendarList,
    ),
    Route(
        name="get_calendar", method="GET", path="/v1/calendars/{name}", endpoint=get, scope=Scope.READ,
        summary="Give a calendar.", answer=CalendarView, problems=(404,),
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
