"""Counting attempts: many at once or one by one comes to the same, and what was counted can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import SECOND
from duetime.model.figures import ATTEMPTS, BEYOND, BOUNDS, DURATION, LATENESS, RETRIES, SUM, Distribution, FigureKey, distributions
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import State
from duetime.worker.metrics import Spread, Tally

DUE = 1_800_000_000 * SECOND


def settled(started_at: int | None, finished_at: int, outcome: Outcome = Outcome.SUCCEEDED, state: State = State.SUCCEEDED) -> Settlement:
    return Settlement("task", 1, outcome, state, 0, 0, started_at, finished_at)


near_bounds = st.sampled_from(BOUNDS).flatmap(lambda bound: st.integers(bound - 2, bound + 2))
values = st.one_of(near_bounds, st.integers(0, 2 * BOUNDS[-1]), st.integers(0, 1_000))


@given(st.lists(values, min_size=1, max_size=60))
def test_many_values_at_once_are_counted_as_one_by_one(numbers: list[int]) -> None:
    together, one_by_one = Spread(), Spread()
    together.add_many(list(numbers))
    for number in numbers:
        one_by_one.add(number)
    assert (together.counts, together.sum) == (one_by_one.counts, one_by_one.sum)
    assert sum(together.counts) == len(numbers)
    for index, bound in enumerate(BOUNDS):
        assert sum(together.counts[: index + 1]) == sum(number <= bound for number in numbers)


@given(st.lists(st.tuples(values, st.integers(0, 5_000)), min_size=1, max_size=40))
def test_successes_in_a_row_are_counted_as_one_by_one(attempts: list[tuple[int, int]]) -> None:
    settlements, due, now = [], [], DUE
    for late, took in attempts:
        settlements.append(settled(now, now + took))
        due.append(now - late)
        now += took
    together, one_by_one = Tally(), Tally()
    together.note_successes(settlements, due, DUE)
    for settlement, due_at in zip(settlements, due, strict=True):
        one_by_one.note(settlement, due_at)
    assert dict(together.totals("work")) == dict(one_by_one.totals("work"))
    with_others_between = Tally()
    with_others_between.note_successes(settlements, due, None)
    assert dict(with_others_between.totals("work")) == dict(one_by_one.totals("work"))


def test_a_clock_that_was_set_back_takes_nothing_back() -> None:
    spread = Spread()
    spread.add(-5 * SECOND)
    spread.add_many([-SECOND] * 20)
    assert (spread.counts[0], spread.sum) == (21, 0)


def test_an_attempt_is_counted_by_its_outcome_and_as_a_retry_if_it_is_tried_again() -> None:
    tally = Tally()
    tally.note(settled(DUE + SECOND, DUE + 3 * SECOND, Outcome.FAILED, State.PENDING), DUE)
    tally.note(settled(DUE, DUE, Outcome.FAILED, State.FAILED), DUE)
    tally.note(settled(DUE, DUE, Outcome.RETRY_LATER, State.PENDING), DUE)
    tally.note(settled(None, DUE, Outcome.RELEASED, State.PENDING), DUE)
    totals = dict(tally.totals("work"))
    assert totals[FigureKey(ATTEMPTS, "work", "failed")] == 2
    assert totals[FigureKey(ATTEMPTS, "work", "retry_later")] == 1
    assert FigureKey(ATTEMPTS, "work", "released") not in totals, "it never began"
    assert totals[FigureKey(RETRIES, "work")] == 1
    assert totals[FigureKey(LATENESS, "work", str(SECOND))] == 1
    assert totals[FigureKey(DURATION, "work", SUM)] == 2 * SECOND


def test_a_handler_that_ran_nothing_has_nothing_to_write_and_no_empty_bucket_is_written() -> None:
    tally = Tally()
    assert list(tally.totals("work")) == []
    tally.note(settled(DUE, DUE + SECOND, Outcome.SUCCEEDED, State.SUCCEEDED), DUE)
    assert all(count for _, count in tally.totals("work"))


def test_counts_are_read_back_as_distributions_also_those_of_a_version_with_other_bounds() -> None:
    figures = {
        FigureKey(LATENESS, "a", str(BOUNDS[0])): 3,
        FigureKey(LATENESS, "a", "7000000"): 2,
        FigureKey(LATENESS, "a", BEYOND): 1,
        FigureKey(LATENESS, "a", SUM): 9 * SECOND,
        FigureKey(LATENESS, "b", str(BOUNDS[0])): 1,
        FigureKey(DURATION, "a", str(BOUNDS[0])): 7,
    }
    found = distributions(figures, LATENESS)
    assert list(found) == ["a", "b"]
    upto = dict(found["a"].buckets)
    assert (upto[0.001], upto[5.0], upto[7.0], upto[3600.0], upto[None]) == (3, 3, 5, 5, 6)
    assert (found["a"].count, found["a"].sum, found["b"].count) == (6, 9.0, 1)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 1.0), (0.25, 0.5), (0.75, 2.0), (1.0, 3.0)])
def test_a_quantile_is_estimated_within_its_bucket(share: float, expected: float) -> None:
    assert Distribution(((1.0, 2), (3.0, 4), (None, 4)), 0.0).quantile(share) == expected


def test_a_quantile_beyond_the_last_bound_is_that_bound_and_without_values_there_is_none() -> None:
    assert Distribution(((1.0, 0), (None, 3)), 0.0).quantile(0.5) == 1.0
    assert Distribution(((1.0, 0), (None, 0)), 0.0).quantile(0.5) is None
