"""What many viewers cost: as much as one, and nothing when nobody looks. Counted, on a clock that the test moves."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp

from duetime import App
from duetime.api.app import Api
from duetime.api.server import Server
from duetime.clock import ManualClock
from duetime.web.sight import LONGER, Seen, Sight
from duetime.web.web import Web
from tests.web.conftest import Reader, fill

T = TypeVar("T")

VIEWERS, SECONDS = 12, 20


class CountedSight(Sight):
    """Counts what is read from the store, by the name of the look."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reads: Counter[str] = Counter()

    async def see(self, name: str, read: Callable[[], Awaitable[T]]) -> Seen[T]:
        async def counted() -> T:
            self.reads[name] += 1
            return await read()

        return await super().see(name, counted)


async def test_many_open_overviews_cost_as_much_as_one(app: App) -> None:
    clock, web = ManualClock(), Web()
    sight = web.sight = CountedSight(clock)
    async with Server(app, api=Api(app, extension=web), port=0).running() as server, aiohttp.ClientSession() as session:
        await fill(app)
        sight.reads.clear()
        for second in range(SECONDS):
            for _ in range(VIEWERS if second % 2 == 0 else 0):  # each asks every two seconds
                async with session.get(f"{server.url}/ui/", headers={"duetime-parts": "none"}) as response:
                    assert response.status == 200
            clock.advance(1)
        assert set(sight.reads) == {
            "stats",
            "health",
            "handlers",
            "gates",
            "series 15min",
            "series by handler 15min",
            "upcoming",
            "acts",
            "failures 24h",
        }
        for name, reads in sight.reads.items():
            assert reads <= SECONDS / LONGER[name.partition(" ")[0]] + 1, name
        seen = sight.reads.total()
        clock.advance(3_600)
        assert sight.reads.total() == seen, "nobody looks, nothing is read"


async def _loaded(ui: Reader, path: str) -> list[bytes]:
    """Return the page and all files that a browser fetches for it."""
    page = await ui(path)
    wanted = list(dict.fromkeys(re.findall(r'(?:href|src)="/ui(/assets/[^"]+)"', page)))
    parts, known = [page.encode()], set(wanted)
    while wanted:
        file = wanted.pop()
        text = await ui(file)
        parts.append(text.encode())
        for name in re.findall(r'(?:from|import) "\./([\w.]+)"', text) if file.endswith(".js") else ():
            found = f"{file.rpartition('/')[0]}/{name}"
            if found not in known:
                known.add(found)
                wanted.append(found)
    return parts


async def test_the_first_load_is_small_and_needs_no_other_host(ui: Reader, app: App) -> None:
    await fill(app)
    for path, most in (("/", 100_000), ("/schedules", 100_000), ("/handlers", 100_000), ("/tasks", 110_000)):
        parts = await _loaded(ui, path)
        assert len(parts) <= 7, path
        assert sum(map(len, parts)) <= most, path
        assert sum(len(gzip.compress(part)) for part in parts) <= 30_000, path
        page = parts[0].decode()
        assert not re.findall(r'(?:href|src|action)="(?:https?:)?//', page), path


async def test_a_store_that_is_slow_is_asked_by_one_at_a_time_and_the_page_tells_the_age(app: App) -> None:
    clock, web = ManualClock(), Web()
    web.sight = Slow(clock)
    async with Server(app, api=Api(app, extension=web), port=0).running() as server, aiohttp.ClientSession() as session:

        async def page() -> str:
            async with session.get(f"{server.url}/ui/") as response:
                assert response.status == 200
                return await response.text()

        await page()
        web.sight.slow = True
        clock.advance(20)
        for _ in range(5):
            text = await page()
            assert re.search(r"as of 20 s\s+ago", text), "the last facts are shown with their age"
        assert max(web.sight.under_way_at_once.values()) == 1
        web.sight.release()


class Slow(Sight):
    """A sight on a store that does not answer while `slow`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.slow = False
        self.under_way: Counter[str] = Counter()
        self.under_way_at_once: dict[str, int] = {}
        self._ready: Any = None

    async def see(self, name: str, read: Callable[[], Awaitable[T]]) -> Seen[T]:
        import asyncio

        async def slowly() -> T:
            self.under_way[name] += 1
            self.under_way_at_once[name] = max(self.under_way_at_once.get(name, 0), self.under_way[name])
            if self.slow:
                self._ready = self._ready or asyncio.Event()
                await self._ready.wait()
            self.under_way[name] -= 1
            return await read()

        return await super().see(name, slowly)

    def release(self) -> None:
        self.slow = False
        if self._ready is not None:
            self._ready.set()
