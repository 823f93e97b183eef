"""The largest batches: others are served meanwhile, and what is too much is refused before it is read."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duetime.api.batches import items_of
from duetime.api.call import JSON, MOST_CONTAINERS, NDJSON
from duetime.api.problems import Refusal
from duetime.wire.fields import MOST_ITEMS
from tests.api.conftest import Client
from tests.attacks.meanwhile import SMALL, largest_share

TASK = b'{"handler": "anything", "payload": {"value": 1}}'
SMALL_LISTS = b'{"handler": "anything", "payload": {"value": [' + b"[]," * MOST_CONTAINERS + b"[]]}}"


async def send(http: Client, data: bytes, media: str = JSON, status: int = 200) -> Any:
    return await http("POST", "/v1/tasks/batch", data=io.BytesIO(data), headers={"content-type": media}, status=status)


async def stored(http: Client) -> int:
    return len((await http("GET", "/v1/tasks")).json["items"])


async def iterations_during(data: bytes, *, lines: bool) -> int:
    """Split a body and return how many iterations of the loop others had meanwhile."""
    loop, number, done = asyncio.get_running_loop(), 0, False

    def count() -> None:
        nonlocal number
        number += 1
        if not done:
            loop.call_soon(count)

    loop.call_soon(count)
    with contextlib.suppress(Refusal):
        async for _ in items_of(data, lines=lines, largest=4_000_000):
            pass
    done = True
    return number


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (lambda: b"\n" * 60_000_000, True),
        (lambda: b" \n" * 30_000_000, True),
        (lambda: b"[" + b'"' + b"x" * 3_900_000 + b'",' + b",".join([b'"' + b"\\n" * 1_900_000 + b'"'] * 14) + b"]", False),
        (lambda: b"[" + b",".join([b"[" + b"{}," * 90_000 + b"1]"] * 20) + b"]", False),
    ],
    ids=["empty lines", "blank lines", "long texts", "small objects"],
)
async def test_a_body_of_60_mb_is_split_in_slices(data: Callable[[], bytes], lines: bool) -> None:
    assert await iterations_during(data(), lines=lines) >= 2


@pytest.mark.parametrize("media", [JSON, NDJSON])
async def test_a_batch_is_refused_at_the_first_item_too_many(http: Client, media: str) -> None:
    items = [TASK] * (4 * MOST_ITEMS)
    # what follows is no JSON any more, and nobody has looked at it
    data = b"\n".join([*items, b"{" * 1_000]) if media == NDJSON else b"[" + b",".join([*items, b"{" * 1_000])
    problem = (await send(http, data, media, 413)).json
    assert "at most 10,000 tasks" in problem["detail"]
    assert await stored(http) == 0


async def test_a_batch_of_the_most_tasks_is_stored_while_others_are_served(http: Client) -> None:
    answer, share = await largest_share(send(http, b"\n".join([TASK] * MOST_ITEMS), NDJSON))
    assert answer.json["counts"] == {"added": MOST_ITEMS}
    assert share < SMALL


async def test_an_item_of_many_small_lists_is_refused_before_it_is_decoded(http: Client) -> None:
    problem = (await send(http, b"[" + SMALL_LISTS + b"]", status=413)).json
    assert "more than 100,000 arrays and objects" in problem["detail"]
    lines = (await send(http, SMALL_LISTS + b"\n" + TASK, NDJSON)).json
    assert [item["verdict"] for item in lines["items"]] == ["refused", "added"]
    single = await http.problem("POST", "/v1/tasks", data=SMALL_LISTS, headers={"content-type": JSON}, status=413)
    assert "more than 100,000 arrays and objects" in single["detail"]


async def test_brackets_in_a_text_are_not_counted(http: Client) -> None:
    text = '[{\\"' * MOST_CONTAINERS
    await http("POST", "/v1/tasks", {"handler": "anything", "payload": {"value": text}}, status=201)


async def test_an_item_has_the_size_of_a_body_at_most(http: Client) -> None:
    item = msgspec.json.encode({"handler": "anything", "payload": {"value": "x" * 5_000_000}})
    for data, media in ((b"[" + item + b"]", JSON), (item, NDJSON)):
        assert "more than 4,000,000 bytes" in (await send(http, data, media, 413)).json["detail"]


@pytest.mark.parametrize("numbers", [1, 30], ids=["decoded at once", "split in slices"])
async def test_a_broken_array_stores_nothing_however_long_it_is(http: Client, numbers: int) -> None:
    whole = [msgspec.json.encode({"handler": "anything", "payload": {"value": [1] * numbers}})] * 7_000
    for broken in (b"{", b'{"handler": }', b"", b"}"):
        data = b"[" + b",".join([*whole, broken]) + b"]"
        assert (await send(http, data, status=400)).json["type"] == "urn:duetime:problem:malformed-body"
    assert await stored(http) == 0


async def test_ten_thousand_unknown_handlers_get_three_hints(http: Client) -> None:
    items = [{"handler": f"greet{number}"} for number in range(MOST_ITEMS)]
    answer = (await http("POST", "/v1/tasks/batch", items)).json
    assert answer["counts"] == {"refused": MOST_ITEMS}
    hints = [item for item in answer["items"] if "did you mean" in item["problem"]["detail"]]
    assert len(hints) == 3
