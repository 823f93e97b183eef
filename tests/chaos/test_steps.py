"""Steps under `kill -9` and SIGSTOP: what ran is read from what the steps themselves wrote down."""

import pytest

from duetime import Task
from tests.chaos.fleet import Fleet, until

pytestmark = pytest.mark.slow
LEASE = ("--lease", "1s")


def runs(fleet: Fleet, task: Task[object]) -> list[tuple[int, int]]:
    """Return which steps of a task ran in which attempts."""
    lines = (fleet.folder / "steps").read_text().splitlines()
    return [(int(number), int(attempt)) for name, number, attempt in map(str.split, lines) if name == task.id]


async def test_a_saved_step_does_not_run_again_after_a_kill(any_fleet: Fleet) -> None:
    fleet = any_fleet
    doomed = await fleet.start(*LEASE)
    fleet.hold()
    tasks = await fleet.submit(fleet.new("stepwise", held_after=number % 3) for number in range(4))
    saved = [f"s{number % 3}" for number in range(4)]

    async def all_saved() -> bool:
        return all([name in {step.name for step in await fleet.store.steps(task.id)} for task, name in zip(tasks, saved, strict=True)])

    await until("each task is held after its step", all_saved)
    doomed.kill()
    await fleet.start(*LEASE)
    fleet.let_go()
    await fleet.finish()
    await fleet.check()
    for number, task in enumerate(tasks):
        ran = runs(fleet, task)
        assert sorted(step for step, _ in ran) == [0, 1, 2], "each ran once"
        assert {step: attempt for step, attempt in ran if step <= number % 3} == dict.fromkeys(range(number % 3 + 1), 1)


async def test_an_attempt_that_was_frozen_past_its_lease_saves_nothing(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    first = await fleet.start(*LEASE)
    fleet.hold()
    [task] = await fleet.submit([fleet.new("stepwise", held_after=0)])
    await until("the first step is saved", lambda: _has(fleet, task, "s0"))
    first.freeze()
    await fleet.start(*LEASE)
    await until("another attempt has begun", lambda: len(fleet.attempts(task)) == 2)
    first.thaw()
    fleet.let_go()
    await fleet.finish()
    await fleet.check()
    assert [step.attempt for step in await fleet.store.steps(task.id)] == [1, 2, 2]


async def _has(fleet: Fleet, task: Task[object], name: str) -> bool:
    return name in {step.name for step in await fleet.store.steps(task.id)}
