"""Promises hold in simulated worlds, whatever goes wrong in them; each seed is another world. `make simulate` runs more of them."""

import pytest

from duetime.testing.simulation.faults import Fault
from tests.simulation.__main__ import explained, run
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Outcome, Plan, plan, simulate

CHUNK = 100
CHUNKS = 4


def hold(seeds: range) -> None:
    failed = run(seeds).failed
    assert not failed, explained(simulate(plan(failed[0])), timeline=False)


def test_promises_hold_in_some_worlds() -> None:
    hold(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_in_hundreds_of_worlds(chunk: int) -> None:
    hold(range(6 + chunk * CHUNK, 6 + (chunk + 1) * CHUNK))


@pytest.mark.parametrize("seed", [12])
def test_a_world_is_the_same_each_time(seed: int) -> None:
    assert simulate(plan(seed)).history == simulate(plan(seed)).history


def test_worlds_have_faults_of_every_kind_and_tasks_that_run_again() -> None:
    outcomes = [simulate(plan(seed)) for seed in range(4)]
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
