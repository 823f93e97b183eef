"""Two versions beside each other: `python -m bench PART … --against PATH`, for the figures of Duetime alone, without peers.

Each version is measured by its own bench folder, because that knows its tables and modules; the interpreter and the server are
the same. The versions alternate within each round, so a ratio is of two runs that were made one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from bench import http
from bench.postgres.cases import Cases
from bench.postgres.contestant import DUETIME, DUETIME_BEST, Contestant
from bench.postgres.server import Server, running_server
from bench.rounds import ROOT, console, import_path, in_process, median, median_ratio

Figures = dict[str, float]
QUERIES = "import json; from bench.postgres.contestant import DUETIME; print(json.dumps([DUETIME.left, DUETIME.kept]))"


@dataclass(frozen=True)
class Copy:
    """A checkout whose Duetime is measured on a server."""

    checkout: Path
    server: Server

    def contestant(self, like: Contestant) -> Contestant:
        """Return Duetime of this checkout, with the settings of another contestant."""
        command = [sys.executable, "-c", QUERIES]
        environment = import_path(self.checkout)
        done = subprocess.run(command, cwd=self.checkout, env=environment, capture_output=True, text=True, check=True)
        left, kept = json.loads(done.stdout)
        return replace(like, left=left, kept=kept, folder=self.checkout, environment={**like.environment, **environment})


def _draining(copy: Copy) -> Figures:
    return {"drain on SQLite, tasks/s": in_process("bench.draining", "duetime", checkout=copy.checkout)["rate"]}


def _submitting(copy: Copy) -> Figures:
    return {
        f"submitting on SQLite, {case}, tasks/s": in_process("bench.submitting", case, checkout=copy.checkout)["rate"]
        for case in ("bulk", "single")
    }


def _lateness(copy: Copy) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        waits = in_process("bench.lateness", "duetime", f"{folder}/late.db", checkout=copy.checkout)
    return {f"lateness on SQLite, {share}, ms": waits[share] for share in ("p50", "p99")}


def _postgres_draining(copy: Copy) -> Figures:
    cases = Cases(copy.server)
    return {
        "drain on PostgreSQL, tasks/s": cases.draining(copy.contestant(DUETIME_BEST)),
        "drain on PostgreSQL, default concurrency, tasks/s": cases.draining(copy.contestant(DUETIME)),
        "drain on PostgreSQL, two processes, tasks/s": cases.draining(copy.contestant(DUETIME_BEST), 2),
    }


def _postgres_submitting(copy: Copy) -> Figures:
    return {"submit_many on PostgreSQL, tasks/s": Cases(copy.server).submitting(copy.contestant(DUETIME))}


def _postgres_pickup(copy: Copy) -> Figures:
    waits = Cases(copy.server).pickup(copy.contestant(DUETIME))
    return {f"pickup on PostgreSQL, {share}, ms": waits[share] for share in ("p50", "p99")}


def _postgres_lateness(copy: Copy) -> Figures:
    waits = Cases(copy.server).lateness(copy.contestant(DUETIME))
    return {f"lateness on PostgreSQL, {share}, ms": waits[share] for share in ("p50", "p99")}


def _http(copy: Copy) -> Figures:
    singles = http.singles(copy.server, "duetime", copy.checkout)
    return {
        "POST /v1/tasks, requests/s": singles["rate"],
        **{f"POST /v1/tasks, {share}, ms": singles[share] for share in ("p50", "p99")},
        "POST /v1/tasks/batch, tasks/s": http.batches(copy.server, copy.checkout),
    }


PARTS: dict[str, Callable[[Copy], Figures]] = {
    "draining": _draining,
    "submitting": _submitting,
    "lateness": _lateness,
    "postgres.draining": _postgres_draining,
    "postgres.submitting": _postgres_submitting,
    "postgres.pickup": _postgres_pickup,
    "postgres.lateness": _postgres_lateness,
    "http": _http,
}


def run(parts: Sequence[str], other: Path, rounds: int) -> None:
    """Measure these parts of another checkout and of this one; print every round as it comes, and the medians at the end."""
    before: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    with running_server() as server:
        sides = [(Copy(other, server), before), (Copy(ROOT, server), after)]
        for number in range(rounds):
            for part in parts:
                for copy, figures in sides if number % 2 == 0 else reversed(sides):
                    measured = PARTS[part](copy)
                    for name, value in measured.items():
                        figures.setdefault(name, []).append(value)
                for name in measured:
                    old, new = before[name][-1], after[name][-1]
                    console.print(f"round {number + 1} of {rounds}: {name}: {_shown(old)} before, {_shown(new)} after, {new / old:.3f} ×")
    _show(other, before, after)


def _show(other: Path, before: dict[str, list[float]], after: dict[str, list[float]]) -> None:
    table = Table(title=f"Before ({other}) and after ({ROOT})", title_justify="left")
    for column in ("figure", "before", "after", "ratio", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, new in after.items():
        old = before[name]
        ratios = [mine / theirs for mine, theirs in zip(new, old, strict=True)]
        span = (f"{ratio:.3f} ×" for ratio in (median_ratio(new, old), min(ratios), max(ratios)))
        table.add_row(name, _shown(median(old)), _shown(median(new)), *span)
    console.print(table)
    console.print("Ratios are after / before, the median of the rounds; of rates more is better, of waits (ms) less.")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
