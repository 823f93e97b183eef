"""An attempt's detail is a JSON object that always fits: what is too large is trimmed and says so."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.detail import MAX_DETAIL, TRIMMED, detail_of

facts = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(), max_size=2_000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=50), inner, max_size=4),
    max_leaves=12,
)


def read(detail: bytes | None) -> dict[str, Any]:
    assert detail is not None
    return msgspec.json.decode(detail, type=dict[str, Any])


def test_small_facts_are_kept_whole_and_those_that_are_none_are_left_out() -> None:
    assert read(detail_of({"status": 200, "proxy": None, "phases": {"dns": 0.001}})) == {
        "status": 200,
        "phases": {"dns": 0.001},
    }


def test_without_facts_there_is_no_detail() -> None:
    assert detail_of({}) is None
    assert detail_of({"proxy": None}) is None


def test_a_long_text_is_cut_before_anything_is_left_out() -> None:
    kept = read(detail_of({"status": 200, "location": "x" * 5_000}))
    assert (kept["status"], kept[TRIMMED], len(kept["location"])) == (200, True, 200)


def test_what_is_still_too_large_is_left_out_from_the_largest_on() -> None:
    kept = read(detail_of({"status": 200, "many": list(range(5_000)), "few": [1, 2]}))
    assert kept == {"status": 200, "few": [1, 2], TRIMMED: True}


@given(st.dictionaries(st.text(st.characters(), max_size=50), facts, max_size=20))
def test_any_facts_make_a_detail_that_fits(facts: dict[str, Any]) -> None:
    detail = detail_of(facts)
    if detail is not None:
        assert len(detail) <= MAX_DETAIL
        read(detail)
