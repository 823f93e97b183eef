"""A hierarchical timing wheel: what is due, and when to look again, in constant time.

A plain data structure: it has no clock, no threads and no callbacks. Ticks are integers whose unit is the caller's; a
millisecond suits timers. Each level has 1,024 slots, and one slot of a level spans all slots of the level below:

| level | a slot spans | with ticks of 1 ms | the level reaches |
| ----- | ------------ | ------------------ | ----------------- |
| 0     | 1 tick       | 1 ms               | 1.02 s            |
| 1     | 2**10 ticks  | 1.02 s             | 17.5 min          |
| 2     | 2**20 ticks  | 17.5 min           | 12.4 days         |
| 3     | 2**30 ticks  | 12.4 days          | 34.8 years        |
| 4     | 2**40 ticks  | 34.8 years         | 35,700 years      |
| n     | 2**(10 n)    |                    | levels are added when a deadline needs them, so none is too far |

Read ticks as numbers in base 1,024. A timer lies on the level of the highest digit in which its deadline differs from now, in
the slot which that digit names. It stays there, however time moves, until now enters the slot; then the timer is expired or
moved to a lower level. A timer is therefore moved at most once per level (a ten-minute timer once or twice), and what lies on
a level is always due before what lies on the level above.

| operation      | cost                                                                                 |
| -------------- | ------------------------------------------------------------------------------------ |
| insert, remove | constant                                                                             |
| advance        | levels + timers expired + timers moved down; ticks and slots without timers are free |
| next_deadline  | levels + slots that removals have left empty, each counted once                      |

A step that skips a whole slot above level 0 sorts what was in it. Entering a slot moves all its timers in one go: a million
timers within one slot of level 2 stall the advance that enters it for most of a second.

Why 1,024 slots: with 64 a ten-minute timer is moved three times instead of once. Why a dictionary per slot: it keeps the order
of insertion, removes in constant time and frees what was removed at once, and a whole slot expires without a line of Python
per timer. Figures: `bench/wheel.py`.
"""

from operator import attrgetter
from typing import Final, Generic, TypeVar

__all__ = ["Timer", "Wheel"]

T = TypeVar("T")

_DIGIT_BITS: Final = 10
_DIGIT_MASK: Final = (1 << _DIGIT_BITS) - 1
_ABSENT: Final = object()
_deadline_of = attrgetter("deadline")


class Timer(Generic[T]):
    """The receipt for one insertion, for `Wheel.remove`. Compared and hashed by identity."""

    # No __init__: with one, making a timer takes 0.22 µs instead of 0.14 (CPython 3.11), in the hottest line of the wheel.
    __slots__ = ("_bucket", "deadline")
    deadline: int
    _bucket: "dict[Timer[T], T]"

    def __repr__(self) -> str:
        return f"<Timer deadline={self.deadline}>"


