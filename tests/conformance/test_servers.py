"""Servers: known from their first beat until they leave, or have been silent for a day."""

from __future__ import annotations

from duetime.clock import ManualClock
from duetime.store import Store
from duetime.store.servers import NewServer


def server(id: str, **facts: object) -> NewServer:
    return NewServer(**{"id": id, "host": "mill", "pid": 7, "url": "https://mill:8420", "version": "1", "python": "3.11", **facts})  # type: ignore[arg-type]


async def test_a_server_is_known_from_its_first_beat_until_it_leaves(store: Store, clock: ManualClock) -> None:
    assert await store.servers() == []
    await store.beat_server(server("b"))
    began = clock.now()
    clock.advance(10)
    await store.beat_server(server("a", url=None))
    await store.beat_server(server("b"))
    [first, second] = await store.servers()
    assert (first.id, first.started_at, first.beat_at, first.url) == ("b", began, clock.now(), "https://mill:8420")
    assert (second.id, second.started_at, second.url, second.host, second.pid) == ("a", clock.now(), None, "mill", 7)
    assert await store.remove_server("a")
    assert not await store.remove_server("a")
    assert [each.id for each in await store.servers()] == ["b"]


async def test_one_that_is_silent_is_listed_for_a_day(store: Store, clock: ManualClock) -> None:
    await store.beat_server(server("dead"))
    clock.advance(86_399)
    await store.beat_server(server("live"))
    assert [each.id for each in await store.servers()] == ["dead", "live"]
    clock.advance(2)
    await store.beat_server(server("live"))
    assert [each.id for each in await store.servers()] == ["live"]
