"""Promises hold in simulated worlds, whatever goes wrong in them; each seed is another world. `make simulate` runs more of them."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from duetime.testing.simulation.faults import Fault
from tests.simulation.__main__ import explained, run
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Outcome, Plan, plan, simulate

CHUNK = 125
CHUNKS = 16  # so many that all processes of a test run have some


def hold(seeds: range) -> None:
    failed = run(seeds).failed
    assert not failed, explained(simulate(plan(failed[0])), timeline=False)


def test_promises_hold_in_some_worlds() -> None:
    hold(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_in_two_thousand_worlds(chunk: int) -> None:
    hold(range(chunk * CHUNK, (chunk + 1) * CHUNK))


def digests(seeds: Iterable[int]) -> str:
    return " ".join(hashlib.sha256("\n".join(simulate(plan(seed)).history).encode()).hexdigest() for seed in seeds)


@pytest.mark.slow
def test_worlds_are_the_same_byte_for_byte_in_another_process_too() -> None:
    """One that orders sets in another way, and has other worlds behind it."""
    seeds = (7, 31, 64, 100, 39)  # two long ones, a dense one
    code = "from tests.simulation.test_worlds import digests; digests((3, 5)); print(digests((7, 31, 64, 100, 39)))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "4242"}
    )
    assert digests(seeds) == digests(seeds) == elsewhere.stdout.strip()


def test_worlds_have_faults_of_every_kind_and_tasks_that_run_again() -> None:
    outcomes = [simulate(plan(seed)) for seed in (7, 23)]
    assert all(outcome.tasks for outcome in outcomes)
    assert sum(outcome.attempts for outcome in outcomes) > sum(outcome.tasks for outcome in outcomes)
    kinds = {fault.kind for seed in range(200) for fault in plan(seed).faults}
    assert kinds == {"kill", "crash", "freeze", "fail", "lose", "slow", "away", "step", "skew", "deaf", "echo", "restart"}


def test_a_failing_world_is_shortened_to_what_it_needs() -> None:
    """The world of this seed is said to fail as long as a certain fault and a certain operation are there."""
    whole = next(each for seed in range(100) if len((each := plan(seed)).faults) > 3 and len(each.operations) > 20)
    fault, operation = whole.faults[2], whole.operations[7]

    def said(chosen: Plan) -> Outcome:
        fails = fault in chosen.faults and operation in chosen.operations
        return Outcome(chosen, ["lost: because we say so"] if fails else [], 0, 0, 0.0, [])

    small = shrunk(said(whole), said).plan
    assert (small.faults, small.operations) == ([fault], [operation])


def test_faults_are_described_in_sentences() -> None:
    described = str(Fault(kind="crash", at=3.5, process=1, verb="settle"))
    assert described == "  3.500  worker 1 is killed at its next settle, after the commit"
