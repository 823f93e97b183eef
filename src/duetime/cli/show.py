"""Showing things: tables for people, JSON for programs, progress for those who wait. `rich` is imported only when a table is drawn."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console

# As good as no limit: what is piped into another program is neither cut nor folded.
_UNBOUNDED = 10_000

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
    """A column of a table; `whole` ones are never cut, because people copy from them."""

    title: str
    whole: bool = False
    right: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows as a table that fits the terminal; where there is none, one full line per row."""
    from rich.table import Table
    from rich.text import Text

    filled = [[Text(printable(cell), style=COLOURS.get(str(cell), "")) for cell in row] for row in rows]
    if not filled:
        note(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ignore" if column.whole else "ellipsis",
            min_width=36 if column.whole else None,
            justify="right" if column.right else "left",
        )
    for cells in filled:
        table.add_row(*cells)
    _print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other, without those that are empty."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None and value != "":
            table.add_row(name, Text(printable(value), style=COLOURS.get(str(value), "")))
    _print(table)


def _print(renderable: Any) -> None:
    console = _console()
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
    """Give a value as text without what could play tricks with a terminal, or end a line."""
    text = "–" if value is None or value == "" else str(value)
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


# ---- JSON ----


def print_json(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_list(items: Iterable[object]) -> None:
    """Print a whole list in the shape that all lists have."""
    _begin_list()
    first = True
    for item in items:
        _add_to_list(item, first)
        first = False
    _end_list(None)


async def stream_json_list(items: AsyncIterator[object], cursor: Callable[[], str | None]) -> None:
    """Print a list as it arrives, one item per line: however long it is, no more than a page is held in memory."""
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
    """Tell people something that is not part of the answer."""
    click.echo(message, err=True)


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def span(length: timedelta) -> str:
    """Give a length of time in the one or two units that matter."""
    seconds = abs(length.total_seconds())
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3_600), int(seconds // 86_400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{days:,} days"


def relative(when: datetime, now: datetime) -> str:
    """Give an instant as people speak of it."""
    return f"in {span(when - now)}" if when > now else f"{span(now - when)} ago"


def absolute(when: datetime | None) -> str | None:
    return None if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


# ---- waiting ----


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something goes on; give a function that changes the words."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, highlight=False).status(printable(text)) as status:
        yield lambda text: status.update(printable(text))
