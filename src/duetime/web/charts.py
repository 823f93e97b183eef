"""Charts as SVG with presentation attributes only, so that the strict policy needs no exception. Pure: figures in, text out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
from markupsafe import Markup

MOST_POINTS = 60  # of a small line


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sparkline(values: Sequence[float | None], *, width: int = 120, height: int = 28, kind: str = "accent", label: str = "") -> Markup:
    """Draw a small line without axes; None is a gap. Of many values neighbours are drawn as their mean: a page has dozens of them."""
    while len(values) > MOST_POINTS:
        values = [_mean(values[index : index + 2]) for index in range(0, len(values), 2)]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    step = width / max(1, len(values) - 1)
    points: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            points.append([])
        else:
            points[-1].append(f"{index * step:.1f},{height - 2 - (height - 4) * value / top:.1f}")
    lines = Markup("").join(Markup('<polyline points="{}"/>').format(" ".join(part)) for part in points if len(part) > 1)
    said = Markup(' role="img" aria-label="{}"').format(label) if label else Markup(' aria-hidden="true"')
    return Markup('<svg class="spark {}" viewBox="0 0 {} {}" preserveAspectRatio="none"{}>{}</svg>').format(
        kind, width, height, said, lines
    )


def bars(values: Sequence[float], *, width: int = 96, height: int = 20, kind: str = "failed", label: str = "") -> Markup:
    """Draw small bars, one per value."""
    top = max(values, default=0) or 1.0
    step = width / max(1, len(values))
    drawn = Markup("").join(
        Markup('<rect x="{}" y="{}" width="{}" height="{}"/>').format(
            f"{index * step:.1f}", f"{height - size:.1f}", f"{max(1.0, step - 1):.1f}", f"{size:.1f}"
        )
        for index, size in ((index, max(1.5, height * value / top) if value else 0.0) for index, value in enumerate(values))
        if size
    )
    said = Markup(' role="img" aria-label="{}"').format(label) if label else Markup(' aria-hidden="true"')
    return Markup('<svg class="bars {}" viewBox="0 0 {} {}" preserveAspectRatio="none"{}>{}</svg>').format(kind, width, height, said, drawn)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line, or one layer, of a chart: its name, its colour (a class of the style sheet), and a value per step; None is a gap."""

    name: str
    kind: str
    values: Sequence[float | None]
    dash: str = ""


WIDTH, HEIGHT = 640, 190
LEFT, RIGHT, TOP, BOTTOM = 4, 64, 10, 22
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def chart(
    lines: Sequence[Line],
    times: Sequence[str],
    *,
    title: str,
    write: Callable[[float], str],
    stacked: bool = False,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
) -> Markup:
    """Draw lines, or layers on top of each other, over equal steps of time. `write` writes a value, `mark` is a level with its name."""
    layers = _stacked(lines) if stacked else [list(line.values) for line in lines]
    known = [value for layer in layers for value in layer if value is not None]
    if not known or len(times) < 2:
        return Markup('<p class="soft nothing">No data yet in this range.</p>')
    top = max(known)
    if mark is not None and logarithmic:
        top = max(top, mark[0] * 1.5)
    bottom = 0.0
    if logarithmic:
        bottom = min((value for value in known if value > 0), default=0.001)
        bottom, top = 10 ** math.floor(math.log10(max(bottom, 1e-6))), 10 ** math.ceil(math.log10(max(top, 1e-5)))
    else:
        top = _round_up(top or 1.0)

    def y(value: float) -> float:
        if logarithmic:
            share = (math.log10(max(value, bottom)) - math.log10(bottom)) / (math.log10(top) - math.log10(bottom) or 1)
        else:
            share = value / top
        return TOP + _INNER_HEIGHT * (1 - min(1.0, share))

    def x(index: int) -> float:
        return LEFT + _INNER_WIDTH * index / (len(times) - 1)

    drawn: list[Markup] = [_grid(bottom, top, y, write, logarithmic=logarithmic)]
    if mark is not None and mark[0] <= top:
        drawn.append(
            Markup('<line class="mark" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="marked" x="{}" y="{}">{}</text>').format(
                LEFT, LEFT + _INNER_WIDTH, f"{y(mark[0]):.1f}", f"{y(mark[0]):.1f}", LEFT + 4, f"{y(mark[0]) - 4:.1f}", mark[1]
            )
        )
    for index, (line, layer) in reversed(list(enumerate(zip(lines, layers, strict=True)))):
        below = layers[index - 1] if stacked and index else None
        for start, end in _runs(layer):
            points = " ".join(f"{x(step):.1f},{y(layer[step] or 0):.1f}" for step in range(start, end))
            if stacked:
                base = " ".join(f"{x(step):.1f},{y((below[step] or 0) if below else 0):.1f}" for step in reversed(range(start, end)))
                drawn.append(Markup('<polygon class="{}" points="{} {}"/>').format(line.kind, points, base))
            drawn.append(Markup('<polyline class="{}" points="{}"{}/>').format(line.kind, points, _dashed(line.dash)))
    drawn.append(_names(lines, layers, y))
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        index = round(share * (len(times) - 1))
        drawn.append(Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(f"{x(index):.1f}", HEIGHT - 6, anchor, times[index]))
    read = [[line.name, *("–" if value is None else write(value) for value in line.values)] for line in lines]
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" tabindex="0" aria-label="{}" data-span="{} {}"').format(
        WIDTH, HEIGHT, f"{title}: {_said(lines, write)}", LEFT, LEFT + _INNER_WIDTH
    )
    values = Markup(' data-times="{}" data-lines="{}">').format("|".join(times), ";".join("|".join(each) for each in read))
    return head + values + Markup("").join(drawn) + Markup("</svg>")


