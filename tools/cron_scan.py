"""Compare cron with a scan of real minutes over every change of offset of every time zone, 2000 to 2040: `make cron`.

The scan knows nothing of the evaluator: it reads expressions with its own few lines, asks `zoneinfo` what the wall's clock shows at
each real minute (or second) around a change, and walks through them like a cron daemon would.

- Minute or hour begins with `*`: every real minute whose wall time matches.
- Otherwise: a slot is run when the wall's clock first reaches or passes it; passed over in a gap, it is run at once or skipped.

Cases are made of a change, an expression and what to do in gaps. Besides a corpus there are expressions that hit the change itself:
its edges and its middle. cronsim is asked too where it defines a meaning; where it differs, the scan is the judge.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from duetime.clock import SECOND
from duetime.model.rules import Cron, plan_of

ALWAYS = ("Australia/Lord_Howe", "Pacific/Chatham", "Antarctica/Troll", "America/Nuuk", "Africa/Casablanca", "Pacific/Apia")
FIRST_YEAR, LAST_YEAR = 2000, 2040
AROUND_MINUTES = 26 * 60
CRONSIM_EVERY = 8  # cases; it takes longer than all the rest
AROUND_SECONDS = 2 * 3600

CORPUS = (
    *("* * * * *", "*/7 * * * *", "*/15 * * * *", "*/30 * * * *", "0 * * * *", "30 * * * *", "45 */2 * * *", "0 */3 * * *"),
    *("*/20 1-4 * * *", "*/30 2 * * *", "* 0,2 * * *", "*/10 23,0 * * *", "5/25 * * * *", "10-40/10 */2 * * SAT,SUN"),
    *("0 0 * * *", "0 1 * * *", "30 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *", "30 23 * * *"),
    *("0,30 0-4 * * *", "15,45 1,2,3 * * *", "0-59 2 * * *", "0-59 0-23 * * *", "1 0-23/2 * * *", "59 22-3 * * *", "0 1/1 * * *"),
    *("30 2 * * SUN", "30 2 * * 0", "0 0 * * 6-7", "30 1 * * FRI-MON", "0 2 * * MON#1", "30 2 * * SUN#2", "30 2 * * 0L", "0 3 * * SATL"),
    *("30 2 1-7 * SUN", "30 2 */2 * SUN", "0 0 L * *", "30 2 L-2 * *", "0 2 LW * *", "30 2 15W * *", "0 4 1W * ?", "30 2 28-3 * *"),
    *("30 2 * MAR,OCT *", "0 1 * 3-4,9-11 *", "30 2 ? NOV-FEB SUN", "@daily", "@hourly", "@weekly", "@monthly", "0 12 * * *"),
)
CORPUS_OF_SECONDS = (
    *("*/10 * * * * *", "30 */5 * * * *", "15 30 2 * * *", "*/15 30 2 * * *", "0,59 59 1,2 * * *", "59 59 */1 * * *"),
    *("0 0 0 * * *", "*/7 0-59 2 * * SUN"),
)
SHORT = {"@daily": "0 0 * * *", "@hourly": "0 * * * *", "@weekly": "0 0 * * SUN", "@monthly": "0 0 1 * *"}
MONTHS = ["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]

Gap = Literal["run", "skip"]


# What an expression means, one value at a time.


def number(text: str, names: Sequence[str]) -> int:
    return names.index(text) if text in names else int(text)


def holds(text: str, value: int, low: int, high: int, names: Sequence[str] = ()) -> bool:
    """Return whether one value satisfies a field without L, W and #."""
    for term in text.split(","):
        body, _, step = term.partition("/")
        if body in ("*", "?"):
            first, last = low, high
        elif "-" in body:
            first, last = (number(part, names) for part in body.split("-"))
        else:
            first = number(body, names)
            last = high if step else first
        values = range(first, last + 1) if first <= last else [*range(first, high + 1), *range(low, last + 1)]
        if value in values[:: int(step or 1)]:
            return True
    return False


