"""The report of `duetime demo`, computed from the shop's tables and the journal of its handlers, not from Duetime."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from duetime.cli.demo.shop import Entry

T = TypeVar("T")

SECOND = 1_000_000
WIDEST = 100  # columns; longer lines are hard to read
EIGHTHS = " ▁▂▃▄▅▆▇█"
LEFT_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Upper bounds of the histogram's rows, in milliseconds.
BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, math.inf)

# What the breaches of a report would break, in the order in which they are shown.
PROMISES = {
    "lost": "every unpaid order expired",
    "expired although paid": "no order was both",
    "started although cancelled": "a cancelled expiry never starts",
    "overlapping": "no two attempts of an order at once",
    "early": "none started before its due time",
    "stock wrong": "delivered = sold + in stock",
}


class Order(msgspec.Struct, frozen=True):
    """An order as the shop's table has it at the end."""

    id: int
    product: int
    quantity: int
    state: str
    placed_at: int
    expires_at: int
    paid_at: int | None
    expired_at: int | None


class Product(msgspec.Struct, frozen=True):
    id: int
    delivered: int
    stock: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the report is computed from. `cancelled`: when a cancel was answered with `cancelled`, by order.
    `deaths`: when a killed process was seen to be dead, by process id."""

    orders: Sequence[Order]
    products: Sequence[Product]
    journal: Sequence[Entry]
    cancelled: Mapping[int, int]
    deaths: Mapping[int, int]
    refused: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings: instants and durations in microseconds, breaches as ids of orders (or products)."""

    placed: int
    cancelled: int
    paid_late: int
    refused: int
    expired: int
    attempts: int
    lateness: Sequence[tuple[int, int]]  # start, lateness: orders that the kill did not touch
    hit: Sequence[tuple[int, int]]  # the same for those that it did, by the attempt that finished the work
    run_twice: int
    pieces: int
    breaches: Mapping[str, Sequence[int]]

    @property
    def all_kept(self) -> bool:
        return not any(self.breaches.values())


def read_journal(path: Path, offset: int = 0) -> tuple[list[Entry], int]:
    """Read the complete lines after an offset, and return them with the offset of the next ones."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    end = text.rfind(b"\n") + 1
    return [msgspec.json.decode(line, type=Entry) for line in text[:end].splitlines()], offset + end


# ---- examining ----


def examine(evidence: Evidence) -> Report:
    """Compare the journal with the shop's tables."""
    runs = _runs(evidence.journal)
    lateness, hit = [], []
    for order in evidence.orders:
        of_order = runs.get(order.id, [])
        done = [run for run in of_order if run.result in ("restored", "expired", "paid")]
        if not done:
            continue
        if _was_hit(of_order, evidence.deaths):
            hit.append((done[0].started_at, done[0].started_at - order.expires_at))
        else:
            lateness.append((of_order[0].started_at, of_order[0].started_at - order.expires_at))
    by_state = _count(evidence.orders, lambda order: order.state)
    return Report(
        placed=len(evidence.orders),
        cancelled=len(evidence.cancelled),
        paid_late=by_state.get("paid", 0) - len(evidence.cancelled),
        refused=evidence.refused,
        expired=by_state.get("expired", 0),
        attempts=sum(len(of_order) for of_order in runs.values()),
        lateness=lateness,
        hit=hit,
        run_twice=sum(len(of_order) > 1 for of_order in runs.values()),
        pieces=sum(order.quantity for order in evidence.orders if order.state == "expired"),
        breaches={
            "lost": [order.id for order in evidence.orders if _is_lost(order, runs.get(order.id, []))],
            "expired although paid": [
                order.id
                for order in evidence.orders
                if (order.paid_at is not None and order.expired_at is not None)
                or (order.state == "paid" and any(run.result == "restored" for run in runs.get(order.id, [])))
            ],
            "started although cancelled": [
                order for order, at in evidence.cancelled.items() if any(run.started_at > at for run in runs.get(order, []))
            ],
            "overlapping": [order for order, of_order in runs.items() if _overlap(of_order, evidence.deaths)],
            "early": [order.id for order in evidence.orders if any(run.started_at < order.expires_at for run in runs.get(order.id, []))],
            "stock wrong": _wrong_stock(evidence),
        },
    )


