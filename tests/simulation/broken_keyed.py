"""Guards of limits by key and by rate that are taken away on purpose."""

from functools import partial
from typing import Any

from duetime.model import partitions
from duetime.model.partitions import Partition, Spent
from duetime.store.sqlite import counting
from duetime.store.sqlite.counting import Counting
from tests.simulation.guards import GUARDS, Replacements, guard

keyed = partial(guard, worlds="keyed")

__all__ = ["GUARDS"]


@keyed("what has been admitted counts", "key")
def admitted_attempts_count() -> Replacements:
    read = counting._partitions

    def empty(connection: Any, spots: Any, now: int, waiting: int = 0) -> Any:
        found = read(connection, spots, now, waiting)
        for each in found.values():
            each.taken = 0
        return found

    return [(counting, "_partitions", empty)]


@keyed("what an attempt takes counts as soon as it is admitted, also in the same claim", "key")
def takes_count_at_once() -> Replacements:
    take = Partition.take

    def nothing(self: Partition, takes: int, at: int) -> None:
        take(self, 0, at)

    return [(Partition, "take", nothing)]


@keyed("what an attempt took is free when it has ended: by a look, or by the duty", "lost", "leak")
def ends_are_looked_at() -> Replacements:
    async def never(self: Counting) -> int:
        return 0

    return [(Counting, "_leave", lambda self, connection, attempts, now: None), (Counting, "look_at_limits", never)]


@keyed("the duty finds attempts that nobody has ended", "lost", "leak")
def the_dead_hold_nothing() -> Replacements:
    async def never(self: Counting) -> int:
        return 0

    return [(Counting, "look_at_limits", never)]


@keyed("a row counts as long as its attempt is open", "key")
def open_attempts_count() -> Replacements:
    look = counting.look

    def hasty(connection: Any, now: int) -> Any:
        connection.execute("delete from duetime_admitted where attempt is not null")
        return look(connection, now)

    return [(counting, "look", hasty)]


@keyed("parked tasks go on when there is room", "lost", "leak")
def parked_tasks_go_on() -> Replacements:
    return [(counting, "let_go_on", lambda partitions, now: [])]


@keyed("a start takes a token", "rate")
def starts_take_tokens() -> Replacements:
    return [(partitions, "spend", lambda rules, spent, at: [Spent() for _ in rules])]


@keyed("a token is void soon after its instant", "rate")
def old_tokens_are_void() -> Replacements:
    return [(partitions, "GRACE", 1 << 60)]