def holds_day(text: str, when: date) -> bool:
    last = (when.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
    if text == "L":
        return when == last
    if text.startswith("L-"):
        return when == last - timedelta(days=int(text[2:]))
    if text == "LW":
        return when == max(last - timedelta(days=back) for back in range(3) if (last - timedelta(days=back)).weekday() < 5)
    if text.endswith("W"):
        wanted = when.replace(day=int(text[:-1]))  # the corpus has no day that some month lacks
        near = [wanted + timedelta(days=move) for move in (0, -1, 1, -2, 2)]
        return when == next(day for day in near if day.month == wanted.month and day.weekday() < 5)
    return holds(text, when.day, 1, 31)


def holds_weekday(text: str, when: date) -> bool:
    weekday = when.isoweekday() % 7
    if "#" in text:
        name, nth = text.split("#")
        return weekday == number(name, WEEKDAYS) and (when.day - 1) // 7 + 1 == int(nth)
    if text.endswith("L"):
        return weekday == number(text[:-1], WEEKDAYS) and (when + timedelta(days=7)).month != when.month
    first, dash, last = text.partition("-")
    if dash and "/" not in text and "," not in text and number(first, WEEKDAYS) > number(last, WEEKDAYS):
        return weekday >= number(first, WEEKDAYS) or weekday <= number(last, WEEKDAYS)
    return holds(text, weekday, 0, 7, WEEKDAYS) or (weekday == 0 and holds(text, 7, 0, 7, WEEKDAYS))


class Reading:
    """An expression as the scan understands it."""

    def __init__(self, expression: str) -> None:
        words = SHORT.get(expression, expression).split()
        self.unit = 1 if len(words) == 6 else 60
        second, minute, hour, self.day, self.month, self.weekday = words if self.unit == 1 else ["0", *words]
        self.wildcard = minute[0] == "*" or hour[0] == "*"
        seconds = [value for value in range(60) if holds(second, value, 0, 59)]
        minutes = [value for value in range(60) if holds(minute, value, 0, 59)]
        hours = [value for value in range(24) if holds(hour, value, 0, 23)]
        self.times = frozenset(h * 3600 + m * 60 + s for h in hours for m in minutes for s in seconds)
        self._days: dict[int, bool] = {}

    def matches_day(self, day: int) -> bool:
        if day not in self._days:
            when = date(1970, 1, 1) + timedelta(days=day)
            by_day, by_weekday = holds_day(self.day, when), holds_weekday(self.weekday, when)
            both = self.day[0] in "*?" or self.weekday[0] in "*?"
            self._days[day] = holds(self.month, when.month, 1, 12, MONTHS) and (by_day and by_weekday if both else by_day or by_weekday)
        return self._days[day]


reading = cache(Reading)


# What the wall's clock shows.


def offset(zone: ZoneInfo, at: int) -> int:
    found = datetime.fromtimestamp(at, zone).utcoffset()
    assert found is not None
    return found.days * 86_400 + found.seconds


@cache
def changes(name: str) -> tuple[int, ...]:
    """Find the real seconds at which a zone's offset changes, looking every six hours."""
    zone, found = ZoneInfo(name), []
    at, end = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (FIRST_YEAR, LAST_YEAR + 1))
    before = offset(zone, at)
    while at < end:
        after = offset(zone, at + 21_600)
        if after != before:
            low, high = at, at + 21_600
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
            found.append(high)
        at, before = at + 21_600, after
    return tuple(found)


@dataclass(frozen=True)
class Stretch:
    """The real minutes (or seconds) around a change, and what the wall's clock shows at each."""

    zone: str
    first_at: int
    last_at: int
    real: list[tuple[int, int, int]]  # real second, day and second of day on the wall
    reached: list[tuple[int, int, int]]  # those of them at which the wall shows a time for the first time
    passed: list[tuple[int, int]]  # wall times that are never shown, and the real second at which the wall has passed them


