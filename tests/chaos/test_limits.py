"""Limits of the whole fleet under SIGKILL and SIGSTOP, and when the server is killed: how many ran at once is read from what the handlers
themselves wrote down, and from locks of the kernel's that they held as long as they ran."""

import asyncio
import contextlib
import random
import signal
from typing import Any

import pytest

from duetime import State, StoreUnavailable
from tests.chaos.fleet import Fleet, until
from tests.chaos.ground import HOUR, Ground
from tests.chaos.history import History

pytestmark = pytest.mark.slow
LIMIT, TASKS, KILLS = 3, 45, 3
LEASE = ("--lease", "1s")
BURST = 30  # of the handler `calls`, for each user


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


@pytest.mark.parametrize("handler", ["limited", "of_user"])
async def test_what_a_frozen_worker_held_is_free_when_the_kernel_has_killed_it(postgres_fleet: Fleet, handler: str) -> None:
    """SIGSTOP until long after its lease. Its attempts count until it is dead, and when it is told to go on there is none to do so."""
    fleet = postgres_fleet
    options: list[dict[str, Any]] = [{}] * LIMIT if handler == "limited" else [{"user": user} for user in range(LIMIT)]
    frozen = await fleet.start(*LEASE)
    fleet.hold()
    held = await fleet.submit(fleet.new(handler, held=True, **each) for each in options)
    await until("all of the limit is taken", lambda: fleet.started(*held))
    await fleet.start(*LEASE)
    after = await fleet.submit(fleet.new(handler, **each) for each in options * 2)
    frozen.freeze()
    fleet.let_go()
    await until("the others have begun", lambda: fleet.started(*after))
    frozen.thaw()
    assert await frozen.ended() == -signal.SIGKILL
    await fleet.finish()
    await fleet.check()
    assert all(len(fleet.attempts(task)) == 2 for task in held), "what the frozen one ran has run again"


async def test_a_server_is_killed_while_keys_and_rates_are_in_use(stormy: Fleet, ground: Ground) -> None:
    """One at a time of each user all through it, and not one call more than the rate lets begin, as often as the server forgets."""
    fleet = stormy
    await fleet.start_some(2, "--lease", "3s")
    calls = [await fleet.submit(fleet.new("calls", user=user) for _ in range(2 * BURST)) for user in range(2)]
    await fleet.submit(fleet.new("of_user", user=user, seconds=0.02) for _ in range(20) for user in range(4))
    for number in (10, 80):
        await until("some have run", lambda number=number: len(fleet.history().attempts) >= number)  # type: ignore[misc]
        await ground.crash(fleet.journal)
    last = await fleet.submit(fleet.new("of_user", user=user) for user in range(4))
    await until("others run as before", lambda: fleet.started(*last))

    async def nothing_more_may_run() -> bool:
        with contextlib.suppress(StoreUnavailable):
            records = [await fleet.app.get(task) for each in calls for task in each]
            return all(record.parked or record.state is State.SUCCEEDED for record in records)
        return False

    await until("the rates let no more begin", nothing_more_may_run)
    for task in [task for each in calls for task in each]:
        await fleet.app.cancel(task)
    await fleet.finish()
    history = await fleet.check()
    for each in calls:
        assert sum(len(history.attempts.get(task.id, [])) for task in each) <= BURST


async def test_after_a_fail_over_no_two_of_a_key_run_at_once(stormy: Fleet, ground: Ground) -> None:
    """The server that takes over knows neither the claims nor what they took of the limit; what ran by them stops before it claims anew."""
    fleet = stormy
    await fleet.start_some(2, "--lease", "2s")
    await fleet.submit(fleet.new("of_user", user=user) for user in range(4))
    replica = await ground.follow()
    fleet.hold()
    unknown = await fleet.submit(fleet.new("of_user", user=user, held=True).after(HOUR) for user in range(4))
    others = await fleet.submit(fleet.new("of_user", user=user).after(HOUR) for user in range(4))
    await ground.sever(replica, fleet.journal)
    await fleet.make_due(*unknown)
    await until("they run by claims that the replica does not know", lambda: fleet.started(*unknown))
    await ground.switch(replica, fleet.journal)
    await fleet.look_at(ground.look_url)
    await fleet.make_due(*others, *unknown)
    await until("others of the same keys run, or the same again", lambda: fleet.history().again() > 0 or fleet.started(*others))
    fleet.let_go()
    await fleet.finish()
    await fleet.check()
    assert fleet.started(*others, *unknown)
