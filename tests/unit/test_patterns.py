"""Patterns that are matched in linear time say the same as Python's `re`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidValue
from duetime.model.patterns import Steps, TooLong, read_pattern

atoms = st.sampled_from(
    ["a", "b", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "[ab]", "[^a]", "[a-c1]", r"[^\d_]", "\n", "^", "$", r"\A", r"\Z"]
)
repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??"])
patterns = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")
        | st.tuples(inner, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    ),
    max_leaves=8,
)


@given(pattern=patterns, text=st.text("ab1_ \nc", max_size=8))
def test_a_pattern_matches_where_python_says_so(pattern: str, text: str) -> None:
    assert read_pattern(pattern).search(text, Steps(100_000)) is (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^[a-z0-9]+(-[a-z0-9]+)*$", "a-slug-of-words"),
        (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", "anna@shop.example"),
        (r"^\d{4}-\d{2}-\d{2}$", "2030-01-31"),
        (r"^(?:https?|ftp)://\S+$", "https://shop.example/orders?id=7"),
        (r"ß|é{2}", "caféé"),
        ("", ""),
    ],
)
def test_usual_patterns_match(pattern: str, text: str) -> None:
    assert read_pattern(pattern).search(text, Steps(10_000))
    assert read_pattern(pattern).search(text + "\0 ", Steps(10_000)) is (re.search(pattern, text + "\0 ") is not None)


def test_the_steps_grow_with_the_text_only() -> None:
    pattern = read_pattern("(a+)+$")
    for length in (1_000, 100_000):
        steps = Steps(1_000_000)
        assert not pattern.search("a" * length + "b", steps)
        assert 1_000_000 - steps.left < 2 * length + 100


def test_a_search_ends_after_so_many_steps() -> None:
    with pytest.raises(TooLong):
        read_pattern("^a*b").search("a" * 1_000, Steps(500))


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", r"\b", "(?i:a)", "a++", "(", "a{2}{2000}{2000}", "(" * 600 + ")" * 600])
def test_what_cannot_be_matched_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue, match="pattern"):
        read_pattern(pattern)
