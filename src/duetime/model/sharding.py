"""Which shard a task belongs to. Pure: the map of shards is a value, and changes of it are functions from one value to the next.

Twelve bits of a task's id name one of 4,096 *cells*; of a keyed task they come from (handler, key). A map assigns each cell to a shard by
rendezvous hashing over the shards that take new tasks, so a new shard takes over its share of cells and moves none between the others.

Nothing that is stored is moved. A cell whose shard has changed has *former* shards, which may still have tasks of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from duetime.clock import DAY, MILLISECOND, SECOND, Instant
from duetime.errors import Conflict, InvalidValue
from duetime.ids import SHARDS, is_id, key_shard, shard_of

CONTROL = "control"  # the store that the App's URL names; it is a shard too, for what is written in its transactions
SETTLING = 10 * SECOND  # how long a change of the map is known before it counts
CLOCKS = DAY  # by how much the clock of a process may be wrong that makes ids

ShardState: TypeAlias = Literal["active", "draining"]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A shard. `active`: it gets new tasks. `url` has no secrets: `${NAME}` in it stands for a variable of the environment."""

    name: str
    url: str
    state: ShardState = "active"


class Epoch(msgspec.Struct, frozen=True):
    """The shards that got new tasks until the next epoch, and when this one began."""

    names: tuple[str, ...]
    since: Instant


class ShardMap(msgspec.Struct, frozen=True, kw_only=True):
    """All shards, and where tasks were and are stored. `epochs` are the former ones, the oldest first, and the present one.

    `coming` is the next one. It becomes the present one `SETTLING` after it was stored. Until then keyed tasks of cells that change their
    shard are not stored by anybody, so that no two processes with different maps store one key in two shards.
    `id` is what shards know their control by.
    """

    id: str
    version: int = 1
    shards: tuple[ShardEntry, ...] = ()
    epochs: tuple[Epoch, ...] = (Epoch((CONTROL,), 0),)
    coming: Epoch | None = None

    def entry(self, name: str) -> ShardEntry | None:
        return next((each for each in self.shards if each.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Control and all shards."""
        return (CONTROL, *(each.name for each in self.shards))

    def shard_of(self, cell: int) -> str:
        """Return where new tasks of a cell are stored."""
        return _assigned(self.epochs[-1].names)[cell]

    def formers(self, cell: int) -> tuple[str, ...]:
        """Return where else tasks of a cell may be, the latest shard first."""
        names = dict.fromkeys(_assigned(epoch.names)[cell] for epoch in reversed(self.epochs))
        return tuple(names)[1:]

    def moves(self, cell: int) -> bool:
        """Return whether a cell is about to change its shard."""
        return self.coming is not None and _assigned(self.coming.names)[cell] != self.shard_of(cell)

    def may_be_older(self, id: str) -> bool:
        """Return whether an id may have been stored before the present epoch began."""
        if not is_id(id):
            return True
        made_at = int(id[:8] + id[9:13], 16) * MILLISECOND
        return made_at <= self.epochs[-1].since + CLOCKS


def new_map(id: str, shards: Sequence[ShardEntry] = (), *, since: Instant = 0) -> ShardMap:
    """Return the map of a store that has no tasks yet: with these shards, or with control alone."""
    if not shards:
        return ShardMap(id=id)
    return ShardMap(id=id, shards=tuple(shards), epochs=(Epoch(tuple(each.name for each in shards), since),))


def cell_of(id: str) -> int:
    """Return the cell of an id; of what comes from outside and is none, any cell: it is nowhere."""
    return shard_of(id) if is_id(id) else 0


def cell_of_key(handler: str, key: str) -> int:
    return key_shard(handler, key)


@lru_cache(maxsize=32)
def _assigned(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shard of each cell: the one with the highest number of all that (shard, cell) give."""
    if len(names) == 1:
        return names * SHARDS
    return tuple(max(names, key=lambda name: (_number(name, cell), name)) for cell in range(SHARDS))


def _number(name: str, cell: int) -> bytes:
    return hashlib.blake2b(f"{name}\0{cell}".encode(), digest_size=8).digest()


# ---- changes ----


def with_shard(map: ShardMap, name: str, url: str, now: Instant, *, starts: bool = True) -> ShardMap:
    """Return the map with one more shard. If it `starts`, it gets its share of new tasks once the change counts."""
    if not _NAME.match(name) or name == CONTROL:
        raise InvalidValue(f"the name of a shard is up to 32 of a–z, 0–9, - and _, begins with a letter and is not {CONTROL}, got {name!r}")
    if map.entry(name) is not None:
        raise Conflict(f"there is a shard {name} already; choose another name")
    present = [each for each in _last(map) if each != CONTROL]
    shards = (*map.shards, ShardEntry(name=name, url=url, state="active" if starts else "draining"))
    if not starts:
        return _next(map, shards=shards)
    return _next(map, shards=shards, coming=Epoch((*present, name), now))


def without_tasks_for(map: ShardMap, name: str, now: Instant) -> ShardMap:
    """Return the map in which a shard gets no new tasks; what it has it keeps until that ends."""
    _known(map, name)
    left = tuple(each for each in _last(map) if each != name)
    if len(left) == len(_last(map)):
        raise Conflict(f"shard {name} drains already")
    shards = tuple(msgspec.structs.replace(each, state="draining") if each.name == name else each for each in map.shards)
    return _next(map, shards=shards, coming=Epoch(left or (CONTROL,), now))


def with_tasks_for(map: ShardMap, name: str, now: Instant) -> ShardMap:
    """Return the map in which a draining shard gets new tasks again."""
    if _known(map, name).state == "active":
        raise Conflict(f"shard {name} gets new tasks already")
    present = [each for each in _last(map) if each != CONTROL]
    shards = tuple(msgspec.structs.replace(each, state="active") if each.name == name else each for each in map.shards)
    return _next(map, shards=shards, coming=Epoch((*present, name), now))


def without_shard(map: ShardMap, name: str) -> ShardMap:
    """Return the map without a shard that drains. Whoever calls this has seen that it has no live task."""
    if map.coming is not None:
        raise Conflict("another change of the shards is under way; try again in some seconds")
    if _known(map, name).state != "draining":
        raise Conflict(f"shard {name} gets new tasks; drain it first: duetime shards drain {name}")
    epochs = [msgspec.structs.replace(each, names=tuple(one for one in each.names if one != name)) for each in map.epochs]
    epochs = [each for index, each in enumerate(epochs) if each.names and (index == 0 or each.names != epochs[index - 1].names)]
    return _next(map, shards=tuple(each for each in map.shards if each.name != name), epochs=tuple(epochs))


def settled(map: ShardMap, now: Instant) -> ShardMap | None:
    """Return the map in which a change that was to come counts; None if there is none, or it is too early."""
    if map.coming is None or now < map.coming.since + SETTLING:
        return None
    return _next(map, epochs=(*map.epochs, msgspec.structs.replace(map.coming, since=now)), coming=None)


def _next(map: ShardMap, **changes: object) -> ShardMap:
    return msgspec.structs.replace(map, version=map.version + 1, **changes)


def _known(map: ShardMap, name: str) -> ShardEntry:
    entry = map.entry(name)
    if entry is None:
        known = ", ".join(each.name for each in map.shards) or "none"
        raise InvalidValue(f"there is no shard {name!r}; there are: {known}")
    return entry


def _last(map: ShardMap) -> tuple[str, ...]:
    """Return which shards get new tasks once all changes count. A further change joins one that is to come, and both begin to wait anew."""
    return (map.coming or map.epochs[-1]).names
