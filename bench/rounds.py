"""Measuring in rounds: every case once per round, one after the other, and the median of the rounds' ratios.

The same program can differ by a factor of two within a minute on a shared machine. Cases that run one right after the other
share its mood, so only their ratio within a round is worth anything.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
console = Console() if sys.stdout.isatty() else Console(width=160)  # in a file nothing needs to be broken to fit a screen


def interleave(cases: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Run all cases once per round; return the figures of each case in the order of rounds."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            with console.status(f"round {number + 1} of {rounds}: {name}"):
                figures[name].append(case())
    return figures


def median_ratio(of: Sequence[float], to: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def median(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def import_path(checkout: Path, *folders: Path) -> dict[str, str]:
    """Return the setting that lets a process import the package and the benchmarks of a checkout, and folders that go before them."""
    return {"PYTHONPATH": os.pathsep.join(map(str, (*folders, checkout / "src", checkout)))}


def in_process(module: str, *arguments: str, checkout: Path = ROOT) -> dict[str, float]:
    """Run a case in a process of its own, so that it neither shares an interpreter nor leaves anything behind."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **import_path(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def answer(**figures: float) -> None:
    """Print a case's figures for `in_process`."""
    print(json.dumps(figures))


class Report:
    """A table of figures, each against what was measured beside it and against its goal."""

    def __init__(self, title: str) -> None:
        self._table = Table(title=title, title_justify="left")
        for column in ("figure", "measured", "beside it", "ratio", "goal", ""):
            self._table.add_column(column, justify="left" if column in ("figure", "") else "right")
        self.missed: list[str] = []

    def add(
        self, figure: str, measured: str, beside: str, ratio: float, goal: float | None, *, at_most: bool = False, unit: str = "×"
    ) -> None:
        """Enter a figure; one without a goal is only shown."""
        if goal is None:
            self._table.add_row(figure, measured, beside, f"{ratio:.2f} {unit}", "", "")
            return
        met = ratio <= goal if at_most else ratio >= goal
        if not met:
            self.missed.append(f"{figure}, beside {beside}")
        sign = "≤" if at_most else "≥"
        self._table.add_row(figure, measured, beside, f"{ratio:.2f} {unit}", f"{sign} {goal:g} {unit}", "met" if met else "MISSED")

    def lack(self, figure: str, reason: str) -> None:
        """Enter that a figure could not be taken; it counts as missed."""
        self.missed.append(f"{figure}: {reason}")
        self._table.add_row(figure, "not measured", "", "", "", "MISSED")

    def show(self) -> None:
        console.print(self._table)
