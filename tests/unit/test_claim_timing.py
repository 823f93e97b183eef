"""When a feeder looks for work: at the instant it knows of, after a hint, once a second, and later after lost races."""

import pytest

from duetime.clock import MILLISECOND, SECOND, Instant
from duetime.worker.claim_timing import (
    FIRST_DELAY,
    FORGET_AFTER,
    LONGEST_DELAY_AFTER_HINTS,
    LONGEST_DELAY_WHEN_DUE,
    LONGEST_SLEEP,
    ClaimTiming,
)

START = 1_800_000_000 * SECOND


class Clocks:
    """The store's clock and the monotonic one, moved together."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    @property
    def now(self) -> Instant:
        return START + round((self.seconds - 1_000.0) * SECOND)

    def move(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def timing(clocks: Clocks) -> ClaimTiming:
    """A timing that has looked and knows of no task."""
    made = ClaimTiming()
    assert made.due(clocks.now, clocks.seconds), "the first look is at once"
    in_vain(made, clocks, next_at=None)
    return made


def in_vain(timing: ClaimTiming, clocks: Clocks, *, next_at: Instant | None) -> None:
    reasons = timing.begin(clocks.now, clocks.seconds)
    timing.found_nothing(reasons, clocks.seconds, now=clocks.now, next_at=next_at)


def delay(timing: ClaimTiming, clocks: Clocks) -> float:
    """Return how many seconds after a hint it looks."""
    timing.on_hint(None, clocks.now)
    return timing.pause(clocks.now, clocks.seconds)


def test_without_anything_in_sight_it_looks_once_a_second(timing: ClaimTiming, clocks: Clocks) -> None:
    assert timing.pause(clocks.now, clocks.seconds) == LONGEST_SLEEP
    clocks.move(LONGEST_SLEEP)
    assert timing.due(clocks.now, clocks.seconds)


def test_it_looks_at_the_instant_it_knows_of_and_never_before(timing: ClaimTiming, clocks: Clocks) -> None:
    timing.know(clocks.now + 300 * MILLISECOND, clocks.now)
    timing.know(clocks.now + 200 * MILLISECOND, clocks.now)
    clocks.move(0.1)
    timing.know(clocks.now + 500 * MILLISECOND, clocks.now)
    assert timing.pause(clocks.now, clocks.seconds) == pytest.approx(0.1)
    clocks.move(0.0999)
    assert not timing.due(clocks.now, clocks.seconds)
    clocks.move(0.0002)
    assert timing.due(clocks.now, clocks.seconds)


def test_a_hint_of_work_now_is_followed_at_once_and_one_of_later_work_later(timing: ClaimTiming, clocks: Clocks) -> None:
    timing.on_hint(clocks.now + 50 * MILLISECOND, clocks.now)
    assert timing.pause(clocks.now, clocks.seconds) == pytest.approx(0.05)
    timing.on_hint(clocks.now - 50 * SECOND, clocks.now)
    assert timing.due(clocks.now, clocks.seconds)


def test_a_look_that_failed_is_repeated(timing: ClaimTiming, clocks: Clocks) -> None:
    timing.begin(clocks.now, clocks.seconds)
    assert timing.due(clocks.now, clocks.seconds)


def test_each_lost_race_delays_the_next_look_more_up_to_a_limit(timing: ClaimTiming, clocks: Clocks) -> None:
    delays = []
    for _ in range(8):
        delays.append(delay(timing, clocks))
        clocks.move(delays[-1] + 1e-5)
        in_vain(timing, clocks, next_at=None)
        clocks.move(0.01)
    assert delays[:3] == [0.0, FIRST_DELAY, 2 * FIRST_DELAY]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_AFTER_HINTS


def test_after_finding_something_it_looks_again_at_once(timing: ClaimTiming, clocks: Clocks) -> None:
    delay(timing, clocks)
    in_vain(timing, clocks, next_at=None)
    assert delay(timing, clocks) == FIRST_DELAY
    timing.found(clocks.seconds)
    timing.begin(clocks.now, clocks.seconds)
    timing.found(clocks.seconds)
    assert delay(timing, clocks) == 0.0


def test_lost_races_are_forgotten_after_a_while(timing: ClaimTiming, clocks: Clocks) -> None:
    for _ in range(5):
        clocks.move(delay(timing, clocks) + 1e-5)
        in_vain(timing, clocks, next_at=None)
    clocks.move(FORGET_AFTER)
    assert delay(timing, clocks) == 0.0
    in_vain(timing, clocks, next_at=None)
    assert delay(timing, clocks) == FIRST_DELAY


def test_a_look_too_early_by_the_stores_clock_is_no_lost_race(timing: ClaimTiming, clocks: Clocks) -> None:
    due_at = clocks.now + 10 * MILLISECOND
    timing.know(due_at, clocks.now)
    clocks.move(0.011)
    reasons = timing.begin(clocks.now, clocks.seconds)
    timing.found_nothing(reasons, clocks.seconds, now=due_at - 100, next_at=due_at)
    timing.know(due_at, clocks.now)
    assert timing.due(clocks.now, clocks.seconds)


def test_it_pauses_between_looks_that_find_everything_locked_by_others(timing: ClaimTiming, clocks: Clocks) -> None:
    timing.know(clocks.now, clocks.now)
    for _ in range(3):
        assert timing.pause(clocks.now, clocks.seconds) < LONGEST_DELAY_WHEN_DUE
        clocks.move(timing.pause(clocks.now, clocks.seconds) + 1e-5)
        in_vain(timing, clocks, next_at=clocks.now)
        timing.know(clocks.now, clocks.now)
    assert timing.pause(clocks.now, clocks.seconds) > FIRST_DELAY


def test_hints_about_others_tasks_do_not_delay_what_is_known_of_ours(timing: ClaimTiming, clocks: Clocks) -> None:
    for _ in range(5):
        clocks.move(delay(timing, clocks) + 1e-5)
        in_vain(timing, clocks, next_at=None)
    timing.know(clocks.now + 5 * MILLISECOND, clocks.now)
    assert timing.pause(clocks.now, clocks.seconds) == pytest.approx(0.005)


def test_a_look_once_a_second_that_finds_nothing_is_no_lost_race(timing: ClaimTiming, clocks: Clocks) -> None:
    clocks.move(LONGEST_SLEEP)
    in_vain(timing, clocks, next_at=None)
    assert delay(timing, clocks) == 0.0
