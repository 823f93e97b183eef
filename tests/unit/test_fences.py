"""Fences grow, whatever the store has lost."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import SECOND, to_instant
from duetime.model.fences import ATTEMPTS, fence_of, next_epoch

NOW = to_instant(datetime(2026, 11, 18, tzinfo=UTC))
instants = st.integers(0, to_instant(datetime(2150, 1, 1, tzinfo=UTC)))


def test_before_anything_was_lost_a_fence_is_the_attempts_number() -> None:
    assert [fence_of(0, attempt) for attempt in (1, 2, 1_000_000)] == [1, 2, 1_000_000]


@given(first=instants, then=instants, attempts=st.integers(1, ATTEMPTS - 1), again=st.integers(1, ATTEMPTS - 1))
def test_every_fence_of_a_later_epoch_is_higher_also_if_the_clock_was_set_back(first: int, then: int, attempts: int, again: int) -> None:
    epoch = next_epoch(0, first)
    assert fence_of(next_epoch(epoch, then), again) > fence_of(epoch, attempts) > attempts


def test_two_copies_that_know_of_no_epoch_begin_different_ones_at_different_times() -> None:
    assert next_epoch(0, NOW) < next_epoch(0, NOW + SECOND)


@given(now=instants, attempt=st.integers(1, ATTEMPTS))
def test_a_number_in_javascript_holds_it(now: int, attempt: int) -> None:
    assert fence_of(next_epoch(0, now), attempt) <= 2**53 - 1
