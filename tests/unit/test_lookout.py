"""When a feeder looks for work: at the instant it knows of, after a hint, once a second, and later after lost races."""

import pytest

from duetime.clock import MILLISECOND, SECOND, Instant
from duetime.worker.lookout import FIRST_DELAY, FORGET_AFTER, LONGEST_DELAY_AFTER_HINTS, LONGEST_DELAY_WHEN_DUE, LONGEST_SLEEP, Lookout

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
def lookout(clocks: Clocks) -> Lookout:
    """A lookout that has looked and knows of no task."""
    made = Lookout()
    assert made.due(clocks.now, clocks.seconds), "the first look is at once"
    in_vain(made, clocks, next_at=None)
    return made


def in_vain(lookout: Lookout, clocks: Clocks, *, next_at: Instant | None) -> None:
    reasons = lookout.begin(clocks.now, clocks.seconds)
    lookout.found_nothing(reasons, clocks.seconds, now=clocks.now, next_at=next_at)


def delay(lookout: Lookout, clocks: Clocks) -> float:
    """Return how many seconds after a hint it looks."""
    lookout.on_hint(None, clocks.now)
    return lookout.pause(clocks.now, clocks.seconds)


def test_without_anything_in_sight_it_looks_once_a_second(lookout: Lookout, clocks: Clocks) -> None:
    assert lookout.pause(clocks.now, clocks.seconds) == LONGEST_SLEEP
    clocks.move(LONGEST_SLEEP)
    assert lookout.due(clocks.now, clocks.seconds)


def test_it_looks_at_the_instant_it_knows_of_and_never_before(lookout: Lookout, clocks: Clocks) -> None:
    lookout.know(clocks.now + 300 * MILLISECOND, clocks.now)
    lookout.know(clocks.now + 200 * MILLISECOND, clocks.now)
    clocks.move(0.1)
    lookout.know(clocks.now + 500 * MILLISECOND, clocks.now)
    assert lookout.pause(clocks.now, clocks.seconds) == pytest.approx(0.1)
    clocks.move(0.0999)
    assert not lookout.due(clocks.now, clocks.seconds)
    clocks.move(0.0002)
    assert lookout.due(clocks.now, clocks.seconds)


def test_a_hint_of_work_now_is_followed_at_once_and_one_of_later_work_later(lookout: Lookout, clocks: Clocks) -> None:
    lookout.on_hint(clocks.now + 50 * MILLISECOND, clocks.now)
    assert lookout.pause(clocks.now, clocks.seconds) == pytest.approx(0.05)
    lookout.on_hint(clocks.now - 50 * SECOND, clocks.now)
    assert lookout.due(clocks.now, clocks.seconds)


def test_a_look_that_failed_is_repeated(lookout: Lookout, clocks: Clocks) -> None:
    lookout.begin(clocks.now, clocks.seconds)
    assert lookout.due(clocks.now, clocks.seconds)


def test_each_lost_race_delays_the_next_look_more_up_to_a_limit(lookout: Lookout, clocks: Clocks) -> None:
    delays = []
    for _ in range(8):
        delays.append(delay(lookout, clocks))
        clocks.move(delays[-1] + 1e-5)
        in_vain(lookout, clocks, next_at=None)
        clocks.move(0.01)
    assert delays[:3] == [0.0, FIRST_DELAY, 2 * FIRST_DELAY]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_AFTER_HINTS


def test_after_finding_something_it_looks_again_at_once(lookout: Lookout, clocks: Clocks) -> None:
    delay(lookout, clocks)
    in_vain(lookout, clocks, next_at=None)
    assert delay(lookout, clocks) == FIRST_DELAY
    lookout.found(clocks.seconds)
    lookout.begin(clocks.now, clocks.seconds)
    lookout.found(clocks.seconds)
    assert delay(lookout, clocks) == 0.0


def test_lost_races_are_forgotten_after_a_while(lookout: Lookout, clocks: Clocks) -> None:
    for _ in range(5):
        clocks.move(delay(lookout, clocks) + 1e-5)
        in_vain(lookout, clocks, next_at=None)
    clocks.move(FORGET_AFTER)
    assert delay(lookout, clocks) == 0.0
    in_vain(lookout, clocks, next_at=None)
    assert delay(lookout, clocks) == FIRST_DELAY


def test_a_look_too_early_by_the_stores_clock_is_no_lost_race(lookout: Lookout, clocks: Clocks) -> None:
    due_at = clocks.now + 10 * MILLISECOND
    lookout.know(due_at, clocks.now)
    clocks.move(0.011)
    reasons = lookout.begin(clocks.now, clocks.seconds)
    lookout.found_nothing(reasons, clocks.seconds, now=due_at - 100, next_at=due_at)
    lookout.know(due_at, clocks.now)
    assert lookout.due(clocks.now, clocks.seconds)


def test_it_pauses_between_looks_that_find_everything_locked_by_others(lookout: Lookout, clocks: Clocks) -> None:
    lookout.know(clocks.now, clocks.now)
    for _ in range(3):
        assert lookout.pause(clocks.now, clocks.seconds) < LONGEST_DELAY_WHEN_DUE
        clocks.move(lookout.pause(clocks.now, clocks.seconds) + 1e-5)
        in_vain(lookout, clocks, next_at=clocks.now)
        lookout.know(clocks.now, clocks.now)
    assert lookout.pause(clocks.now, clocks.seconds) > FIRST_DELAY


def test_hints_about_others_tasks_do_not_delay_what_is_known_of_ours(lookout: Lookout, clocks: Clocks) -> None:
    for _ in range(5):
        clocks.move(delay(lookout, clocks) + 1e-5)
        in_vain(lookout, clocks, next_at=None)
    lookout.know(clocks.now + 5 * MILLISECOND, clocks.now)
    assert lookout.pause(clocks.now, clocks.seconds) == pytest.approx(0.005)


def test_a_look_once_a_second_that_finds_nothing_is_no_lost_race(lookout: Lookout, clocks: Clocks) -> None:
    clocks.move(LONGEST_SLEEP)
    in_vain(lookout, clocks, next_at=None)
    assert delay(lookout, clocks) == 0.0
