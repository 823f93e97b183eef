"""`app.calendars`: named days and hours that schedules share. Changing one replans the schedules that use it."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from duetime.client.schedules.info import plan_or_none
from duetime.client.schedules.writes import Known, change, every_schedule, write_of
from duetime.errors import Conflict, InvalidValue, ScheduleNotFound
from duetime.model.rules import Calendar, DayCalendar, Union
from duetime.model.rules.calendars import chain_of
from duetime.model.schedule import ScheduleSpec
from duetime.model.steering import replan
from duetime.model.task import check_name
from duetime.store import Store
from duetime.store.schedules import ScheduleWrite


class Calendars(Protocol):
    """Day calendars by name."""

    async def put(self, name: str, calendar: DayCalendar) -> None:
        """Store a calendar under a name, replacing an earlier one. Schedules that use it are replanned from now on.

        No past occurrence is fired: what the old plan had left is recorded as skipped. Raises InvalidValue if `also` names unknown
        calendars or forms a cycle.
        """
        ...

    async def get(self, name: str) -> DayCalendar:
        """Return a calendar; raise ScheduleNotFound if there is none of that name."""
        ...

    async def list(self) -> dict[str, DayCalendar]:
        """Return all calendars by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a calendar. Raises Conflict while a schedule or another calendar uses it, ScheduleNotFound if there is none."""
        ...


class LocalCalendars(Calendars):
    """Day calendars of a store."""

    def __init__(self, store: Store, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._opened = opened

    async def put(self, name: str, calendar: DayCalendar) -> None:
        check_name(name, "the name of a calendar")
        if not isinstance(calendar, DayCalendar):
            raise InvalidValue(f'expected a DayCalendar, for example DayCalendar(weekdays="sat,sun"), got {type(calendar).__name__}')
        await self._opened()
        stored = await self._store.calendars()
        changed = {**stored, name: calendar}
        for other in changed:
            chain_of([other], changed)
        if stored.get(name) == calendar:
            return
        users = await self._users(name, changed) if name in stored else []
        # First the old plan accounts for the past, so that nobody fires past occurrences of the new one.
        await self._replan(users, stored, changed)
        await self._store.put_calendar(name, calendar)
        # Meanwhile a duty may have planned the next occurrence by the old calendar.
        await self._replan(users, changed, changed)

    async def get(self, name: str) -> DayCalendar:
        await self._opened()
        found = (await self._store.calendars()).get(name)
        if found is None:
            raise _not_found(name)
        return found

    async def list(self) -> dict[str, DayCalendar]:
        await self._opened()
        return dict(sorted((await self._store.calendars()).items()))

    async def delete(self, name: str) -> None:
        await self._opened()
        calendars = await self._store.calendars()
        if name not in calendars:
            raise _not_found(name)
        others = [other for other, calendar in calendars.items() if name in calendar.also]
        if others:
            raise Conflict(f"calendar {name!r} is used by calendar {others[0]!r}; take it out of `also` there first")
        users = [record.name for record in await every_schedule(self._store) if name in named_by(record.spec)]
        if users:
            more = f" and {len(users) - 1} more" if len(users) > 1 else ""
            raise Conflict(f"calendar {name!r} is used by schedule {users[0]!r}{more}; change or delete that first")
        await self._store.put_calendar(name, None)

    async def _users(self, name: str, calendars: Mapping[str, DayCalendar]) -> builtins.list[str]:
        """Return the schedules that use a calendar, directly or through other calendars."""
        affected = {other for other in calendars if name in reach(other, calendars)}
        return [record.name for record in await every_schedule(self._store) if affected & named_by(record.spec)]

    async def _replan(self, names: builtins.list[str], before: Mapping[str, DayCalendar], after: Mapping[str, DayCalendar]) -> None:
        for name in names:

            def decide(known: Known, name: str = name) -> ScheduleWrite | None:
                record = known.records[name]
                if record is None or record.state.paused is not None:  # resuming replans it
                    return None
                plan = plan_or_none(record.spec, after)
                if plan is None:  # another of its calendars is missing; the schedule is shown as broken
                    return None
                return write_of(record, replan(record, plan_or_none(record.spec, before), plan, known.now))

            await change(self._store, name, decide)


def reach(name: str, calendars: Mapping[str, DayCalendar]) -> set[str]:
    """Return a calendar's name and, recursively, those of its `also`."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += calendars[each].also if each in calendars else ()
    return found


def named_by(spec: ScheduleSpec) -> set[str]:
    """Return the calendars that a schedule names itself: for its occurrences and for its business days."""
    parts = spec.rule.parts if isinstance(spec.rule, Union) else (spec.rule,)
    business = {part.business for part in parts if isinstance(part, Calendar) and part.business is not None}
    return business.union(spec.calendars)


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no calendar {name!r} in this store; `app.calendars.list()` gives all")
