"""Calendars over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from duetime.client.schedules.calendars import Calendars
from duetime.errors import InvalidValue
from duetime.model.rules import DayCalendar
from duetime.model.task import check_name
from duetime.remote.address import part
from duetime.remote.transport import Transport
from duetime.wire.calendars import CalendarList, CalendarView, body_of, calendar_of


class RemoteCalendars(Calendars):
    """`app.calendars` over HTTP."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, name: str, calendar: DayCalendar) -> None:
        path = _path(name)
        if not isinstance(calendar, DayCalendar):
            raise InvalidValue(f'expected a DayCalendar, for example DayCalendar(weekdays="sat,sun"), got {type(calendar).__name__}')
        await self._opened()
        await self._transport.send("PUT", path, data=msgspec.json.encode(body_of(calendar)), again=True)

    async def get(self, name: str) -> DayCalendar:
        await self._opened()
        return calendar_of(await self._transport.ask(CalendarView, "GET", _path(name)))

    async def list(self) -> dict[str, DayCalendar]:
        await self._opened()
        found = await self._transport.ask(CalendarList, "GET", "/v1/calendars")
        return {each.name: calendar_of(each) for each in found.items}

    async def delete(self, name: str) -> None:
        await self._opened()
        await self._transport.send("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/v1/calendars/{part(check_name(name, 'the name of a calendar'))}"
