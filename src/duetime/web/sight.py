"""What all viewers of a server see: each overview is read at most once a second for all of them, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from duetime.clock import Clock, SystemClock
from duetime.errors import StoreUnavailable

T = TypeVar("T")

FRESH = 1.0  # seconds for which what was read is shown without another look
# Longer for what an overview has besides, by the first word of its name: what it costs is a number of queries, not of rows, and a hundred
# open overviews shall cost five a second (bench/dashboard.py). Series have steps of ten seconds. After an action all is read again.
LONGER = {
    "stats": 2.0,
    "events": 2.0,
    "health": 5.0,
    "failures": 5.0,
    "handlers": 10.0,
    "workers": 5.0,
    "gates": 5.0,
    "upcoming": 10.0,
    "acts": 5.0,
    "series": 10.0,
}
COST_SHARE = 20  # reading may take a twentieth of the time: what costs a second is read every 20 seconds
STALEST = 30.0
MOST_LOOKS = 500  # what nobody has asked for longest is forgotten first: names have what people write into addresses
PATIENCE = 0.3  # seconds that a page waits for a fresh look before it shows the last one with its age
SAID = 3.0  # seconds from which on a page says how old its facts are


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """What was seen last, how many seconds ago, and why it is not fresher if the store did not answer."""

    value: T
    age: float
    trouble: str = ""

    @property
    def is_old(self) -> bool:
        return self.age >= SAID


class _Look:
    """The last look at one thing, and the one under way."""

    def __init__(self) -> None:
        self.value: Any = None
        self.at = float("-inf")
        self.cost = 0.0
        self.tried_at = float("-inf")
        self.error: Exception | None = None
        self.reading: asyncio.Task[None] | None = None

    @property
    def seen_once(self) -> bool:
        return self.at != float("-inf")


class Eye(Protocol):
    """What pages see with."""

    async def see(self, name: str, read: Callable[[], Awaitable[T]]) -> Seen[T]: ...

    def kept(self, name: str, make: Callable[[], T]) -> T: ...


class Noting(Eye):
    """The sight of one request: notes whether something could not be read again, and how old the oldest of that is."""

    def __init__(self, sight: Eye) -> None:
        self._sight = sight
        self.trouble = ""
        self.age = 0.0

    async def see(self, name: str, read: Callable[[], Awaitable[T]]) -> Seen[T]:
        seen = await self._sight.see(name, read)
        if seen.trouble:
            self.trouble, self.age = seen.trouble, max(self.age, seen.age)
        return seen

    def kept(self, name: str, make: Callable[[], T]) -> T:
        return self._sight.kept(name, make)


class Sight(Eye):
    """Looks at the store on behalf of all viewers. Nobody looks, nothing is read."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._looks: dict[str, _Look] = {}
        self._kept: dict[str, Any] = {}

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what a look keeps from one time to the next, for all viewers; it is made when it is first asked for."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    async def see(self, name: str, read: Callable[[], Awaitable[T]]) -> Seen[T]:
        """Return what `read` returned last; call it again, once for all who ask, if that is too old.

        Who asks while a slow read is under way gets the last value with its age. Without one it waits. Raises what `read`
        raised if there is none.
        """
        look = self._looks.pop(name) if name in self._looks else _Look()
        self._looks[name] = look  # the last one is the one that was asked for last
        if len(self._looks) > MOST_LOOKS:
            self._looks.pop(next((each for each, other in self._looks.items() if other.reading is None and other is not look), ""), None)
        fresh = LONGER.get(name.partition(" ")[0], FRESH)
        waits = look.error is not None and look.seen_once and self._clock.monotonic() - look.tried_at < FRESH
        if not waits and self._age(look) >= min(STALEST, max(fresh, COST_SHARE * look.cost)):
            if look.reading is None:
                look.reading = asyncio.create_task(self._read(look, read), name=f"sight {name}")
            await asyncio.wait([look.reading], timeout=PATIENCE if look.seen_once else None)
        if not look.seen_once:
            raise look.error or StoreUnavailable("the store has not answered yet")
        return Seen(look.value, self._age(look), "" if look.error is None else str(look.error))

    def forget(self) -> None:
        """Read everything again at the next look, because somebody has changed something here."""
        for look in self._looks.values():
            if look.seen_once:
                look.at = min(look.at, self._clock.monotonic() - STALEST)

    def close(self) -> None:
        for look in self._looks.values():
            if look.reading is not None:
                look.reading.cancel()

    def _age(self, look: _Look) -> float:
        return self._clock.monotonic() - look.at

    async def _read(self, look: _Look, read: Callable[[], Awaitable[Any]]) -> None:
        began = look.tried_at = self._clock.monotonic()
        try:
            value = await read()
        except Exception as error:  # it is raised where there is nothing else to show
            look.error = error
        else:
            look.value, look.at, look.error = value, began, None
            look.cost = self._clock.monotonic() - began
        finally:
            look.reading = None
