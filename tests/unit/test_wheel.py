"""The timing wheel: sentences about it, then a comparison with a heap over random histories."""

import gc
import weakref
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from duetime.runtime.wheel import Timer, Wheel

YEAR_9999 = 253_402_300_799_999
SLOTS = 1024

# Where the arithmetic of digits could go wrong: around the slots' edges on every level, and one level beyond a 48-bit clock.
edges = st.builds(lambda power, offset: max(0, 2**power + offset), st.integers(0, 62), st.integers(-2, 2))
spans = st.one_of(st.integers(0, 3), st.integers(0, 3 * SLOTS), st.integers(0, 3 * SLOTS**2), edges)
starts = st.one_of(st.just(0), st.integers(0, 2**48), edges)


def slept_through(wheel: Wheel[str]) -> list[tuple[int, list[str]]]:
    """Do as a sleeper does until the wheel is empty: ask, advance, ask again."""
    awake = []
    while (tick := wheel.next_deadline()) is not None:
        awake.append((tick, wheel.advance(tick)))
    return awake


def test_a_timer_expires_at_its_deadline_and_not_before() -> None:
    wheel: Wheel[str] = Wheel(100)
    wheel.insert(105, "a")
    assert wheel.advance(104) == []
    assert wheel.advance(105) == ["a"]
    assert wheel.advance(106) == []


@pytest.mark.parametrize("distance", [1, SLOTS - 1, SLOTS, SLOTS + 1, SLOTS**2, SLOTS**3 + 7, SLOTS**4 - 1, SLOTS**5, SLOTS**9])
def test_on_every_level_a_timer_expires_at_its_deadline_and_not_before(distance: int) -> None:
    wheel: Wheel[str] = Wheel(999)
    wheel.insert(999 + distance, "a")
    assert wheel.advance(998 + distance) == []
    assert len(wheel) == 1
    assert wheel.advance(999 + distance) == ["a"]
    assert len(wheel) == 0


def test_items_come_out_by_deadline_whatever_the_order_of_insertion() -> None:
    wheel: Wheel[int] = Wheel(0)
    deadlines = [5, 5000, 70, 3_000_000, 1024, 1023, 2, 1025, 4_999, YEAR_9999]
    for deadline in deadlines:
        wheel.insert(deadline, deadline)
    assert wheel.advance(YEAR_9999) == sorted(deadlines)


def test_equal_deadlines_come_out_in_the_order_of_insertion_even_when_inserted_on_different_levels() -> None:
    wheel: Wheel[str] = Wheel(0)
    wheel.insert(2_000_000, "from level 2")
    wheel.advance(1_999_000)
    wheel.insert(2_000_000, "from level 1")
    wheel.advance(1_999_990)
    wheel.insert(2_000_000, "from level 0")
    assert wheel.advance(2_000_000) == ["from level 2", "from level 1", "from level 0"]


def test_equal_items_are_separate_timers() -> None:
    wheel: Wheel[str] = Wheel(0)
    first, second = wheel.insert(10, "same"), wheel.insert(10, "same")
    assert first != second
    assert wheel.remove(first)
    assert wheel.advance(10) == ["same"]


def test_an_overdue_timer_expires_at_the_next_advance_even_of_no_length() -> None:
    wheel: Wheel[str] = Wheel(1000)
    wheel.insert(1000, "now")
    wheel.insert(-5, "before time began")
    wheel.insert(1001, "later")
    assert wheel.next_deadline() == 1000
    assert wheel.advance(1000) == ["before time began", "now"]
    assert wheel.advance(1001) == ["later"]


def test_overdue_timers_come_before_those_that_fall_due() -> None:
    wheel: Wheel[str] = Wheel(1000)
    wheel.insert(1003, "falls due")
    wheel.insert(1, "overdue")
    assert wheel.advance(2000) == ["overdue", "falls due"]


def test_an_overdue_timer_can_be_removed() -> None:
    wheel: Wheel[str] = Wheel(1000)
    timer = wheel.insert(7, "a")
    assert wheel.remove(timer)
    assert wheel.next_deadline() is None
    assert wheel.advance(1000) == []


def test_time_does_not_go_backwards() -> None:
    wheel: Wheel[str] = Wheel(1000)
    wheel.insert(500, "overdue")
    wheel.insert(1500, "later")
    assert wheel.advance(999) == []
    assert wheel.now == 1000
    assert len(wheel) == 2
    assert wheel.advance(1500) == ["overdue", "later"]


