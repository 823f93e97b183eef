"""All figures of this repository: `python -m bench`, or some of them: `python -m bench submitting draining`."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
from collections.abc import Callable

from bench import draining, lateness, submitting, wheel
from bench.rounds import ROUNDS, Report, console


def run_wheel(report: Report) -> None:
    figures = wheel.run()
    seconds = {name: figures[f"cancelled.{name}.seconds"] for name in ("wheel", "lazy_heap")}
    name = "timing wheel, 1,000,000 timers, 90% cancelled"
    beside = f"heapq, lazy deletion {seconds['lazy_heap']:.2f} s"
    report.add(name, f"{seconds['wheel']:.2f} s", beside, figures["cancelled.wheel/lazy_heap"], 0.5, at_most=True)


PARTS: dict[str, Callable[[Report], None]] = {
    "submitting": submitting.run,
    "draining": draining.run,
    "lateness": lateness.run,
    "wheel": run_wheel,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which figures to take: {', '.join(PARTS)} (all)")
    parser.add_argument("--full", action="store_true", help="take the long versions where there are some")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    console.print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores. SQLite in WAL mode with "
        f"synchronous=full (an fsync per commit), history kept. Ratios are medians of {ROUNDS} interleaved rounds."
    )
    report = Report("Duetime on SQLite")
    for part in options.parts or PARTS:
        PARTS[part](report)
    report.show()
    for figure in report.missed:
        console.print(f"missed: {figure}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
