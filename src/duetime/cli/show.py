"""What commands print: tables for people, JSON for programs, progress while they wait. `rich` is imported only when it is needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from duetime.model.wording import count as count
from duetime.model.wording import span as span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from duetime.model.task import ErrorInfo

# Practically no limit: what is piped into another program is neither cut nor wrapped.
_UNBOUNDED = 10_000
_GAP = 2
_CUT_TO = 14  # characters to which a spare column may be cut before it is left out
SHOW_AFTER = 0.4
_NOTHING = ("–", "0")

COLOURS = {
    "blocked": "magenta",
    "pending": "cyan",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "dropped": "bright_black",
    "expired": "bright_black",
}


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    `whole`: never cut, because people copy from it. `spare`: left out when it is empty or the terminal is too narrow, the
    highest number first; 0 always stays.
    """

    title: str
    whole: bool = False
    right: bool = False
    spare: int = 0


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows as a table that fits the terminal. Without a terminal print everything, one full line per row."""
    texts = [[printable(cell) for cell in row] for row in rows]
    if not texts:
        note(empty)
    elif sys.stdout.isatty():
        _draw(columns, texts)
    else:
        _print_lines(columns, texts)


def _print_lines(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> None:
    """Print a table for another program: plain, and twenty times as fast as with rich."""
    lines = [[column.title for column in columns], *texts]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width) for column, cell, width in zip(columns, line, widths, strict=True)
        )
        click.echo((" " * _GAP).join(cells).rstrip())


def _draw(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> None:
    console = _console()
    _print(_table(columns, texts, console.width), console)


def _table(columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    indexes = _fitting(columns, texts, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in indexes:
        column = columns[index]
        # rich narrows columns by wrapping; their cells are cut instead, so that a row stays one line
        table.add_column(column.title, no_wrap=column.whole, overflow="ellipsis", justify="right" if column.right else "left")
    for row in texts:
        cells = (row[index] for index in indexes)
        table.add_row(*(Text(cell, style=COLOURS.get(cell, ""), no_wrap=True, overflow="ellipsis") for cell in cells))
    return table


class Frame(msgspec.Struct, frozen=True):
    """What a screen shows at a time: a line of text, and a table below it, or what to say if that is empty."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    empty: str


@contextmanager
def screen() -> Iterator[Callable[[Frame], None]]:
    """Take the whole terminal as long as the block lasts; yield a function that shows a frame in place of the last."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = _console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(frame: Frame) -> None:
            texts = [[printable(cell) for cell in row] for row in frame.rows]
            body = _table(frame.columns, texts[: max(1, console.height - 4)], console.width) if texts else Text(frame.empty, "dim")
            live.update(Group(Text(frame.title, "bold"), "", body), refresh=True)

        yield draw


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], available: int) -> list[int]:
    """Return the indexes of the columns that fit into a terminal of this width."""
    from rich.cells import cell_len

    def width(index: int) -> int:
        needed = max(cell_len(columns[index].title), *(cell_len(row[index]) for row in rows))
        return min(needed, _CUT_TO) if columns[index].spare and not columns[index].whole else needed

    indexes = [index for index, column in enumerate(columns) if not column.spare or any(row[index] not in _NOTHING for row in rows)]
    while sum(width(index) + _GAP for index in indexes) - _GAP > available:
        spare = max(indexes, key=lambda index: columns[index].spare)
        if not columns[spare].spare:
            break
        indexes.remove(spare)
    return indexes


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line, without the empty ones."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None and value != "":
            table.add_row(name, Text(printable(value), style=COLOURS.get(str(value), "")))
    _print(table, _console())


def _print(renderable: Any, console: Console) -> None:
    with console.capture() as captured:
        console.print(renderable)
    lines = captured.get().splitlines()
    click.echo("\n".join(lines if sys.stdout.isatty() else [line.rstrip() for line in lines]), color=sys.stdout.isatty() or None)


def _console() -> Console:
    from rich.console import Console

    on_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout, highlight=False, markup=False, no_color=None if on_terminal else True, width=None if on_terminal else _UNBOUNDED
    )


def printable(value: object) -> str:
    """Return a value as text on one line, with control characters escaped."""
    text = "–" if value is None or value == "" else str(value)
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_traceback(error: ErrorInfo) -> None:
    """Print a traceback, or what is known instead, with control characters escaped."""
    for line in (error.traceback or str(error)).rstrip().split("\n"):
        click.echo(printable(line) if line else "")


# ---- JSON ----


def print_json(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_list(items: Iterable[object]) -> None:
    """Print a list in the form that all lists have: `items` and `next`."""
    _begin_list()
    first = True
    for item in items:
        _add_to_list(item, first)
        first = False
    _end_list(None)


async def stream_json_list(items: AsyncIterator[object], cursor: Callable[[], str | None]) -> None:
    """Print a list as it arrives, one item per line. However long it is, only one page is in memory."""
    _begin_list()
    first = True
    async for item in items:
        _add_to_list(item, first)
        first = False
    _end_list(cursor())


def _begin_list() -> None:
    click.echo('{"items": [', nl=False)


def _add_to_list(item: object, first: bool) -> None:
    click.echo(("\n" if first else ",\n") + msgspec.json.encode(item).decode(), nl=False)


def _end_list(cursor: str | None) -> None:
    click.echo(f'\n], "next": {msgspec.json.encode(cursor).decode()}}}')


# ---- words ----


def note(message: str) -> None:
    """Print a remark on stderr: it is not part of the result."""
    click.echo(message, err=True)


def relative(when: datetime, now: datetime) -> str:
    """Format an instant relative to now: `in 5.0 s`, `2 h 3 min ago`."""
    return f"in {span(when - now)}" if when > now else f"{span(now - when)} ago"


def absolute(when: datetime | None) -> str | None:
    return None if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


# ---- waiting ----


class _Live(Protocol):
    """Something that draws on the terminal until it is stopped."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@contextmanager
def _delayed(live: _Live) -> Iterator[None]:
    """Start drawing only after a moment, so that quick commands show nothing."""
    timer = threading.Timer(SHOW_AFTER, live.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        live.stop()


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something is going on; yield a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    status = Console(stderr=True).status(Text(printable(text)))
    with _delayed(status):
        yield lambda text: status.update(Text(printable(text)))


@contextmanager
def bar(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yield a function that advances it. Without a total it only shows activity."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counted = [] if total is None else [MofNCompleteColumn()]
    name = TextColumn("{task.description}", markup=False)
    progress = Progress(name, BarColumn(), *counted, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = progress.add_task(printable(text), total=total)
    with _delayed(progress):
        yield lambda steps: progress.advance(task, steps)