def test_removing_is_said_to_succeed_once() -> None:
    wheel: Wheel[str] = Wheel(0)
    timer = wheel.insert(10, "a")
    assert wheel.remove(timer)
    assert not wheel.remove(timer)
    assert wheel.advance(10) == []


@pytest.mark.parametrize("now", [10, 10_000, 10_000_000])
@pytest.mark.parametrize("deadline", [9, 10])
def test_an_expired_timer_cannot_be_removed(deadline: int, now: int) -> None:
    wheel: Wheel[str] = Wheel(0)
    timer = wheel.insert(deadline, "a")
    assert wheel.advance(now) == ["a"]
    wheel.insert(now + deadline, "a neighbour in the same slot")
    assert not wheel.remove(timer)
    assert len(wheel) == 1


def test_a_timer_that_has_moved_to_lower_levels_can_still_be_removed() -> None:
    wheel: Wheel[str] = Wheel(0)
    timer = wheel.insert(5_000_000, "a")
    wheel.insert(5_000_000, "b")
    for now in (4_500_000, 4_999_500, 4_999_999):
        assert wheel.advance(now) == []
    assert wheel.remove(timer)
    assert wheel.advance(5_000_000) == ["b"]


def test_a_timer_left_behind_in_a_slot_that_expired_in_part_cannot_be_removed_twice() -> None:
    wheel: Wheel[str] = Wheel(0)
    early, late = wheel.insert(2050, "early"), wheel.insert(2060, "late")
    assert wheel.advance(2055) == ["early"]
    assert not wheel.remove(early)
    assert wheel.remove(late)
    assert len(wheel) == 0


def test_an_empty_wheel_has_no_next_deadline() -> None:
    wheel: Wheel[str] = Wheel(0)
    assert wheel.next_deadline() is None
    timers = [wheel.insert(deadline, "a") for deadline in (3, 3000, 3_000_000)]
    for timer in timers:
        wheel.remove(timer)
    assert wheel.next_deadline() is None


def test_the_next_deadline_is_exact_on_level_0() -> None:
    wheel: Wheel[str] = Wheel(5 * SLOTS)
    wheel.insert(6 * SLOTS - 1, "b")
    first = wheel.insert(5 * SLOTS + 300, "a")
    assert wheel.next_deadline() == 5 * SLOTS + 300
    wheel.remove(first)
    assert wheel.next_deadline() == 6 * SLOTS - 1


def test_the_next_deadline_of_a_distant_timer_is_the_start_of_its_slot() -> None:
    wheel: Wheel[str] = Wheel(0)
    wheel.insert(3 * SLOTS**2 + 2 * SLOTS + 9, "a")
    assert slept_through(wheel) == [(3 * SLOTS**2, []), (3 * SLOTS**2 + 2 * SLOTS, []), (3 * SLOTS**2 + 2 * SLOTS + 9, ["a"])]


def test_the_year_9999_costs_a_sleeper_a_handful_of_wake_ups() -> None:
    wheel: Wheel[str] = Wheel(1_750_000_000_000)
    wheel.insert(YEAR_9999, "a")
    awake = slept_through(wheel)
    assert awake[-1] == (YEAR_9999, ["a"])
    assert len(awake) <= 5


def test_a_long_idle_gap_is_crossed_without_visiting_its_ticks() -> None:
    wheel: Wheel[str] = Wheel(0)
    wheel.insert(10**60, "a")
    assert wheel.advance(10**60 - 1) == []
    assert wheel.next_deadline() == 10**60


def test_a_negative_start_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Wheel(-1)


def test_a_removed_item_is_let_go_at_once() -> None:
    class Item:
        pass

    wheel: Wheel[Item] = Wheel(0)
    item = Item()
    timer = wheel.insert(5_000_000, item)
    reference = weakref.ref(item)
    wheel.remove(timer)
    del item
    assert reference() is None


def test_expired_and_removed_timers_are_freed_without_the_garbage_collector() -> None:
    wheel: Wheel[int] = Wheel(0)
    gc.collect()
    others = {id(thing) for thing in gc.get_objects() if isinstance(thing, Timer)}  # of wheels that other tests left behind
    gc.disable()
    try:
        for deadline in range(0, 5000, 10):
            wheel.insert(deadline, deadline)
        for timer in [wheel.insert(deadline, deadline) for deadline in range(0, 5000, 10)]:
            wheel.remove(timer)
        del timer
        wheel.advance(2015)
        wheel.advance(5000)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Timer) and id(thing) not in others]
    finally:
        gc.enable()


