"""Rules as a library: the instants of a rule, without a store, a worker or a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from duetime.clock import Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.rules.calendars import DayCalendar
from duetime.model.rules.kinds import AfterEnd, Rule, Union
from duetime.model.rules.plan import plan_of
from duetime.model.rules.text import read_rule


def occurrences(rule: Rule | str, after: datetime, *, calendars: Mapping[str, DayCalendar] | None = None) -> Iterator[datetime]:
    """Yield the instants of a rule that lie after another one, in local time of the rule's zone, as a schedule would plan them.

        for instant in itertools.islice(occurrences(Cron("0 9 * * MON-FRI", tz="Europe/Berlin"), datetime.now(UTC)), 5): ...

    Every one of the `calendars` must permit an instant. The rule may be given as text. There may be instants without end.
    """
    read = read_rule(rule) if isinstance(rule, str) else rule
    if any(isinstance(each, AfterEnd) for each in (read.parts if isinstance(read, Union) else (read,))):
        raise InvalidValue("AfterEnd counts from the end of the last run, so without runs it has no instants; use Every instead")
    known = calendars or {}
    plan = plan_of(read, calendars=known, within=tuple(known))
    return _walk(plan.after, to_instant(after, "after"), ZoneInfo(plan.zone))


def _walk(next_after: Callable[[Instant], Instant | None], instant: Instant, zone: ZoneInfo) -> Iterator[datetime]:
    while (found := next_after(instant)) is not None:
        yield to_datetime(found).astimezone(zone)
        instant = found
