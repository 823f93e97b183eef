"""Claims of a handler whose collections share its starts, beside the same claims of one that takes the first come first."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial

from bench.lanes import DUE, FEW, MANY, SIZE, measure
from bench.rounds import ROUNDS, Report, answer, in_process, interleave, median, median_ratio

SOME = 1_000
GOAL_BESIDE_PLAIN, GOAL_OF_MANY = 1.11, 1.2  # 0.9 of the speed; as for claims that are not fair

CASES = {
    "plain": (SOME, False),
    "fair": (SOME, True),
    "fair, few": (FEW, True),
    "fair, many": (MANY, True),
}


def compare(report: Report, new_store: Callable[[str], str], *, rounds: int = ROUNDS) -> None:
    """Measure each case in each round, each in a new store."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}

    def case(name: str) -> float:
        collections, fair = CASES[name]
        found[name].append(in_process("bench.fairness", new_store("fair"), str(collections), "fair" if fair else ""))
        return found[name][-1]["wait"]

    interleave({name: partial(case, name) for name in CASES}, rounds)
    for figure, what in (("cpu", "CPU time"), ("wait", "time")):
        of = {name: [each[figure] for each in figures] for name, figures in found.items()}
        said = f"{what} of a claim of {SIZE} among {DUE:,} due in {SOME:,} collections that share"
        beside = f"first come first {median(of['plain']):.2f} ms"
        report.add(said, f"{median(of['fair']):.2f} ms", beside, median_ratio(of["fair"], of["plain"]), GOAL_BESIDE_PLAIN, at_most=True)
        said = f"{what} of a claim of {SIZE} among {DUE:,} due in {MANY:,} collections that share"
        beside = f"{FEW} collections {median(of['fair, few']):.2f} ms"
        ratio = median_ratio(of["fair, many"], of["fair, few"])
        report.add(said, f"{median(of['fair, many']):.2f} ms", beside, ratio, GOAL_OF_MANY, at_most=True)


def run(report: Report) -> None:
    """Take the figures on SQLite."""
    with contextlib.ExitStack() as folders:
        compare(report, lambda name: f"sqlite:///{folders.enter_context(tempfile.TemporaryDirectory(prefix=name))}/bench.db")


if __name__ == "__main__":
    answer(**asyncio.run(measure(sys.argv[1], int(sys.argv[2]), fair=bool(sys.argv[3]))))