def test_a_timer_shows_its_deadline() -> None:
    wheel: Wheel[str] = Wheel(0)
    timer = wheel.insert(42, "a")
    assert timer.deadline == 42
    assert repr(timer) == "<Timer deadline=42>"


@given(start=starts, distances=st.lists(spans, max_size=60))
def test_a_sleeper_meets_every_deadline_exactly_and_wakes_in_vain_at_most_once_per_level(start: int, distances: list[int]) -> None:
    wheel: Wheel[str] = Wheel(start)
    for distance in distances:
        wheel.insert(start + distance, str(start + distance))
    awake = slept_through(wheel)
    met = [(tick, item) for tick, items in awake for item in items]
    assert met == [(start + distance, str(start + distance)) for distance in sorted(distances)]
    in_vain = sum(1 for _, items in awake if not items)
    levels = max((max(distances, default=0) + start).bit_length() // 10, 1)
    assert in_vain <= levels * len(set(distances))


class WheelBesideHeap(RuleBasedStateMachine):
    """Do the same to a wheel and to a heap of (deadline, number), and expect the same of both."""

    timers: Bundle[tuple[Timer[int], int]] = Bundle("timers")

    @initialize(start=starts)
    def begin(self, start: int) -> None:
        self.wheel: Wheel[int] = Wheel(start)
        self.now = start
        self.heap: list[tuple[int, int]] = []
        self.live: set[int] = set()
        self.numbers = count()

    def put(self, deadline: int) -> tuple[Timer[int], int]:
        number = next(self.numbers)
        heappush(self.heap, (deadline, number))
        self.live.add(number)
        return self.wheel.insert(deadline, number), number

    def earliest(self) -> int | None:
        return min((deadline for deadline, number in self.heap if number in self.live), default=None)

    @rule(target=timers, distance=spans)
    def insert_ahead(self, distance: int) -> tuple[Timer[int], int]:
        return self.put(self.now + distance)

    @rule(target=timers, distance=spans)
    def insert_overdue(self, distance: int) -> tuple[Timer[int], int]:
        return self.put(self.now - distance)

    @rule(target=timers, timer=timers)
    def insert_with_a_deadline_used_before(self, timer: tuple[Timer[int], int]) -> tuple[Timer[int], int]:
        return self.put(timer[0].deadline)

    @rule(timer=timers)
    def remove_a_timer_in_whatever_state(self, timer: tuple[Timer[int], int]) -> None:
        receipt, number = timer
        assert self.wheel.remove(receipt) == (number in self.live)
        self.live.discard(number)

    @rule(step=spans)
    def advance(self, step: int) -> None:
        self.advance_to(self.now + step)

    @rule(timer=timers, offset=st.integers(-1, 1))
    def advance_to_about_a_deadline(self, timer: tuple[Timer[int], int], offset: int) -> None:
        self.advance_to(timer[0].deadline + offset)

    def advance_to(self, now: int) -> None:
        expected = []
        if now >= self.now:
            self.now = now
            while self.heap and self.heap[0][0] <= now:
                _, number = heappop(self.heap)
                if number in self.live:
                    self.live.remove(number)
                    expected.append(number)
        assert self.wheel.advance(now) == expected
        assert self.wheel.now == self.now

    @rule()
    def advance_to_the_next_deadline(self) -> None:
        if (tick := self.wheel.next_deadline()) is not None:
            self.advance_to(tick)

    @invariant()
    def both_hold_as_many(self) -> None:
        assert len(self.wheel) == len(self.live)

    @rule()
    def the_next_deadline_is_never_late(self) -> None:
        earliest, answer = self.earliest(), self.wheel.next_deadline()
        if earliest is None:
            assert answer is None
        elif earliest <= self.now:
            assert answer == self.now
        elif earliest // SLOTS == self.now // SLOTS:
            assert answer == earliest
        else:
            assert answer is not None
            assert self.now < answer <= earliest

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.advance_to(max([self.now, *(deadline for deadline, _ in self.heap)]))
            assert len(self.wheel) == 0
            assert self.wheel.next_deadline() is None


WheelBesideHeap.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestWheelBesideHeap = WheelBesideHeap.TestCase