def stretch(zone: str, change_at: int, unit: int) -> Stretch:
    around = AROUND_MINUTES * 60 if unit == 60 else AROUND_SECONDS
    first_at = (change_at - around) // 60 * 60
    info = ZoneInfo(zone)
    walk = Stretch(zone, first_at, (change_at + around) // 60 * 60, [], [], [])
    highest: int | None = None
    for at in range(walk.first_at, walk.last_at + 1, unit):
        wall = at + offset(info, at)
        assert wall % unit == 0, f"{zone} has an offset that is not of whole minutes"
        step = (at, *divmod(wall, 86_400))
        walk.real.append(step)
        if highest is None or wall > highest:
            walk.reached.append(step)
            if highest is not None and wall > highest + unit:
                walk.passed.extend((slot, at) for slot in range(highest + unit, wall, unit))
            highest = wall
    return walk


def scan(expression: str, gap: Gap, walk: Stretch) -> list[int]:
    """Walk through the stretch and note the real seconds at which the expression runs."""
    read = reading(expression)
    steps = walk.real if read.wildcard else walk.reached
    found = {at for at, day, second in steps if second in read.times and read.matches_day(day)}
    if gap == "run" and not read.wildcard:
        found |= {at for slot, at in walk.passed if slot % 86_400 in read.times and read.matches_day(slot // 86_400)}
    return sorted(found)


def evaluate(expression: str, gap: Gap, walk: Stretch) -> list[int]:
    plan = plan_of(Cron(expression, tz=walk.zone, gap=gap))
    found = plan.between((walk.first_at - 1) * SECOND, walk.last_at * SECOND, len(walk.real) + 1)
    return [instant // SECOND for instant in found]


def ask_cronsim(expression: str, walk: Stretch) -> list[int] | None:
    """Return cronsim's answer, or None where it defines no such expression or another meaning."""
    words = SHORT.get(expression, expression)
    if len(words.split()) == 6 or any(
        sign in words.replace("LW", "L") for sign in ("W", "?", "L-", "SATL", "FRI-MON", "28-3", "22-3", "NOV-FEB")
    ):
        return None
    found: list[int] = []
    simulated = CronSim(words, datetime.fromtimestamp(walk.first_at - 1, ZoneInfo(walk.zone)))
    while len(found) <= len(walk.real):
        at = round(next(simulated).timestamp())
        if at > walk.last_at:
            break
        found.append(at)
    return found


# Cases.


def at_the_change(name: str, change_at: int) -> list[str]:
    """Make expressions for the edges and the middle of a gap or fold."""
    zone = ZoneInfo(name)
    edges = sorted((change_at + offset(zone, change_at - 1), change_at + offset(zone, change_at)))
    walls = [edges[0] - 60, edges[0], (edges[0] + edges[1]) // 2, edges[1] - 60, edges[1]]
    times = [(wall // 60 % 60, wall // 3600 % 24) for wall in walls]
    return [
        *(f"{minute} {hour} * * *" for minute, hour in times),
        f"*/5 {times[2][1]} * * *",
        f"{times[2][0]} */1 * * *",
        f"0-59/5 {times[1][1]} * * *",
    ]


@dataclass(frozen=True)
class Case:
    zone: str
    change_at: int
    expression: str
    gap: Gap

    @property
    def unit(self) -> int:
        return reading(self.expression).unit


def cases_of(zone: str, per_change: int, dice: random.Random, only: Sequence[int] | None = None) -> Iterator[Case]:
    """Draw cases for each change of a zone: half at the change itself, half of the corpus; now and then one by seconds."""
    for change_at in changes(zone) if only is None else only:
        own = dice.sample(at_the_change(zone, change_at), min(8, per_change // 2))
        drawn = own + dice.sample(CORPUS, min(len(CORPUS), per_change - len(own)))
        if dice.random() < 0.05:
            drawn.append(dice.choice(CORPUS_OF_SECONDS))
        for expression in drawn:
            yield Case(zone, change_at, expression, "skip" if dice.random() < 0.3 else "run")


@dataclass
class Tally:
    cases: int = 0
    changes: int = 0
    instants: int = 0
    asked: int = 0
    cronsim_differs: list[Case] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def check(cases: Iterator[Case], tally: Tally, *, beside: bool = False) -> None:
    """Compare evaluator and scan case by case; cases of one change stand together."""
    real: dict[int, Stretch] = {}
    where: tuple[str, int] | None = None
    for case in cases:
        if where != (case.zone, case.change_at):
            real, where = {}, (case.zone, case.change_at)
            tally.changes += 1
        if case.unit not in real:
            real[case.unit] = stretch(case.zone, case.change_at, case.unit)
        expected = scan(case.expression, case.gap, real[case.unit])
        answered = evaluate(case.expression, case.gap, real[case.unit])
        tally.cases += 1
        tally.instants += len(expected)
        if answered != expected:
            missing, invented = sorted(set(expected) - set(answered)), sorted(set(answered) - set(expected))
            tally.wrong.append(f"{case}: missing {missing[:5]}, invented {invented[:5]}")
        if beside and case.gap == "run" and tally.cases % CRONSIM_EVERY == 0:
            simulated = ask_cronsim(case.expression, real[case.unit])
            if simulated is not None:
                tally.asked += 1
                if simulated != expected:
                    tally.cronsim_differs.append(case)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cron_scan", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="how many at least (100,000); every change of every zone has some")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    options = parser.parse_args()
    zones = sorted(available_timezones())
    began = time.monotonic()
    print(f"Looking for changes of offset in {len(zones)} zones, {FIRST_YEAR}–{LAST_YEAR} …", flush=True)
    number_of_changes = sum(len(changes(zone)) for zone in zones)
    per_change = max(4, -(-options.cases // number_of_changes))
    print(f"{number_of_changes:,} changes, {per_change} expressions or more for each.", flush=True)
    tally = Tally()
    for index, zone in enumerate(zones):
        check(cases_of(zone, per_change, random.Random(f"{options.seed} {zone}")), tally, beside=True)
        if sys.stderr.isatty() or index % 50 == 49 or index + 1 == len(zones):
            seconds = time.monotonic() - began
            line = f"{index + 1}/{len(zones)} zones, {tally.cases:,} cases, {len(tally.wrong)} wrong, {seconds:.0f} s  {zone}"
            print(f"\r{line:<100}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for line in tally.wrong[:20]:
        print(f"wrong: {line}")
    for case in tally.cronsim_differs[:5]:
        print(f"cronsim differs from the scan: {case}")
    print(f"{tally.cases:,} cases over {tally.changes:,} changes: {tally.instants:,} instants, {len(tally.wrong)} cases wrong.")
    print(f"cronsim was asked in {tally.asked:,} of them and differs from the scan in {len(tally.cronsim_differs):,}.")
    if tally.changes != number_of_changes or tally.cases < options.cases:
        print(f"too few cases: {tally.changes:,} of {number_of_changes:,} changes, {tally.cases:,} of {options.cases:,} cases")
        return 1
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
