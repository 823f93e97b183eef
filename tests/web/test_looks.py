"""Colours that can be read, and states that can be told apart without them: computed from the style sheet itself."""

from __future__ import annotations

import re

import pytest

from duetime.model.task import State
from duetime.web.assets import assets
from duetime.web.marks import GLYPHS, badge

STYLE = assets().files["app.css"].data.decode()
SCHEMES = ("light", "dark")
TINTS = {"light": 0.12, "dark": 0.18}
Colour = tuple[int, int, int]


def colour(name: str, scheme: str) -> Colour:
    found = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", STYLE)
    assert found is not None, f"there is no colour {name}"
    text = found[1 + SCHEMES.index(scheme)]
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def luminance(parts: Colour) -> float:
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(one: Colour, share: float, other: Colour) -> Colour:
    red, green, blue = (round(share * a + (1 - share) * b) for a, b in zip(one, other, strict=True))
    return red, green, blue


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_is_readable_on_pages_and_cards(scheme: str) -> None:
    for ground in ("card", "page", "sunk"):
        assert contrast(colour("text", scheme), colour(ground, scheme)) >= 12
        assert contrast(colour("soft", scheme), colour(ground, scheme)) >= 4.5
        assert contrast(colour("accent", scheme), colour(ground, scheme)) >= 4.5
    assert contrast(colour("edge", scheme), colour("card", scheme)) >= 3, "borders of controls"
    assert contrast(colour("on-accent", scheme), colour("accent", scheme)) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", State)
def test_a_badge_is_readable_on_its_tint(state: State, scheme: str) -> None:
    own, card = colour(state.value, scheme), colour("card", scheme)
    assert contrast(own, card) >= 4.5
    assert contrast(own, mixed(own, TINTS[scheme], card)) >= 4.5


def test_each_state_has_its_own_shape_and_word() -> None:
    shapes = {state: GLYPHS[state.value] for state in State}
    assert len(set(shapes.values())) == len(State)
    for state in State:
        assert f"{state.value}</span>" in badge(state.value)
    assert "retrying 3/8" in badge("pending", tries=3, allowed=8)
    assert "cancelling" in badge("running", cancelling=True)
    assert GLYPHS["retrying"] not in shapes.values()
    assert GLYPHS["cancelling"] not in shapes.values()


def test_the_first_load_is_small() -> None:
    assert sum(len(file.data) for file in assets().files.values()) < 60_000
    assert len(assets().files) <= 8
