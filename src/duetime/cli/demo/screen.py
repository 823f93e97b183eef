"""What `duetime demo` shows while it runs: the story line by line, and the progress beneath it."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from duetime.cli.demo.report import WIDEST, duration, percentile, read_journal
from duetime.cli.demo.shop import JOURNAL, Entry

PLAIN_LINE_EVERY = 2.0  # seconds, where there is no terminal to draw on


class Screen:
    """Follows the journal of what runs and shows it: live on a terminal, otherwise as a line now and then."""

    def __init__(self, console: Console, orders: int) -> None:
        self._console = console
        self._orders = orders
        self._began = time.monotonic()
        self._offset = 0
        self._plain_at = PLAIN_LINE_EVERY
        self._live: Live | None = None
        self._said: set[str] = set()
        self._running: dict[tuple[str, int], Entry] = {}
        self._expired: set[int] = set()
        self._lateness: list[int] = []  # of first attempts, sorted
        self.placed = 0
        self.paid = 0
        self.workers: list[str] = []

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress as long as the block lasts."""
        self._began = time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
            self.update()
        self._live = None

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    # ---- the story ----

    def print(self, text: str | Text) -> None:
        """Print a paragraph: wrapped on a terminal, a single line elsewhere."""
        if self._console.is_terminal:
            self._console.print(text, width=min(self._console.width, WIDEST))
        else:
            self._console.print(text, soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """Print one step of the story, with its time."""
        if not self._console.is_terminal:
            self.print(f"{self.elapsed():>5.1f} s  {text}")
            return
        line = Table.grid(padding=(0, 2))
        line.add_column(justify="right", style="dim", width=6)
        line.add_column(ratio=1)
        line.add_row(f"{self.elapsed():.1f} s", Text(text, style))
        self._console.print(line, width=min(self._console.width, WIDEST))

    def say_once(self, text: str, topic: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            self.say(text)

    # ---- following the journal ----

    def look(self) -> None:
        """Read what the handlers have written since the last call."""
        entries, self._offset = read_journal(JOURNAL, self._offset)
        for entry in entries:
            if entry.ended_at is None:
                self._running[entry.task, entry.attempt] = entry
                if entry.attempt == 1:
                    insort(self._lateness, entry.started_at - entry.due_at)
            else:
                self._running.pop((entry.task, entry.attempt), None)
                if entry.result in ("restored", "expired"):
                    self._expired.add(entry.order)
        if entries:
            self.say_once("The first unpaid orders are due. A worker claims each at its instant; the handler restores the stock.", "due")
        if any(entry.attempt > 1 for entry in entries):
            self.say_once("Duetime has taken back what died with worker 1 and runs it again: a new attempt of the same task.", "again")

    def running(self, pid: int) -> int:
        """Count the attempts that have started in a process and not ended."""
        return sum(entry.pid == pid for entry in self._running.values())

    def forget(self, pid: int) -> int:
        """Forget the attempts of a killed process, and return how many there were."""
        dead = [key for key, entry in self._running.items() if entry.pid == pid]
        for key in dead:
            del self._running[key]
        return len(dead)

    @property
    def idle(self) -> bool:
        return not self._running

    # ---- drawing ----

    def update(self) -> None:
        self.look()
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        elif not self._console.is_terminal and self.elapsed() >= self._plain_at:
            self._plain_at = self.elapsed() + PLAIN_LINE_EVERY
            counts = f"placed {self.placed:>6,}   paid {self.paid:>6,}   expired {len(self._expired):>6,}   running {len(self._running):>3}"
            self.print(f"{self.elapsed():>5.1f} s  {counts}   {self._late()}")

    def _late(self) -> str:
        if not self._lateness:
            return "lateness –"
        quantiles = (f"p{percent} {duration(percentile(self._lateness, percent))}" for percent in (50, 99))
        return f"lateness {'  '.join(quantiles)}"

    def _picture(self) -> RenderableType:
        bars = Table.grid(padding=(0, 2), expand=True)
        for column in ({"width": 8}, {"ratio": 1}, {"justify": "right", "width": 15}):
            bars.add_column(**column)
        for name, number, colour in (
            ("placed", self.placed, "cyan"),
            ("paid", self.paid, "blue"),
            ("expired", len(self._expired), "green"),
        ):
            share = f"{number:,} / {self._orders:,}" if name == "placed" else f"{number:,}"
            bars.add_row(name, ProgressBar(self._orders, number, complete_style=colour, finished_style=colour), share)
        workers = Text("workers   ").append("  ".join(self.workers), "dim")
        now = Text(f"running   {len(self._running):<4} {self._late()}")
        return Constrain(Group(Text(), bars, now, workers), WIDEST)
