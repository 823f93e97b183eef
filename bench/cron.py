"""Compare cron evaluation with cronsim, on the expressions of cronsim's own tests and pages.

The figures: walking through an expression's instants, and reading an expression up to its first instant, are at least as fast as with
cronsim: the median over interleaved rounds of the ratio of the times for the whole corpus.

Both answer in their own currency, cronsim with a `datetime` and Duetime with an integer of microseconds. Each expression is
walked through in UTC and in a zone with summer time, and both must find the same instants.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from zoneinfo import ZoneInfo

from cronsim import CronSim

from bench.rounds import ROUNDS, Report
from duetime.clock import Instant, to_instant
from duetime.model.rules import Cron, plan_of
from duetime.model.rules.cron import read_expression
from duetime.model.rules.plan import part_of

EXPRESSIONS = (
    *("* * * * *", "*/15 * * * *", "0-10/2 * * * *", "5/15 * * * *", "1-3,7-9 * * * *", "0 * * * *", "30 */2 * * *", "0 1-5 * * *"),
    *("15 3 * * *", "0 1,3,5,7,9,11,13,15,17,19,21,23 * * *", "* * * * 1", "* * * * 0-2", "* * * * sun-tue", "* * * * */2"),
    *("* * * JAN *", "* * 1 * *", "* * L * *", "* * LW * *", "* * * * 1#2", "* * * * 1,2,3#1", "* * * * 5L", "1 1 * * */3"),
    *("1 1 1-7 * */7", "1 1 */100,1-7 * MON", "1 1 L * *", "1 1 LW 5 *", "1 1 * * 5L", "0 0 29 2 *", "0 0 * 2 MON#5"),
    *("* * * * * *", "*/15 * * * * *", "0 30 1-10 * * *", "11,22 30 1,2,3,4 * * *"),
)
ZONES = ("UTC", "Europe/Riga")
START = datetime(2026, 1, 15, 12, 30, tzinfo=UTC)


def walk_cronsim(expression: str, zone: str, steps: int) -> list[datetime]:
    simulated = CronSim(expression, START.astimezone(UTC if zone == "UTC" else ZoneInfo(zone)))
    return [next(simulated) for _ in range(steps)]


def walk_duetime(expression: str, zone: str, steps: int) -> list[Instant]:
    after = plan_of(Cron(expression, tz=zone)).after
    found = []
    instant: Instant | None = to_instant(START)
    for _ in range(steps):
        assert instant is not None
        instant = after(instant)
        assert instant is not None
        found.append(instant)
    return found


def first_duetime(expression: str, zone: str, _steps: int) -> list[Instant]:
    """Read the expression anew, as if it had never been seen."""
    read_expression.cache_clear()
    part_of.cache_clear()
    return walk_duetime(expression, zone, 1)


def first_cronsim(expression: str, zone: str, _steps: int) -> list[datetime]:
    return walk_cronsim(expression, zone, 1)


def _measure(case: Callable[[str, str, int], object], steps: int, times: int) -> float:
    gc.collect()
    began = perf_counter()
    for _ in range(times):
        for zone in ZONES:
            for expression in EXPRESSIONS:
                case(expression, zone, steps if "29 2" not in expression and "2 MON#5" not in expression else min(steps, 10))
    return perf_counter() - began


def check(steps: int = 10) -> None:
    """Make sure that the comparison compares the same instants."""
    for zone in ZONES:
        for expression in EXPRESSIONS:
            ours, theirs = walk_duetime(expression, zone, steps), [to_instant(when) for when in walk_cronsim(expression, zone, steps)]
            if ours != theirs:
                raise AssertionError(f"{expression} in {zone}: Duetime and cronsim disagree, {ours[:3]} and {theirs[:3]}")


def measure(steps: int = 500, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each contestant and how many times faster Duetime is, walking and reading."""
    check()
    contests: dict[str, tuple[Callable[[str, str, int], object], Callable[[str, str, int], object], int]] = {
        "walking": (walk_duetime, walk_cronsim, 1),
        "reading": (first_duetime, first_cronsim, 20),
    }
    figures: dict[str, float] = {}
    for name, (ours, theirs, times) in contests.items():
        seconds: dict[str, list[float]] = {"duetime": [], "cronsim": []}
        for number in range(rounds):
            for contestant, case in sorted((("duetime", ours), ("cronsim", theirs)), reverse=number % 2 == 0):
                seconds[contestant].append(_measure(case, steps, times))
        for contestant, taken in seconds.items():
            figures[f"{name}.{contestant}.seconds"] = median(taken)
        figures[f"{name}.ratio"] = median(other / own for own, other in zip(seconds["duetime"], seconds["cronsim"], strict=True))
    return figures


def run(report: Report) -> None:
    figures = measure()
    for name, what in (("walking", "cron: walking through instants"), ("reading", "cron: reading an expression, first instant")):
        measured, beside = figures[f"{name}.duetime.seconds"], figures[f"{name}.cronsim.seconds"]
        report.add(what, f"{measured:.2f} s", f"cronsim {beside:.2f} s", figures[f"{name}.ratio"], 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare cron evaluation with cronsim.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    for name, value in measure(arguments.steps, arguments.rounds).items():
        print(f"{name:28} {value:8.3f}")


if __name__ == "__main__":
    main()
