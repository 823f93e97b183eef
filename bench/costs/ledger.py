"""The ledger: what was measured, as a table for people and as JSON for the next comparison."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "costs.md"
KEPT = PAGE.with_suffix(".json")
BEGIN, END = "<!-- ledger -->", "<!-- end of ledger -->"

COSTS: Mapping[str, str] = {
    "program": "program, CPU µs",
    "server": "server, CPU µs",
    "statements": "statements",
    "round_trips": "round trips",
    "transactions": "transactions",
    "wal": "WAL bytes",
    "longest": "longest transaction, ms",
}
UNSTEADY = ("longest",)  # a single event, by the clock on the wall: shown, never judged
TOLERANCE = 0.03

Row = tuple[str, str, str]  # store, case, phase


@dataclass
class Ledger:
    """The figures of one version: for each row and cost one per round."""

    commit: str
    figures: dict[Row, dict[str, list[float]]] = field(default_factory=dict)

    def note(self, row: Row, costs: Mapping[str, float]) -> None:
        for name, value in costs.items():
            self.figures.setdefault(row, {}).setdefault(name, []).append(value * 1e3 if name == "longest" else value)

    def median(self, row: Row, cost: str) -> float | None:
        values = self.figures.get(row, {}).get(cost)
        return statistics.median(values) if values else None

    def spread(self, row: Row, cost: str) -> float:
        """Return half the distance between the lowest and the highest round, as a share of the median."""
        values = self.figures[row][cost]
        middle = statistics.median(values)
        return (max(values) - min(values)) / 2 / middle if middle else 0.0

    def ratio(self, row: Row, cost: str, before: Ledger) -> float | None:
        """Return the median of the rounds' ratios: two runs beside each other share the machine's mood."""
        mine, theirs = self.figures.get(row, {}).get(cost, []), before.figures.get(row, {}).get(cost, [])
        ratios = [after / earlier for after, earlier in zip(mine, theirs, strict=False) if earlier]
        return statistics.median(ratios) if ratios else None

    def write(self, about: str) -> None:
        """Put the table into the page and the figures beside it."""
        text = PAGE.read_text()
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text("\n".join((head + BEGIN, about, "", *self._markdown(), END)) + tail)
        rows = [
            {"store": row[0], "case": row[1], "phase": row[2], **{name: _rounded(self.median(row, name)) for name in costs}}
            for row, costs in self.figures.items()
        ]
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        KEPT.write_text(f'{{\n  "commit": {json.dumps(self.commit)},\n  "costs": [\n{lines}\n  ]\n}}\n')

    def _markdown(self) -> Iterator[str]:
        yield f"| store | case | phase | {' | '.join(COSTS.values())} |"
        yield f"| --- | --- | --- |{' ---: |' * len(COSTS)}"
        for row in self.figures:
            yield f"| {' | '.join((*row, *(self.cell(row, cost) for cost in COSTS)))} |"

    def cell(self, row: Row, cost: str) -> str:
        value = self.median(row, cost)
        if value is None:
            return "–"
        spread = self.spread(row, cost)
        return shown(value) + (f" ±{spread:.0%}" if spread >= 0.005 else "")


def kept() -> dict[Row, dict[str, float]]:
    """Read the ledger that is kept beside the page."""
    if not KEPT.exists():
        return {}
    names = ("store", "case", "phase")
    rows = json.loads(KEPT.read_text())["costs"]
    return {(row["store"], row["case"], row["phase"]): {name: row[name] for name in row if name not in names} for row in rows}


def shown(value: float) -> str:
    """Write a figure with three digits, and no more than a person can compare."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def grown(before: Ledger, after: Ledger) -> list[str]:
    """Name the costs that have grown by more than what is tolerated, each with its spread, to tell a cost from noise."""
    found = []
    for row in after.figures:
        for cost in COSTS:
            ratio = after.ratio(row, cost, before)
            if ratio is not None and cost not in UNSTEADY and ratio > 1 + TOLERANCE:
                found.append(f"{', '.join(row)}: {COSTS[cost]} {ratio - 1:+.1%}, rounds differ by ±{after.spread(row, cost):.0%}")
    return found
