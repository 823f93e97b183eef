"""What one task costs: `python -m bench.costs`, beside the kept ledger or, with --against, beside another version in the same run."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from bench.costs.ledger import COSTS, KEPT, PAGE, Ledger, Row, grown, kept, shown
from bench.costs.measuring import CASES, MORE, Version, measure
from bench.costs.stores import MeasuredStore, running_postgres, sqlite_file
from bench.rounds import ROOT, ROUNDS, console

STORES = ("sqlite", "postgres")
COUNTING_ROUNDS = 3


def take(versions: Sequence[Version], stores: Sequence[MeasuredStore], options: argparse.Namespace) -> list[Ledger]:
    """Measure every case on every store with every version, once per round; return a ledger for each version."""
    ledgers = [Ledger(version.commit()) for version in versions]
    for number in range(options.rounds):
        for store in stores:
            for case in options.cases:
                tasks = max(round({**CASES, **MORE}[case] * options.scale), 1)
                both = list(zip(versions, ledgers, strict=True))
                # in every other round the later version goes first, so that neither always finds the warmer machine
                for version, ledger in both if number % 2 == 0 else reversed(both):
                    for count in (False, True)[: 2 if number < COUNTING_ROUNDS else 1]:
                        costs = measure(version, store, case, tasks, count=count)
                        for phase, figures in costs.items():
                            ledger.note((store.name, case, phase), figures)
                        if not count:
                            cpu = ", ".join(f"{phase} {shown(figures['program'])} µs" for phase, figures in costs.items())
                            console.print(f"round {number + 1} of {options.rounds}: {store.name}, {case}, {version.name}: {cpu}")
    return ledgers


def show(ledger: Ledger, known: Mapping[Row, Mapping[str, float]]) -> None:
    """Print the ledger, each figure with its difference to the kept one."""
    table = Table(title=f"Cost per task at {ledger.commit}, and the difference to the kept ledger", title_justify="left")
    for name in ("store", "case", "phase"):
        table.add_column(name)
    for name in COSTS.values():
        table.add_column(name, justify="right")
    for row in ledger.figures:
        cells = []
        for cost in COSTS:
            value, before = ledger.median(row, cost), known.get(row, {}).get(cost)
            cells.append(ledger.cell(row, cost) + (f" ({value / before - 1:+.1%})" if value is not None and before else ""))
        table.add_row(*row, *cells)
    console.print(table)


def compare(before: Ledger, after: Ledger) -> None:
    """Print both versions beside each other, and name what has grown."""
    table = Table(title=f"Cost per task: before ({before.commit}) and after ({after.commit})", title_justify="left")
    for name in ("store", "case", "phase", "cost"):
        table.add_column(name)
    for name in ("before", "after", "ratio"):
        table.add_column(name, justify="right")
    for row in after.figures:
        for cost, name in COSTS.items():
            if (ratio := after.ratio(row, cost, before)) is not None:
                table.add_row(*row, name, before.cell(row, cost), after.cell(row, cost), f"{ratio:.3f}")
    console.print(table)
    for line in grown(before, after) or ["no cost has grown by more than 3%"]:
        console.print(line)


def about(ledger: Ledger, stores: Sequence[MeasuredStore], options: argparse.Namespace) -> str:
    engines = " and ".join(f"{store.name} {store.version}" for store in stores)
    tasks = ", ".join(f"{case} {number:,}" for case, number in CASES.items())
    return (
        f"Taken at commit {ledger.commit} on {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {engines}. Tasks: {tasks}. "
        f"Median of {options.rounds} rounds for CPU and of {min(COUNTING_ROUNDS, options.rounds)} for counts. "
        f"Load average {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.costs", description=__doc__)
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="a checkout of another version (PATH/src), measured in the same rounds"
    )
    parser.add_argument("--write", action="store_true", help=f"keep the result in {PAGE.relative_to(ROOT)} and {KEPT.name}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer than five are a look, not a figure")
    parser.add_argument("--scale", type=float, default=1.0, help="this share of the tasks, for a look as well")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, *MORE], default=list(CASES))
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    options = parser.parse_args()
    if options.against and not (options.against / "src" / "duetime").is_dir():
        parser.error(f"{options.against} is no checkout of Duetime: it has no folder src/duetime")
    if options.write and (options.scale != 1 or set(options.cases) != set(CASES) or len(options.stores) < len(STORES)):
        parser.error("only a whole ledger is kept: --write goes without --scale, --cases and --stores")
    versions = [Version("before", options.against.resolve())] if options.against else []
    versions.append(Version("after", ROOT))
    with contextlib.ExitStack() as stack:
        stores: list[MeasuredStore] = []
        if "sqlite" in options.stores:
            stores.append(stack.enter_context(sqlite_file()))
        if "postgres" in options.stores:
            stores.append(stack.enter_context(running_postgres()))
        ledgers = take(versions, stores, options)
    ledger = ledgers[-1]
    show(ledger, kept())
    if options.against:
        compare(ledgers[0], ledger)
    if options.write:
        ledger.write(about(ledger, stores, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
