"""Who waits for permits of a limit of which attempts take different numbers, and whether anything is begun meanwhile."""

from __future__ import annotations

from duetime.model.limit import Limit
from duetime.worker.held_limit import HeldLimit
from duetime.worker.longest_waiting import PATIENT_FOR, VAIN_PAUSE, LongestWaiting
from duetime.worker.queues import HandlerQueue
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
    waiting, queues = LongestWaiting(), sharing(pool(8, 0), small=1, large=4)
    for at in (0.0, LATER, 2 * LATER):
        assert await waiting.look(queues, at, due) == []


async def test_who_has_waited_long_comes_first_and_begins_anew_when_it_has_begun() -> None:
    limit, waiting = pool(8, 5), LongestWaiting()
    small, large = sharing(limit, small=1, large=4)
    assert await waiting.look([small, large], 0.0, due) == []
    small.begin()
    assert await waiting.look([small, large], LATER, due) == [large]
    limit.first = large
    assert (small.startable, large.startable) == (0, 0)
    limit.used = 4
    assert (small.startable, large.startable) == (0, 1)
    large.begin()
    assert limit.first is None
    assert small.startable == 4
    assert await waiting.look([small, large], LATER, due) == []


async def test_of_several_the_longest_waiting_is_first() -> None:
    limit, waiting = pool(8, 8), LongestWaiting()
    early, late = sharing(limit, early=4, late=2)
    await waiting.look([early], 0.0, due)
    await waiting.look([early, late], 0.5, due)
    assert await waiting.look([early, late], LATER + 0.5, due) == [early, late]


async def test_nobody_waits_for_a_handler_of_which_nothing_is_due() -> None:
    waiting, [large] = LongestWaiting(), sharing(pool(8, 5), large=4)
    for at in (0.0, LATER, 2 * LATER, 3 * LATER):
        assert await waiting.look([large], at, nothing_due) == []
    large.tasks.extend(tasks("large", 1))
    assert await waiting.look([large], 4 * LATER, nothing_due) == [large], "one that is here is surely there"


async def test_who_was_waited_for_in_vain_is_not_waited_for_again_at_once() -> None:
    limit, waiting = pool(8, 5), LongestWaiting()
    small, large = sharing(limit, small=1, large=4)
    await waiting.look([large], 0.0, due)
    assert await waiting.look([large], LATER, due) == [large]
    limit.first, large.more = large, False
    assert small.startable == 3, "nothing of it is due any more"
    assert await waiting.look([large], LATER, due) == []
    large.more = True
    assert await waiting.look([large], 2 * LATER, due) == []
    assert await waiting.look([large], LATER + VAIN_PAUSE + LATER, due) == [large]