def _dashed(dash: str) -> Markup:
    return Markup(' stroke-dasharray="{}"').format(dash) if dash else Markup("")


def _stacked(lines: Sequence[Line]) -> list[list[float | None]]:
    """Return the tops of layers that lie on each other. Where none has a value there is a gap."""
    size = max((len(line.values) for line in lines), default=0)
    sums: list[float | None] = [None] * size
    layers = []
    for line in lines:
        sums = [_sum(below, value) for below, value in zip(sums, line.values, strict=True)]
        layers.append(sums)
    return layers


def _sum(below: float | None, value: float | None) -> float | None:
    return below if value is None else (below or 0.0) + value


def _runs(values: Sequence[float | None]) -> Iterator[tuple[int, int]]:
    """Yield the stretches without a gap, as their first index and the one after their last."""
    start = None
    for index, value in enumerate([*values, None]):
        if value is not None and start is None:
            start = index
        elif value is None and start is not None:
            yield start, index
            start = None


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 …"""
    size: float = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value * 0.999)


def _grid(bottom: float, top: float, y: Callable[[float], float], write: Callable[[float], str], *, logarithmic: bool) -> Markup:
    levels = [bottom, math.sqrt(bottom * top), top] if logarithmic else [0.0, top / 2, top]
    return Markup("").join(
        Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}">{}</text>').format(
            LEFT, LEFT + _INNER_WIDTH, f"{y(level):.1f}", f"{y(level):.1f}", LEFT + _INNER_WIDTH + 6, f"{y(level) + 4:.1f}", write(level)
        )
        for level in levels
    )


def _names(lines: Sequence[Line], layers: Sequence[Sequence[float | None]], y: Callable[[float], float]) -> Markup:
    """Mark the present value of each line."""
    dots = []
    for line, layer in zip(lines, layers, strict=True):
        last = next((value for value in reversed(layer) if value is not None), None)
        if last is not None and layer[-1] is not None:
            dots.append(Markup('<circle class="{}" cx="{}" cy="{}" r="2.5"/>').format(line.kind, LEFT + _INNER_WIDTH, f"{y(last):.1f}"))
    return Markup("").join(dots)


def _said(lines: Sequence[Line], write: Callable[[float], str]) -> str:
    """Say in words what a chart shows."""
    parts = []
    for line in lines:
        known = [value for value in line.values if value is not None]
        if known:
            parts.append(f"{line.name} now {write(known[-1])}, highest {write(max(known))}")
    return "; ".join(parts)
