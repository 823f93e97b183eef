"""All figures of this repository: `python -m bench`, or some of them: `python -m bench submitting postgres postgres.pickup`."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    against,
    commands,
    cron,
    dashboard,
    draining,
    everyday,
    fairness,
    flows,
    http,
    http_target,
    lanes,
    lateness,
    limits,
    listing,
    many_handlers,
    schedules,
    service_budget,
    submitting,
    wheel,
)
from bench.postgres import figures
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
    "cron": cron.run,
    "schedules": schedules.run,
    "many_handlers": many_handlers.run,
    "lanes": lanes.run,
    "fairness": fairness.run,
    "http_target": http_target.run,
    "commands": commands.run,
}


def run_sqlite(parts: Sequence[str]) -> Report:
    report = Report("Duetime on SQLite")
    console.print(
        f"SQLite {sqlite3.sqlite_version} in WAL mode with synchronous=full (an fsync per commit), history kept. "
        f"Ratios are medians of {ROUNDS} interleaved rounds."
    )
    for part in parts:
        PARTS[part](report)
    return report


def run_postgres(parts: Sequence[str], options: argparse.Namespace) -> Report:
    report = Report("Duetime on PostgreSQL")
    figures.run(report, parts, full=options.full, rounds=options.rounds, tasks=options.tasks)
    return report


def run_http(options: argparse.Namespace) -> Report:
    report = Report("Duetime over HTTP")
    http.run(report, rounds=options.rounds)
    return report


def run_listing(options: argparse.Namespace) -> Report:
    report = Report("Lists of tasks over HTTP")
    listing.run(report, full=options.full, rounds=options.rounds)
    return report


def run_dashboard(options: argparse.Namespace) -> Report:
    report = Report("The dashboard on PostgreSQL")
    dashboard.run(report, full=options.full, rounds=options.rounds, large=options.tasks)
    return report


def run_everyday(options: argparse.Namespace) -> Report:
    report = Report("Everyday handlers: rates, and µs of CPU time a task")
    everyday.run(report, options.rounds)
    return report


def run_flows(parts: Sequence[str], options: argparse.Namespace) -> Report:
    report = Report("Flows")
    flows.run(report, parts, rounds=options.rounds, full=options.full)
    return report


def run_limits(options: argparse.Namespace) -> Report:
    report = Report("Limits")
    limits.run(report, rounds=options.rounds, tasks=options.tasks)
    return report


def run_service() -> Report:
    report = Report("How long one request holds the event loop of the service")
    service_budget.run(report)
    return report


def main() -> int:
    names = (*PARTS, "http", "listing", "dashboard", "everyday", "flows", *flows.PARTS, "limits", "service", "postgres", *figures.PARTS)
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which figures to take: {', '.join(names)} (all)")
    parser.add_argument("--full", action="store_true", help="take the long versions where there are some")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds on PostgreSQL and with --against: fewer than five are a look, not a figure"
    )
    parser.add_argument(
        "--tasks", type=int, help="tasks of each drain, bulk and dashboard on PostgreSQL, a multiple of 1,000; for a look as well"
    )
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="a checkout of another version, measured beside this one without peers"
    )
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in names]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(names)}")
    if options.against:
        lacking = [part for part in options.parts if part not in against.PARTS]
        if lacking:
            parser.error(f"{lacking[0]!r} cannot be measured against another version; there are {', '.join(against.PARTS)}")
        if not (options.against / "src" / "duetime").is_dir():
            parser.error(f"{options.against} is no checkout of Duetime: it has no folder src/duetime")
        against.run(options.parts or list(against.PARTS), options.against.resolve(), options.rounds)
        return 0
    wanted = options.parts or names
    on_sqlite = [part for part in PARTS if part in wanted]
    on_postgres = [part for part in figures.PARTS if part in wanted or "postgres" in wanted]
    of_flows = [part for part in flows.PARTS if part in wanted or "flows" in wanted]
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores.")
    reports = [run_sqlite(on_sqlite)] if on_sqlite else []
    reports += [run_postgres(on_postgres, options)] if on_postgres else []
    reports += [run_http(options)] if "http" in wanted else []
    reports += [run_listing(options)] if "listing" in wanted else []
    reports += [run_dashboard(options)] if "dashboard" in wanted else []
    reports += [run_everyday(options)] if "everyday" in wanted else []
    reports += [run_flows(of_flows, options)] if of_flows else []
    reports += [run_limits(options)] if "limits" in wanted else []
    reports += [run_service()] if "service" in wanted else []
    for report in reports:
        report.show()
    missed = [figure for report in reports for figure in report.missed]
    for figure in missed:
        console.print(f"missed: {figure}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
