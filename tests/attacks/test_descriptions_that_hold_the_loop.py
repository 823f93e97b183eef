"""The description of the API is asked for without a token, before it was ever built, by many at once."""

from __future__ import annotations

import asyncio

from tests.api.conftest import Client
from tests.attacks.meanwhile import SMALL, largest_share


async def test_the_first_request_for_the_description_lets_others_be_served(http: Client) -> None:
    answers, share = await largest_share(asyncio.gather(*(http("GET", "/openapi.json") for _ in range(3))))
    assert len({answer.data for answer in answers}) == 1
    assert share < SMALL
