"""Calendars, asked of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from duetime.client.schedules.calendars import Calendars
from duetime.errors import InvalidValue
from duetime.model.rules import DayCalendar
from duetime.model.task import check_name
from duetime.remote.address import part
from duetime.remote.place import ServerPlace
from duetime.store.protocol import Store


class CalendarWire(msgspec.Struct, frozen=True, kw_only=True):
    """A calendar as a server shows it."""

    name: str
    mode: str
    dates: list[str] = []
    yearly: list[str] = []
    weekdays: str = ""
    times: list[str] = []
    tz: str = "UTC"
    also: list[str] = []


class CalendarListWire(msgspec.Struct, frozen=True):
    """The calendars."""

    items: list[CalendarWire]


class RemoteCalendars(Calendars):
    """`app.calendars` over HTTP."""

    def __init__(self, place: ServerPlace, *, opened: Callable[[], Awaitable[None]]) -> None:
        super().__init__(cast(Store, place), opened=opened)
        self._transport = place.transport

    async def put(self, name: str, calendar: DayCalendar) -> None:
        path = _path(name)
        if not isinstance(calendar, DayCalendar):
            raise InvalidValue(f'expected a DayCalendar, for example DayCalendar(weekdays="sat,sun"), got {type(calendar).__name__}')
        await self._opened()
        await self._transport.send("PUT", path, data=msgspec.json.encode(calendar), again=True)

    async def get(self, name: str) -> DayCalendar:
        await self._opened()
        return _calendar(await self._transport.ask(CalendarWire, "GET", _path(name)))

    async def list(self) -> dict[str, DayCalendar]:
        await self._opened()
        found = await self._transport.ask(CalendarListWire, "GET", "/v1/calendars")
        return {each.name: _calendar(each) for each in found.items}

    async def delete(self, name: str) -> None:
        await self._opened()
        await self._transport.send("DELETE", _path(name))


def _calendar(wire: CalendarWire) -> DayCalendar:
    fields: dict[str, Any] = {name: getattr(wire, name) for name in CalendarWire.__struct_fields__ if name != "name"}
    return DayCalendar(**fields)


def _path(name: str) -> str:
    return f"/v1/calendars/{part(check_name(name, 'the name of a calendar'))}"
