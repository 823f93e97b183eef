"""Splits the body of a batch into its items, without a stretch that would hold the event loop.

A body of 64 MB takes a second to decode in one call, and one of empty lines or objects makes millions of items. So a large body is walked
through window by window, and is refused at the first item too many.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from duetime.api.call import MOST_CONTAINERS, decode, too_nested
from duetime.api.problems import Refusal
from duetime.runtime.slices import Slices
from duetime.wire.fields import MOST_ITEMS
from duetime.wire.problem import MALFORMED, TOO_LARGE

AT_ONCE: Final = 4_000_000  # bytes of an array that are split in one call, if it has few parts: that takes a few milliseconds
WINDOW: Final = 65_536

_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_BLANK = re.compile(rb"[ \t\r\n]*+")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)  # a whole text, or what else matters to the structure of JSON
_REST_OF_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE, _COMMA, _END = b'",]'
_OPENING = frozenset(b"[{")


async def items_of(data: bytes, *, lines: bool, largest: int) -> AsyncIterator[bytes | msgspec.Raw]:
    """Yield the items of a batch as JSON. Raises Refusal for a broken array, too many items, and items of more than `largest` bytes."""
    found: Iterable[bytes | msgspec.Raw | None]
    if lines:
        found = _lines(data)
    elif _has_few_parts(data):
        raw: list[msgspec.Raw] = decode(_raw_items, data)
        found = raw
    else:
        found = _items(data, largest)
    slices, number = Slices(), 0
    for item in found:
        await slices.pause()
        if item is None:
            continue
        number += 1
        if number > MOST_ITEMS:
            raise Refusal(TOO_LARGE, f"a batch has at most {MOST_ITEMS:,} tasks, got more; send several")
        if isinstance(item, bytes) and len(item) > largest:
            raise _too_large(largest)
        yield item


def _has_few_parts(data: bytes) -> bool:
    return len(data) <= AT_ONCE and sum(map(data.count, (b",", b"[", b"{"))) <= MOST_CONTAINERS


def _lines(data: bytes) -> Iterator[bytes | None]:
    """Yield the lines that are not blank, and None after each stretch of blanks."""
    at = 0
    while at < len(data):
        blank = _BLANK.match(data, at, at + WINDOW)
        if blank is not None and blank.end() > at:
            at = blank.end()
            yield None
            continue
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if line := data[at:end].strip():
            yield line
        at = end + 1


def _items(data: bytes, largest: int) -> Iterator[bytes | None]:
    """Yield the items of an array, and None after each window."""
    start = depth = containers = at = 0
    quoted = False
    while at < len(data):
        end = min(at + WINDOW, len(data))
        if depth and end - start > largest + WINDOW:
            raise _too_large(largest)
        if quoted:
            rest = _REST_OF_TEXT.match(data, at, end)
            assert rest is not None
            at = rest.end()
            if at < end:
                quoted = data[at] != _QUOTE
                at += 2 if quoted else 1  # a backslash at the end of the window belongs to the letter after it
            yield None
            continue
        for token in _TOKEN.finditer(data, at, end):
            letter = data[token.start()]
            if letter == _QUOTE:
                if token.end() == token.start() + 1:  # a text that does not end in this window
                    quoted, at = True, token.end()
                    break
            elif letter == _COMMA:
                if depth == 1:
                    yield _item(data, start, token.start())
                    start, containers = token.end(), 0
            elif letter in _OPENING:
                if not depth:
                    if letter != ord("[") or data[: token.start()].strip():
                        raise _malformed("expected an array of tasks")
                    start = token.end()
                depth, containers = depth + 1, containers + 1
                if containers > MOST_CONTAINERS:
                    raise too_nested()
            else:
                depth -= 1
                if depth <= 0:
                    if letter != _END or depth < 0 or _BLANK.fullmatch(data, token.end()) is None:
                        raise _malformed("the array is not closed as it was opened, or something follows it")
                    if data[start : token.start()].strip() or data[:start].strip() != b"[":
                        yield _item(data, start, token.start())
                    return
        else:
            at = end
        yield None
    raise _malformed("the array is not closed")


def _item(data: bytes, start: int, end: int) -> bytes:
    if item := data[start:end].strip():
        return item
    raise _malformed("an item of the array is empty")


def _malformed(what: str) -> Refusal:
    return Refusal(MALFORMED, f"the body is not JSON in UTF-8: {what}")


def _too_large(largest: int) -> Refusal:
    return Refusal(TOO_LARGE, f"an item of the batch has more than {largest:,} bytes; store the data elsewhere and pass its address")
