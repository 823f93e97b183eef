"""All faults together, in short; `make chaos` is the long version."""

import random

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.ground import Ground
from tests.chaos.storm import Plan, Storm

SHORT = Plan(
    tasks=2_000,
    kills=5,
    freezes=2,
    crashes=1,
    long_outages=1,
    cuts=3,
    half_opens=1,
    lost_claims=2,
    lost_settles=1,
    steps=2,
    gates=1,
    fail_overs=1,
)


@pytest.mark.covers("REQ.3", "RED.2", "ATF.8")
async def test_a_storm_of_faults_loses_nothing_and_overlaps_nowhere(stormy: Fleet, ground: Ground) -> None:
    """Kills and freezes of workers with wrong clocks, crashes and fail-over of the server, cuts, lost replies, steps of its clock."""
    seed = random.randrange(1 << 32)
    report = await Storm(ground, stormy, SHORT, seed=seed).run()
    assert report.violations == [], f"with seed {seed}"
    assert report.tasks >= 0.9 * SHORT.tasks, "only those that the fail-over took back are not among them"
    assert report.busy_kills * 2 >= SHORT.kills, "most kills hit a worker in the middle of something, or this shows little"