def _runs(journal: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Return the attempts of each order, oldest first. One that was killed has only a start."""
    ends = {(entry.task, entry.attempt, entry.started_at): entry for entry in journal if entry.ended_at is not None}
    runs: dict[int, list[Entry]] = defaultdict(list)
    for entry in journal:
        if entry.ended_at is None:
            runs[entry.order].append(ends.get((entry.task, entry.attempt, entry.started_at), entry))
    for of_order in runs.values():
        of_order.sort(key=lambda run: run.started_at)
    return dict(runs)


def _was_hit(runs: Sequence[Entry], deaths: Mapping[int, int]) -> bool:
    """Return whether the kill ended an attempt: a started one, or one that was only claimed (its number is missing here)."""
    return runs[0].attempt > 1 or (len(runs) > 1 and any(run.pid in deaths for run in runs))


def _is_lost(order: Order, runs: Sequence[Entry]) -> bool:
    return order.state == "open" or (order.state == "expired" and not any(run.result in ("restored", "expired") for run in runs))


def _overlap(runs: Sequence[Entry], deaths: Mapping[int, int]) -> bool:
    """Return whether an attempt began before an earlier one was over; a killed one was over when its process was dead."""
    over = -math.inf
    for run in runs:
        if run.started_at < over:
            return True
        over = max(over, run.ended_at if run.ended_at is not None else deaths.get(run.pid, math.inf))
    return False


def _wrong_stock(evidence: Evidence) -> list[int]:
    """Return the products whose stock is not what was delivered and not sold."""
    sold: dict[int, int] = defaultdict(int)
    for order in evidence.orders:
        if order.state == "paid":
            sold[order.product] += order.quantity
    return [product.id for product in evidence.products if product.stock != product.delivered - sold[product.id]]


def _count(items: Iterable[T], key: Callable[[T], str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for item in items:
        counts[key(item)] += 1
    return counts


# ---- showing ----


def percentile(ordered: Sequence[int], percent: float) -> int:
    """Return the smallest value that this many per cent do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def duration(micros: float) -> str:
    if abs(micros) >= SECOND:
        return f"{micros / SECOND:.2f} s"
    return f"{micros / 1_000:.1f} ms" if abs(micros) < 100_000 else f"{micros / 1_000:.0f} ms"


def print_report(console: Console, report: Report, evidence: Evidence) -> None:
    """Print the findings, the lateness as numbers and as a histogram, and a timeline."""
    width = min(console.width, WIDEST)
    with console.capture() as captured:
        for part in (_findings(report), _lateness(report), _histogram(report, width), _timeline(report, evidence, width)):
            console.print()
            console.print(part, width=width)
    # rich pads lines with blanks, which nobody wants in a file
    lines = captured.get().splitlines()
    console.file.write("\n".join(lines if console.is_terminal else [line.rstrip() for line in lines]) + "\n\n")


def _findings(report: Report) -> Group:
    table = Table.grid(padding=(0, 2), pad_edge=True)
    table.add_column(width=28, no_wrap=True)
    table.add_column(justify="right", width=7)
    table.add_column()
    for name, number, remark in (
        ("orders placed", report.placed, "with their expiry in one transaction"),
        ("paid, expiry cancelled", report.cancelled, "none started after the answer"),
        ("paid in the last moment", report.paid_late, "the handler ran and found them paid"),
        ("payments refused", report.refused, "they came after the order had expired"),
        ("expired", report.expired, f"{report.pieces:,} pieces went back into stock"),
        ("run twice", report.run_twice, "by the kill; harmless to the stock"),
    ):
        table.add_row(name, f"{number:,}", Text(remark, "dim"))
    table.add_row()
    for name, found in report.breaches.items():
        style = "bold red" if found else "green"
        remark = f"✗ broken, for example {', '.join(map(str, found[:5]))}" if found else f"✓ {PROMISES[name]}"
        table.add_row(Text(name, style), Text(f"{len(found):,}", style), Text(remark, style))
    return Group(Text("What the shop's tables and the handlers' journal say", "bold"), table)


def _lateness(report: Report) -> Group:
    percents = (50, 95, 99, 100)
    table = Table.grid(padding=(0, 2), pad_edge=True)
    table.add_column(width=28, no_wrap=True)
    for _ in range(1 + len(percents)):
        table.add_column(justify="right", width=7)
    table.add_row("", *(Text(title, "dim") for title in ("orders", "p50", "p95", "p99", "max")))
    for name, samples in (("not touched by the kill", report.lateness), ("hit by the kill", report.hit)):
        ordered = sorted(late for _, late in samples)
        numbers = [duration(percentile(ordered, percent)) for percent in percents] if ordered else ["–"] * len(percents)
        table.add_row(name, f"{len(ordered):,}", *numbers)
    remark = Text("  (those hit: from their due time to the start of the attempt that finished)", "dim")
    return Group(Text("Lateness: from the due time to the start of the handler", "bold"), table, remark)


def _histogram(report: Report, width: int) -> Group:
    """Draw how many starts were how late; the rows grow by factors."""
    normal, hit = [0] * len(BOUNDS), [0] * len(BOUNDS)
    for counts, samples in ((normal, report.lateness), (hit, report.hit)):
        for _, late in samples:
            counts[next(row for row, bound in enumerate(BOUNDS) if late < bound * 1_000)] += 1
    totals = [one + other for one, other in zip(normal, hit, strict=True)]
    filled = [row for row, total in enumerate(totals) if total] or [0]
    longest = width - 48
    lines = [Text("How many started how late", "bold")]
    for row in range(filled[0], filled[-1] + 1):
        bar = _bar(totals[row] / max(totals) * longest) if totals[row] else ""
        line = Text(f"{_row_name(row):>16}  ").append(bar, "red" if hit[row] > normal[row] else "green")
        line.append(f" {totals[row]:,}" if totals[row] else "")
        if hit[row]:
            line.append(f"  ({hit[row]:,} hit by the kill)" if normal[row] else "  (hit by the kill)", "red")
        lines.append(line)
    return Group(*lines)


def _row_name(row: int) -> str:
    def name(bound: float) -> str:
        return f"{bound:g} ms" if bound < 1_000 else f"{bound / 1_000:g} s"

    if row == 0:
        return f"under {name(BOUNDS[0])}"
    return f"over {name(BOUNDS[row - 1])}" if math.isinf(BOUNDS[row]) else f"{name(BOUNDS[row - 1])} – {name(BOUNDS[row])}"


def _bar(length: float) -> str:
    whole, part = divmod(round(length * 8), 8)
    return "█" * whole + (LEFT_EIGHTHS[part] if part else "") or "▏"


def _timeline(report: Report, evidence: Evidence, width: int) -> Group:
    """Draw what happened in each half-second (or more, to fit the width), one row per kind of event."""
    starts = sorted([*report.lateness, *report.hit])
    begin = min((order.placed_at for order in evidence.orders), default=0)
    end = max([begin, *(at for at, _ in starts)])
    columns = width - 11
    step = SECOND // 2 * math.ceil((end - begin + 1) / (columns * SECOND // 2))
    bins = (end - begin) // step + 1

    def per_bin(instants: Iterable[int | None]) -> list[float]:
        counts = [0.0] * bins
        for at in instants:
            if at is not None and 0 <= at - begin <= end - begin:
                counts[(at - begin) // step] += 1
        return counts

    worst = [0.0] * bins
    for at, late in starts:
        worst[(at - begin) // step] = max(worst[(at - begin) // step], math.log10(max(late, 1_000) / 1_000) + 0.2)
    rows = (
        ("placed", "cyan", per_bin(order.placed_at for order in evidence.orders)),
        ("paid", "blue", per_bin(order.paid_at for order in evidence.orders)),
        ("expired", "green", per_bin(order.expired_at for order in evidence.orders)),
        ("worst lateness", "yellow", worst),
    )
    lines = [Text(f"What happened in each {step / SECOND:g} s (the last row: worst lateness, logarithmic)", "bold")]
    lines += [Text(f"{name.removeprefix('worst '):>9}  ").append(_sparkline(values), colour) for name, colour, values in rows]
    marks = Text(" " * 11)
    for at in sorted(evidence.deaths.values()):
        column = 11 + min(bins - 1, max(0, (at - begin) // step))
        marks.append(" " * max(0, column - len(marks))).append(f"▲ SIGKILL at {(at - begin) / SECOND:.1f} s", "bold red")
    if evidence.deaths:
        lines.append(marks)
    return Group(*lines)


def _sparkline(values: Sequence[float]) -> str:
    highest = max(*values, 0.0, 0.0) or 1.0
    return "".join(EIGHTHS[math.ceil(value / highest * 8)] for value in values)
