"""Locks on the command line: who holds them, and how they are taken away."""

from __future__ import annotations

from tests.cli.conftest import CommandLine, Shop


def test_locks_are_listed_shown_and_deleted(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("locks").stderr.strip() == "nobody holds a lock"

    async def take() -> int:
        async with shop.app as app:
            return (await app.store.take_lock("nightly", "somebody", "anna", 15)).fence

    fence = shop.do(take())
    [listed] = duetime.json("locks")["items"]
    assert (listed["name"], listed["by"], listed["fence"]) == ("nightly", "anna", fence)
    assert listed == duetime.json("locks", "show", "nightly") == duetime.json("locks", "list")["items"][0]
    assert "anna" in duetime("locks", "show", "nightly").stdout
    assert "held" in duetime("locks").stdout
    duetime("locks", "delete", "nightly")
    assert "nobody holds a lock 'nightly'" in duetime("locks", "delete", "nightly", code=3).stderr
    assert "nobody holds a lock 'nightly'" in duetime("locks", "show", "nightly", code=3).stderr
    assert [each["action"] for each in duetime.json("audit")["items"]][:1] == ["locks.delete"]
