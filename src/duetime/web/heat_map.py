"""The forecast as a heat map: a column per hour of local time, a cell per quarter of an hour, darker the more tasks begin in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import pairwise

import msgspec
from markupsafe import Markup

from duetime.clock import Instant, to_datetime
from duetime.model.forecast import QUARTER, Quarter
from duetime.web.words import number

LEVELS = 5
LABELLED = 3  # every third hour has its name below it
CELL_HEIGHT = 26
HEIGHT = 4 * CELL_HEIGHT + 22


class Cell(msgspec.Struct, frozen=True):
    """A quarter of an hour that the forecast covers. `row` is its quarter within the hour of local time."""

    at: datetime
    row: int
    runs: int


class Column(msgspec.Struct, frozen=True):
    """An hour of local time. At both ends of the forecast, and where clocks change by half an hour, it is cut; `at` is when it begins."""

    at: datetime
    cells: Sequence[Cell]

    @property
    def runs(self) -> int:
        return sum(cell.runs for cell in self.cells)

    @property
    def by_row(self) -> Sequence[Cell | None]:
        found: dict[int, Cell] = {cell.row: cell for cell in self.cells}
        return [found.get(row) for row in range(4)]


class Level(msgspec.Struct, frozen=True):
    """A shade, and the numbers of tasks that it stands for."""

    shade: int
    least: int
    most: int


def columns(quarters: Sequence[Quarter], start_at: Instant, until_at: Instant, tz: tzinfo) -> list[Column]:
    """Return the hours from one instant until another. An hour that occurs twice has two columns, one that is left out has none.

    Every zone is off UTC by whole quarters of an hour, so each quarter of the forecast is one of local time.
    """
    runs: Mapping[Instant, int] = {each.at: each.runs for each in quarters}
    found: dict[tuple[object, ...], list[Cell]] = {}
    for at in range(start_at // QUARTER * QUARTER, until_at + 1, QUARTER):
        local = to_datetime(at).astimezone(tz)
        found.setdefault((local.date(), local.hour, local.fold), []).append(Cell(local, local.minute // 15, runs.get(at, 0)))
    return [Column(cells[0].at, cells) for cells in found.values()]


def levels(hours: Sequence[Column]) -> list[Level]:
    """Return the shades in use: equal steps from the lowest number to the highest, fewer where there are fewer numbers.

    What fires all the time would otherwise make every cell dark. The first and the last quarter are cut, so they do not count.
    """
    cells = [cell.runs for column in hours for cell in column.cells]
    most = max(cells, default=0)
    least = min((runs for runs in cells[1:-1] if runs), default=most)
    used = min(LEVELS, most - least + 1) if most else 0
    tops = [least - 1 + (most - least + 1) * step // used for step in range(1, used + 1)]
    return [Level(LEVELS - used + step, below + 1, top) for step, (below, top) in enumerate(pairwise([0, *tops]), 1)]


def shade(runs: int, shades: Sequence[Level]) -> int:
    """Return the shade of a number of tasks, 0 for none."""
    return next((level.shade for level in shades if level.least <= runs <= level.most), 0)


def heat_map(hours: Sequence[Column]) -> Markup:
    """Draw the cells, with the names of quarters at the left and of hours below.

    Cells are as wide as there is space for, in per cent, and as high as letters need; so the text has its usual size on a phone too.
    """
    drawn = Markup("").join([*_rows(), *_cells(hours, levels(hours)), *_labels(hours)])
    return Markup('<svg class="heat" height="{}" role="img" aria-label="{}">{}</svg>').format(HEIGHT, _said(hours), drawn)


def _rows() -> Iterator[Markup]:
    for row in range(4):
        yield Markup('<text x="-6" y="{}" text-anchor="end">:{:02}</text>').format(row * CELL_HEIGHT + 17, row * 15)


def _cells(hours: Sequence[Column], shades: Sequence[Level]) -> Iterator[Markup]:
    width = 100 / len(hours)
    for index, column in enumerate(hours):
        for cell in column.cells:
            yield Markup('<rect class="s{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"><title>{}</title></rect>').format(
                shade(cell.runs, shades),
                index * width,
                cell.row * CELL_HEIGHT,
                width,
                CELL_HEIGHT,
                f"{cell.at:%a %H:%M}: {number(cell.runs)}",
            )


def _labels(hours: Sequence[Column]) -> Iterator[Markup]:
    for index, column in enumerate(hours):
        if column.at.hour % LABELLED == 0 and index < len(hours) - 2:
            new_day = column.at.hour == 0
            yield Markup('<text class="{}" x="{:.3f}%" y="{}">{}</text>').format(
                "day" if new_day else "hour odd" if column.at.hour % (2 * LABELLED) else "hour",
                index * 100 / len(hours),
                HEIGHT - 4,
                f"{column.at:%a %d}" if new_day else f"{column.at:%H}:00",
            )


def _said(hours: Sequence[Column]) -> str:
    cells = [cell for column in hours for cell in column.cells]
    highest = max(cells, key=lambda cell: cell.runs)
    return (
        f"Planned tasks by quarter of an hour: {number(sum(cell.runs for cell in cells))} in 24 hours, "
        f"most at {highest.at:%a %H:%M} with {number(highest.runs)}"
    )
