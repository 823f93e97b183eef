"""Splitting the body of a batch says the same as decoding it at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.api import batches
from duetime.api.batches import items_of
from duetime.api.problems import Refusal

plain = st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\[]{},\n é', max_size=6)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", '"', ",]"]), inner, max_size=2), max_leaves=8
)
raw_items = msgspec.json.Decoder(list[msgspec.Raw])


def split(data: bytes, *, lines: bool = False, largest: int = 1_000) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [bytes(item).strip() async for item in items_of(data, lines=lines, largest=largest)]

    return asyncio.run(collect())


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Any:
    """Let every text and every escape of these short bodies cross the border of a window at some position."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "AT_ONCE", 0)
        patch.setattr(batches, "WINDOW", 5)
        yield


@given(items=st.lists(values, max_size=5), indent=st.sampled_from([0, 1, 2]))
def test_an_array_has_the_items_that_a_decoder_finds(items: list[Any], indent: int) -> None:
    data = msgspec.json.format(msgspec.json.encode(items), indent=indent) if indent else msgspec.json.encode(items)
    assert split(b" " + data + b"\n") == [bytes(each) for each in raw_items.decode(data)]


@given(items=st.lists(values, max_size=4), at=st.integers(0, 200), put=st.sampled_from([b"", b",", b"]", b"[", b"}", b'"', b"\\", b"x"]))
def test_a_broken_array_is_refused_or_has_a_broken_item(items: list[Any], at: int, put: bytes) -> None:
    whole = msgspec.json.encode(items)
    data = whole[:at] + put + whole[at + 1 :]
    try:
        expected = [bytes(each).strip() for each in raw_items.decode(data)]
    except msgspec.MsgspecError:
        try:
            for each in split(data):
                msgspec.json.decode(each)
        except (Refusal, msgspec.MsgspecError, UnicodeDecodeError):
            return
        pytest.fail(f"{data!r} was split into whole items")
    assert split(data) == expected


@given(items=st.lists(values, max_size=5), blanks=st.sampled_from([b"\n", b"\n\n \n", b"\r\n", b"\n\t\n" * 9]))
def test_lines_are_those_that_are_not_blank(items: list[Any], blanks: bytes) -> None:
    lines = [msgspec.json.encode(each) for each in items]
    assert split(blanks.join(lines) + blanks, lines=True) == lines
    assert split(blanks + blanks.join(lines), lines=True) == lines


@pytest.mark.parametrize("data", [b"[" + b'"' + b"x" * 2_000 + b'"]', b"[[" + b"1," * 1_000 + b"1]]", b"[" + b" " * 2_000 + b"1]"])
def test_an_item_has_a_bounded_size(data: bytes) -> None:
    with pytest.raises(Refusal, match="more than 100 bytes"):
        split(data, largest=100)
