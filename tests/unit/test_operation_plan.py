"""What an operation is about to do, in words."""

from __future__ import annotations

import pytest

from duetime.model.operation import Canary, plan_text

STAGES = ", each stage when the one before it has ended; it stops when more than 10 % of a stage fail again"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 task first; it stops when more than 10 % of a stage fail again"),
        (2, f"1 task first, then 1 (1 %){STAGES}"),
        (3, f"1 task first, then 1 (1 %), then the other 1{STAGES}"),
        (1_200, f"1 task first, then 12 (1 %), then the other 1,187{STAGES}"),
    ],
)
def test_a_plan_names_the_stages_of_a_canary_that_have_tasks(count: int, said: str) -> None:
    assert plan_text(count, Canary()) == said


def test_a_plan_names_shares_and_rates_that_somebody_chose() -> None:
    chosen = plan_text(1_000, Canary(share=2.5, failed=0), 50)
    assert chosen.startswith("1 task first, then 25 (2.5 %), then the other 974,")
    assert chosen.endswith(", at most 50 a second; it stops when more than 0 % of a stage fail again")
    assert plan_text(1, None, 0.5) == "1 task, one batch after the other, at most 0.5 a second"
    assert plan_text(1_200) == "1,200 tasks, one batch after the other"
