"""Limits of the whole fleet under `kill -9`: how many ran at once is read from what the handlers themselves wrote down."""

import asyncio
import random

import pytest

from tests.chaos.fleet import Fleet, until
from tests.chaos.history import History

pytestmark = pytest.mark.slow
LIMIT, TASKS, KILLS = 3, 45, 3
LEASE = ("--lease", "1s")


def most_at_once(history: History) -> int:
    """Return how many ran at once at most. An attempt whose worker was killed counts until the kill: it was alive until then."""
    changes = []
    for attempts in history.attempts.values():
        for attempt in attempts:
            end = attempt.end.at if attempt.end is not None else history.killed[attempt.start.worker]
            changes += [(attempt.start.at, 1), (end, -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


async def test_never_more_run_than_the_limit_allows_while_workers_are_killed(any_fleet: Fleet) -> None:
    fleet, chance = any_fleet, random.Random()
    for _ in range(3):
        await fleet.start(*LEASE)
    await fleet.submit(fleet.new("limited", seconds=chance.uniform(0, 0.05)) for _ in range(TASKS))
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.1, 0.5))
        chance.choice(fleet.alive).kill()
        await fleet.start(*LEASE)
    await fleet.finish()
    history = await fleet.check()
    assert len(history.attempts) == TASKS
    assert most_at_once(history) <= LIMIT


async def test_what_a_killed_worker_held_is_free_when_it_is_dead(any_fleet: Fleet) -> None:
    fleet = any_fleet
    doomed = await fleet.start(*LEASE)
    fleet.hold()
    held = await fleet.submit(fleet.new("limited", held=True) for _ in range(LIMIT))
    await until("all permits are used", lambda: fleet.started(*held))
    await fleet.start(*LEASE)
    after = await fleet.submit(fleet.new("limited") for _ in range(5))
    doomed.kill()
    fleet.let_go()
    await fleet.finish()
    history = await fleet.check()
    assert most_at_once(history) <= LIMIT
    assert all(fleet.attempts(task) for task in after)
