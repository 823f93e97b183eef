"""Weights of collections on the command line."""

from __future__ import annotations

import asyncio

from duetime import App
from duetime.store.values import Declaration
from tests.cli.conftest import CommandLine, Shop


def test_weights_are_listed_shown_set_and_forgotten(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("weights").stderr.strip() == "no handler's collections share its starts"

    async def declare() -> None:
        async with App(duetime.url) as app:
            await app.store.declare([Declaration(name="sync", fair=True), Declaration(name="render")])

    asyncio.run(declare())
    told = duetime("weights", "put", "sync", "gold=4", "trial=0.5", "--note", "contracts").stdout.strip()
    assert told == "collections of sync share its starts: gold=4 trial=0.5, all others 1"
    [listed] = duetime.json("weights")["items"]
    assert listed == duetime.json("weights", "show", "sync") == duetime.json("weights", "list")["items"][0]
    assert (listed["weights"], listed["declared"], listed["note"]) == ({"gold": 4.0, "trial": 0.5}, True, "contracts")
    assert "collection gold" in duetime("weights", "show", "sync").stdout
    assert duetime("weights", "delete", "sync").stdout.strip() == "collections of sync weigh the same"
    assert duetime.json("weights", "put", "render", "a=2")["fair"] is True
    assert duetime("weights", "delete", "render").stdout.strip() == "collections of render share its starts no more"
    assert "a weight is COLLECTION=NUMBER" in duetime("weights", "put", "sync", "gold", code=2).stderr
    assert "to stop a collection, use a gate" in duetime("weights", "put", "sync", "gold=0", code=2).stderr
    assert "did you mean sync?" in duetime("weights", "put", "synk", "gold=1", code=3).stderr
    assert {"weights.put", "weights.delete"} == {each["action"] for each in duetime.json("audit")["items"]}
