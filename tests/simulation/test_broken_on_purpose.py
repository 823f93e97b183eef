"""Each guard is taken away once, and simulated worlds must show it: a checker that never fails proves nothing."""

import pytest

from tests.simulation.broken import first_seed
from tests.simulation.guards import GUARDS

SEEDS = 1_000
SOON = (
    "leases_are_awaited",
    "gates_are_checked_at_starts",
    "nothing_starts_early",
    "losses_are_no_tries",
    "children_need_success",
    "open_attempts_count",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take all guards away only in the longest run: some are missed in few worlds."""
    if "guard" in metafunc.fixturenames:
        metafunc.parametrize("guard", tuple(GUARDS) if metafunc.config.getoption("--scope") == "everything" else SOON)


@pytest.mark.slow
def test_a_missing_guard_is_found_within_a_thousand_seeds(guard: str) -> None:
    assert first_seed(guard, SEEDS) is not None


def test_there_are_at_least_fifteen_guards() -> None:
    assert len(GUARDS) >= 15
    assert set(SOON) <= GUARDS.keys()
