"""What a process remembers of its claims on PostgreSQL: which slices of them a batch of settlements ends."""

from __future__ import annotations

import pytest

from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import State
from duetime.store.postgres.open_claims import SMALLEST_SLICE, OpenClaims, Slice

MANY = 2 * SMALLEST_SLICE
ONE, TWO = [f"a{number}" for number in range(MANY)], [f"b{number}" for number in range(MANY)]


def settlements(ids: list[str], result: bytes | None = None, state: State = State.SUCCEEDED) -> list[Settlement]:
    outcome = Outcome.SUCCEEDED if state is State.SUCCEEDED else Outcome.FAILED
    return [Settlement(each, 1, outcome, state, 0, 0, 1, 2, None, result) for each in ids]


@pytest.fixture
def claims() -> OpenClaims:
    claims = OpenClaims()
    claims.add(1, ONE)
    claims.add(2, TWO)
    return claims


@pytest.mark.parametrize(
    ("ids", "slices"),
    [
        (ONE, [Slice(1, 1, MANY)]),
        (ONE + TWO, [Slice(1, 1, MANY), Slice(2, 1, MANY)]),
        (ONE[SMALLEST_SLICE:] + TWO[:SMALLEST_SLICE], [Slice(1, SMALLEST_SLICE + 1, SMALLEST_SLICE), Slice(2, 1, SMALLEST_SLICE)]),
        (TWO[7 : 7 + SMALLEST_SLICE], [Slice(2, 8, SMALLEST_SLICE)]),
        (ONE[:40] + TWO, [Slice(1, 1, 40), Slice(2, 1, MANY)]),
        (ONE[: SMALLEST_SLICE - 1] + TWO, None),
        (TWO + ONE, None),  # everybody locks claims in rising order
        (ONE[:SMALLEST_SLICE] + TWO + ONE[SMALLEST_SLICE:], None),
        (ONE[: SMALLEST_SLICE - 1], None),
        (ONE[::-1], None),
        (ONE[:40] + ONE[41:], None),
        ([*ONE, "unknown"], None),
    ],
)
def test_neighbouring_tasks_of_a_claim_are_settled_as_slices(claims: OpenClaims, ids: list[str], slices: list[Slice] | None) -> None:
    assert claims.slices(settlements(ids)) == slices


def test_only_plain_successes_go_the_short_way(claims: OpenClaims) -> None:
    assert claims.slices([*settlements(ONE[:-1]), *settlements(ONE[-1:], result=b"1")]) is None
    assert claims.slices([*settlements(ONE[:-1]), *settlements(ONE[-1:], state=State.FAILED)]) is None


def test_what_has_ended_is_forgotten_and_the_rest_still_known(claims: OpenClaims) -> None:
    claims.forget(settlements(ONE[:10]))
    assert claims.slices(settlements(ONE[:SMALLEST_SLICE])) is None
    assert claims.slices(settlements(ONE[10:])) == [Slice(1, 11, MANY - 10)]
    claims.forget(settlements([*ONE[10:], "unknown"]))
    assert claims.claims_of(settlements(ONE)) is None
    assert claims.claims_of(settlements(TWO)) == [2]
    claims.add(3, ONE)  # they may be claimed again
    assert claims.slices(settlements(TWO + ONE)) == [Slice(2, 1, MANY), Slice(3, 1, MANY)]


def test_slices_are_forgotten_as_their_tasks_one_by_one_would_be(claims: OpenClaims) -> None:
    claims.forget(settlements(ONE[3:5]))
    claims.forget_slices([Slice(1, 1, 40), Slice(2, 1, MANY)])
    assert claims.claims_of(settlements(ONE[:1])) is None
    assert claims.claims_of(settlements(ONE[40:])) == [1]
    assert claims.slices(settlements(ONE[-SMALLEST_SLICE + 8 :])) is None, "too few"
    claims.forget_slices([Slice(1, 41, MANY - 40), Slice(2, 1, MANY)])  # the second claim is gone already
    assert claims.claims_of(settlements(ONE[40:41])) is None
    claims.add(3, ONE)
    assert claims.slices(settlements(ONE)) == [Slice(3, 1, MANY)]


@pytest.mark.parametrize(
    ("ended", "at_most", "size"), [(MANY, 500, MANY), (MANY - 1, 500, 0), (MANY + 5, 500, MANY), (2 * MANY, MANY + 9, MANY)]
)
def test_a_batch_ends_where_a_claim_does(claims: OpenClaims, ended: int, at_most: int, size: int) -> None:
    assert claims.portion(settlements((ONE + TWO)[:ended]), at_most) == size
