"""Charts show what the series has: points where values are, gaps where none are."""

from __future__ import annotations

import re

from duetime.web.charts import HEIGHT, Line, chart, sparkline


def points(drawing: str, kind: str) -> list[list[tuple[float, float]]]:
    found = re.findall(rf'<polyline class="{kind}" points="([^"]*)"', drawing)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in each.split())] for each in found]


def draw(*lines: Line, stacked: bool = False) -> str:
    size = len(lines[0].values)
    return str(chart(lines, [str(step) for step in range(size)], title="t", write=lambda value: f"{value:g}", stacked=stacked))


def test_heights_are_in_proportion_to_values() -> None:
    [line] = points(draw(Line(name="a", kind="running", values=[0, 5, 10])), "running")
    bottom, middle, top = (y for _, y in line)
    assert bottom > middle > top
    assert abs((bottom - middle) - (middle - top)) < 0.2


def test_a_gap_is_not_drawn_over() -> None:
    parts = points(draw(Line(name="a", kind="running", values=[1, 2, None, None, 3, 4])), "running")
    assert [len(part) for part in parts] == [2, 2]


def test_layers_lie_on_each_other() -> None:
    drawing = draw(Line(name="a", kind="succeeded", values=[4, 4]), Line(name="b", kind="failed", values=[6, 6]), stacked=True)
    [[(_, below), _]], [[(_, above), _]] = points(drawing, "succeeded"), points(drawing, "failed")
    zero = max(float(y) for y in re.findall(r'class="grid"[^>]* y1="([\d.]+)"', drawing))
    assert abs((zero - above) * 0.4 - (zero - below)) < 0.3
    assert zero < HEIGHT


def test_it_says_in_words_what_it_shows() -> None:
    assert "a now 3, highest 9" in draw(Line(name="a", kind="running", values=[1, 9, 3]))


def test_without_values_nothing_is_drawn() -> None:
    assert "No data yet" in draw(Line(name="a", kind="running", values=[None, None]))
    assert sparkline([None, 1.0]) == ""


def test_a_small_line_of_many_values_has_few_points_and_keeps_its_gaps() -> None:
    values: list[float | None] = [*([1.0] * 40), *([None] * 20), *([3.0] * 40)]
    stretches = re.findall(r'points="([^"]*)"', str(sparkline(values)))
    assert [len(each.split()) for each in stretches] == [20, 20]
    assert stretches[0].split()[0].endswith(",18.0"), "a third of the height"
