"""Who waits for permits of a limit of which attempts take different numbers, and whether anything is begun meanwhile."""

from __future__ import annotations

from duetime.model.limit import Limit
from duetime.worker.held_limit import HeldLimit
from duetime.worker.queues import HandlerQueue
from duetime.worker.turns import PATIENT_FOR, VAIN_PAUSE, Turns
from tests.unit.test_queues import queue, tasks

LATER = PATIENT_FOR + 0.1


async def due(queue: HandlerQueue) -> bool:
    return True


async def nothing_due(queue: HandlerQueue) -> bool:
    return False


def sharing(limit: HeldLimit, **takes: int) -> list[HandlerQueue]:
    made = []
    for name, each in takes.items():
        made.append(queue(name))
        made[-1].limits = ((limit, each),)
    return made


def pool(held: int, used: int) -> HeldLimit:
    limit = HeldLimit(Limit("pool", running=8))
    limit.held, limit.used, limit.mixed = held, used, True
    return limit


async def test_who_could_start_waits_for_nobody() -> None:
    turns, queues = Turns(), sharing(pool(8, 0), small=1, large=4)
    for at in (0.0, LATER, 2 * LATER):
        assert await turns.look(queues, at, due) == []


async def test_who_has_waited_long_comes_first_and_begins_anew_when_it_has_begun() -> None:
    limit, turns = pool(8, 5), Turns()
    small, large = sharing(limit, small=1, large=4)
    assert await turns.look([small, large], 0.0, due) == []
    small.begin()
    assert await turns.look([small, large], LATER, due) == [large]
    limit.first = large
    assert (small.startable, large.startable) == (0, 0)
    limit.used = 4
    assert (small.startable, large.startable) == (0, 1)
    large.begin()
    assert limit.first is None
    assert small.startable == 4
    assert await turns.look([small, large], LATER, due) == []


async def test_of_several_the_longest_waiting_is_first() -> None:
    limit, turns = pool(8, 8), Turns()
    early, late = sharing(limit, early=4, late=2)
    await turns.look([early], 0.0, due)
    await turns.look([early, late], 0.5, due)
    assert await turns.look([early, late], LATER + 0.5, due) == [early, late]


async def test_nobody_waits_for_a_handler_of_which_nothing_is_due() -> None:
    turns, [large] = Turns(), sharing(pool(8, 5), large=4)
    for at in (0.0, LATER, 2 * LATER, 3 * LATER):
        assert await turns.look([large], at, nothing_due) == []
    large.tasks.extend(tasks("large", 1))
    assert await turns.look([large], 4 * LATER, nothing_due) == [large], "one that is here is surely there"


async def test_who_was_waited_for_in_vain_is_not_waited_for_again_at_once() -> None:
    limit, turns = pool(8, 5), Turns()
    small, large = sharing(limit, small=1, large=4)
    await turns.look([large], 0.0, due)
    assert await turns.look([large], LATER, due) == [large]
    limit.first, large.more = large, False
    assert small.startable == 3, "nothing of it is due any more"
    assert await turns.look([large], LATER, due) == []
    large.more = True
    assert await turns.look([large], 2 * LATER, due) == []
    assert await turns.look([large], LATER + VAIN_PAUSE + LATER, due) == [large]