class Wheel(Generic[T]):
    """Hold items until their deadlines. Not safe for use by several threads at once."""

    __slots__ = ("_count", "_levels", "_now", "_occupied", "_overdue")

    def __init__(self, now: int) -> None:
        if now < 0:
            raise ValueError(f"now must be a tick of at least 0, got {now}")
        self._now = now
        self._count = 0
        self._overdue: dict[Timer[T], T] = {}
        # Per level: the buckets by slot, where the key is the deadline without the digits below the level, and a bitmap of
        # the slots that have a bucket. Removals leave empty buckets behind; the next operation that finds one discards it.
        self._levels: list[dict[int, dict[Timer[T], T]]] = []
        self._occupied: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def now(self) -> int:
        """The latest tick that the wheel was advanced to."""
        return self._now

    def insert(self, deadline: int, item: T) -> Timer[T]:
        """Hold `item` until `deadline`; one that has passed already expires at the next advance."""
        bucket = self._bucket_for(deadline)
        timer: Timer[T] = Timer()
        timer.deadline = deadline
        timer._bucket = bucket
        bucket[timer] = item
        self._count += 1
        return timer

    def remove(self, timer: Timer[T]) -> bool:
        """Forget a timer of this wheel. False if it has expired or was removed before."""
        if timer._bucket.pop(timer, _ABSENT) is _ABSENT:
            return False
        self._count -= 1
        return True

    def advance(self, now: int) -> list[T]:
        """Move time to `now` and return the items due by then, by deadline, equal ones in the order of their insertion.

        Time does not go backwards: a `now` before the latest one changes nothing and returns nothing.
        """
        expired: list[T] = []
        before = self._now
        if now < before:
            return expired
        self._now = now
        if self._overdue:
            _expire_by_deadline(self._overdue, expired)
        for level, occupied in enumerate(self._occupied):
            shift = level * _DIGIT_BITS
            went_round = (before ^ now) >> shift > _DIGIT_MASK
            if occupied:
                if went_round:
                    self._expire_slots(level, occupied, before, expired)
                elif level == 0:
                    self._expire_slots(level, occupied & ((2 << (now & _DIGIT_MASK)) - 1), before, expired)
                else:
                    entered = 1 << (now >> shift & _DIGIT_MASK)
                    self._expire_slots(level, occupied & (entered - 1), before, expired)
                    if occupied & entered:
                        self._occupied[level] ^= entered
                        self._move_down(self._levels[level].pop(now >> shift), expired)
            if not went_round:
                break
        self._count -= len(expired)
        return expired

    def next_deadline(self) -> int | None:
        """Return when to advance next: nothing expires before that tick. None if the wheel is empty.

        Exact for what lies on level 0. For a timer further away it is the start of the slot in which it lies, which is not
        after its deadline. A caller that sleeps until then and advances wakes up in vain at most once per level. An exact
        answer would have to search a slot of any size. An overdue timer counts as due now.
        """
        if self._overdue:
            return self._now
        for level, buckets in enumerate(self._levels):
            shift = level * _DIGIT_BITS
            while occupied := self._occupied[level]:
                slot = _slot_of_lowest(occupied, self._now >> shift)
                if buckets[slot]:
                    return slot << shift
                del buckets[slot]
                self._occupied[level] = occupied & (occupied - 1)
        return None

    def _bucket_for(self, deadline: int) -> dict[Timer[T], T]:
        """Find or make the bucket in which a timer lies now."""
        now = self._now
        if deadline <= now:
            return self._overdue
        level = ((deadline ^ now).bit_length() - 1) // _DIGIT_BITS
        slot = deadline >> level * _DIGIT_BITS
        try:
            return self._levels[level][slot]
        except (IndexError, KeyError):
            return self._open(level, slot)

    def _open(self, level: int, slot: int) -> dict[Timer[T], T]:
        while level >= len(self._levels):
            self._levels.append({})
            self._occupied.append(0)
        self._occupied[level] |= 1 << (slot & _DIGIT_MASK)
        bucket: dict[Timer[T], T] = {}
        self._levels[level][slot] = bucket
        return bucket

    def _expire_slots(self, level: int, passed: int, before: int, expired: list[T]) -> None:
        """Expire the slots of a bitmap, all of which lie in the past; `before` is a tick of the same round of the level."""
        buckets = self._levels[level]
        before >>= level * _DIGIT_BITS
        self._occupied[level] ^= passed
        while passed:
            bucket = buckets.pop(_slot_of_lowest(passed, before))
            passed &= passed - 1
            if level:
                _expire_by_deadline(bucket, expired)
            else:  # One tick: they are in order already.
                expired.extend(bucket.values())
                bucket.clear()

    def _move_down(self, bucket: dict[Timer[T], T], expired: list[T]) -> None:
        """Empty the bucket of a slot that now has entered: expire what is due, move the rest to lower levels.

        All that was on lower levels has expired before, so the order of insertion does not change.
        """
        now = self._now
        due: dict[Timer[T], T] = {}
        for timer, item in bucket.items():
            if timer.deadline <= now:
                due[timer] = item
            else:
                timer._bucket = target = self._bucket_for(timer.deadline)
                target[timer] = item
        bucket.clear()
        _expire_by_deadline(due, expired)


def _slot_of_lowest(occupied: int, slot: int) -> int:
    """Turn the lowest bit of a level's bitmap into the number of its slot, given any slot of the same round."""
    return (slot & ~_DIGIT_MASK) + (occupied & -occupied).bit_length() - 1


def _expire_by_deadline(bucket: dict[Timer[T], T], expired: list[T]) -> None:
    """Empty a bucket; by that its timers know, too, that they are no longer in the wheel."""
    expired.extend(map(bucket.__getitem__, sorted(bucket, key=_deadline_of)))
    bucket.clear()
