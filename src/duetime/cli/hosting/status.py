"""What a process prints about itself on stderr after SIGUSR1."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta

from duetime.cli import show


def write_status(headline: str, titles: Sequence[str], rows: Iterable[Sequence[object]], remarks: Iterable[str] = ()) -> None:
    """Write a small table in one call, so that lines of other processes do not get in between."""
    lines = [list(titles), *([show.printable(cell) for cell in row] for row in rows)] if titles else []
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    text = "\n".join((headline, *(f"  {line}" for line in (*table, *remarks)))) + "\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


def span(seconds: float) -> str:
    return show.span(timedelta(seconds=seconds))


def ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{span(seconds)} ago"
