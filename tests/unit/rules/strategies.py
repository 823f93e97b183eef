"""Rules, calendars and instants to try things on."""

from __future__ import annotations

from datetime import date

from hypothesis import strategies as st

from duetime.clock import SECOND
from duetime.errors import InvalidValue
from duetime.model.rules import AfterEnd, At, Calendar, Cron, DayCalendar, Every, Rule, Window

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Nuuk", "Africa/Casablanca", "Pacific/Chatham")
zones = st.sampled_from(ZONES)
gaps = st.sampled_from(["run", "skip"])
# 2025 to 2032, to the microsecond
instants = st.integers(1_735_689_600 * SECOND, 1_956_528_000 * SECOND)
times = st.builds(lambda hour, minute: f"{hour:02}:{minute:02}", st.integers(0, 23), st.integers(0, 59))


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        numbers.map(str),
        st.integers(2, 20).map(lambda step: f"*/{step}"),
        st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.tuples(numbers, st.integers(1, 10)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.lists(numbers, min_size=1, max_size=4).map(lambda many: ",".join(map(str, many))),
    )


def _comes(expression: str) -> bool:
    try:
        Cron(expression)
    except InvalidValue:
        return False
    return True


# All that cronsim knows.
expressions = st.builds(
    lambda *fields: " ".join(fields),
    _field(0, 59),
    _field(0, 23),
    st.just("*") | _field(1, 28) | st.sampled_from(["L", "LW", "31,L", "1-7,LW"]),
    st.just("*") | _field(1, 12) | st.sampled_from(["JAN-MAR", "FEB", "apr,sep"]),
    st.just("*") | st.sampled_from(["0", "7", "MON-FRI", "*/2", "SAT,SUN", "1-5/2", "6L", "MON#1", "0L,WED#3", "5/2"]),
).filter(_comes)
crons = st.builds(Cron, expressions, zones, gaps)
everies = st.builds(lambda interval, phase: Every(interval / 1000, phase / 1000), st.integers(1_000, 10**9), st.integers(0, 10**9))
calendars_in_months = st.builds(
    Calendar,
    st.integers(1, 5),
    st.just("month"),
    on=st.sampled_from([1, 31, -1, "last friday", "first business day", (15, "fifth monday"), "last business day", None]),
    at=st.lists(times, min_size=1, max_size=3),
    tz=zones,
    since=st.none() | st.dates(date(2020, 1, 1), date(2030, 1, 1)).filter(lambda when: when.day < 29),
    missing=st.sampled_from(["skip", "last"]),
    gap=gaps,
)
calendars_in_weeks = st.builds(
    Calendar, st.integers(1, 5), st.just("weeks"), on=st.sampled_from(["mon", "sat,sun", "mon-fri", None]), at=times, tz=zones
)
calendars_in_days = st.builds(Calendar, st.integers(1, 40), at=times, tz=zones, gap=gaps)
calendars_in_years = st.builds(
    Calendar,
    st.just(1),
    st.just("year"),
    on=st.sampled_from(["12-24", "02-29", "last friday of november", "last business day of march"]),
    tz=zones,
)
windows = st.builds(
    lambda every, start, length, days, tz, gap: Window(every, f"{start:02}:30", f"{(start + length) % 24:02}:15", days, tz, gap),
    st.integers(60, 7200),
    st.integers(0, 23),
    st.integers(1, 24),
    st.sampled_from(["mon-fri", "sat", "mon-sun"]),
    zones,
    gaps,
)
lists = st.lists(instants, min_size=1, max_size=10).map(At)
singles = st.one_of(crons, everies, calendars_in_months, calendars_in_weeks, calendars_in_days, calendars_in_years, windows, lists)
unions = st.tuples(singles, singles).map(lambda pair: pair[0] | pair[1])
rules: st.SearchStrategy[Rule] = st.one_of(singles, unions)
waiting = st.integers(1, 10**6).map(AfterEnd)
any_rules: st.SearchStrategy[Rule] = st.one_of(rules, waiting, st.tuples(rules, waiting).map(lambda pair: pair[0] | pair[1]))
day_calendars = st.builds(
    DayCalendar,
    mode=st.sampled_from(["exclude", "include"]),
    dates=st.lists(st.dates(date(2025, 1, 1), date(2032, 1, 1)).map(date.isoformat), max_size=5),
    yearly=st.lists(st.sampled_from(["01-01", "02-29", "12-25"]), max_size=2),
    monthly=st.lists(st.sampled_from(["1", "31", "last"]), max_size=2),
    weekdays=st.sampled_from(["", "sat,sun", "mon-fri", "fri-mon"]),
    times=st.sampled_from(["09:00-17:00", "22:00-06:00", "09:00-12:00,13:00-17:00", "00:00-24:00"]),
    tz=zones,
)

cron_calendars = st.builds(
    DayCalendar,
    mode=st.sampled_from(["exclude", "include"]),
    cron=st.sampled_from(["* 9-17 * * MON-FRI", "* 22-23,0-5 * * *", "* * 1,L * *", "* 12 * 2,12 *", "30-59 6 * * *"]),
    tz=zones,
)
