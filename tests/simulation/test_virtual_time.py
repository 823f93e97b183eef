"""The simulation itself: virtual time, processes that die and freeze, and a history that follows from the seed."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from typing import cast

import pytest

from duetime import App, Context, clock, ids
from duetime.model.task import State
from duetime.store.sqlite.shared import SharedMemory
from duetime.testing.simulation.cluster import Cluster, Settings
from duetime.testing.simulation.faults import Fault, plan
from duetime.testing.simulation.loop import OWNER, Deadlock, Owner, SimulatedLoop
from duetime.testing.simulation.process import current

app = App("sqlite:///:memory:")
began: list[tuple[float, str, int]] = []  # when, in which process, which attempt


@app.task
async def works(ctx: Context, seconds: float) -> None:
    process = current()
    assert process is not None
    began.append((process.cluster.now, process.name, ctx.attempt))
    await asyncio.sleep(seconds)


def simulated(seed: int, faults: list[Fault], tasks: int = 1, seconds: float = 3.0, lasts: float = 30.0) -> tuple[Cluster, list[State]]:
    """Let two workers run tasks that take so many seconds each; return how these ended."""
    began.clear()
    cluster = Cluster(seed, lambda version: app, faults, Settings(workers=2))

    async def client() -> list[State]:
        await asyncio.sleep(1.0)
        submitted = [await works.now(seconds=seconds) for _ in range(tasks)]
        await asyncio.sleep(lasts)
        return [(await app.get(task)).state for task in submitted]

    async def main() -> list[State]:
        return cast(list[State], await (await cluster.client()).begin(client()))

    return cluster, cluster.run(main)


def digest(seed: int) -> str:
    cluster, _ = simulated(
        seed, plan(random.Random(seed), workers=2, seconds=10.0, lease=5.0, kinds=("kill", "freeze", "slow", "deaf")), 20
    )
    return hashlib.sha256("\n".join(map(str, cluster.history)).encode()).hexdigest()


def test_the_same_seed_makes_the_same_history_byte_for_byte_in_another_process_too() -> None:
    code = "from tests.simulation.test_virtual_time import digest; print(digest(7))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "4242"}
    )
    assert digest(7) == digest(7) == elsewhere.stdout.strip()
    assert digest(7) != digest(8)


def test_nothing_waits_for_the_machines_clock() -> None:
    cluster, _ = simulated(1, [], lasts=600.0)
    assert cluster.now > 600.0  # otherwise pytest would have ended it after five minutes


def test_what_a_dead_process_ran_is_run_by_another() -> None:
    _, [state] = simulated(1, [Fault(kind="kill", at=2.0, process=0), Fault(kind="kill", at=2.0, process=1)])
    assert state is State.SUCCEEDED
    (first_at, first, one), (second_at, second, two) = began
    assert (one, two) == (1, 2)
    assert first != second
    assert second_at > first_at + 5.0  # not before the lease of the dead one was over


def test_a_process_that_is_frozen_past_its_lease_is_killed_by_its_dead_man_timer() -> None:
    cluster, [state] = simulated(1, [Fault(kind="freeze", at=2.0, process=number, seconds=8.0) for number in (0, 1)])
    assert state is State.SUCCEEDED
    assert [line.what for line in cluster.history].count("killed by its dead-man timer") == 2


def test_a_process_that_is_frozen_for_a_moment_goes_on() -> None:
    cluster, [state] = simulated(1, [Fault(kind="freeze", at=2.0, process=number, seconds=2.0) for number in (0, 1)])
    assert state is State.SUCCEEDED
    assert len(began) == 1
    assert sum(line.what == "goes on" for line in cluster.history) == 2


def test_clocks_ids_and_random_numbers_are_the_machines_again_afterwards() -> None:
    random.seed(5)
    expected = random.Random(5).random()
    simulated(1, [])
    assert abs(clock.monotonic() - time.monotonic()) < 60
    assert abs(clock.wall() - time.time_ns()) < 60e9
    assert random.random() == expected
    assert ids.token(8) != ids.token(8)
    assert abs(int(ids.new_id()[:13].replace("-", ""), 16) - time.time() * 1_000) < 60_000
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_callbacks_of_one_process_keep_their_order_and_those_of_two_are_mixed() -> None:
    orders = set()
    for seed in range(20):
        loop, ran = SimulatedLoop(random.Random(seed)), list[str]()
        first, second = Owner(), Owner()
        for owner, name in ((first, "a"), (second, "b")):
            token = OWNER.set(owner)
            for number in range(3):
                loop.call_soon(ran.append, f"{name}{number}")
            OWNER.reset(token)
        loop.call_later(1.0, loop.stop)
        loop.run_forever()
        loop.close()
        assert [each for each in ran if each[0] == "a"] == ["a0", "a1", "a2"]
        assert [each for each in ran if each[0] == "b"] == ["b0", "b1", "b2"]
        orders.add(tuple(ran))
    assert len(orders) > 5


def test_a_simulation_in_which_nothing_can_happen_any_more_says_so() -> None:
    loop = SimulatedLoop(random.Random(1))
    with pytest.raises(Deadlock, match="nothing is left"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_database_that_was_used_is_as_empty_as_a_new_one() -> None:
    new = SharedMemory()
    contents = list(new.connection.iterdump())
    simulated(1, [], tasks=3)
    used = SharedMemory()
    assert used.connection is not new.connection
    assert list(used.connection.iterdump()) == contents
    new.close()
    used.close()
