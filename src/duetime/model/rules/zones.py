"""Time zones as stretches of constant offset.

Calling `zoneinfo` for every candidate costs more than the rest of an evaluation. A zone is therefore read once per stretch of
388 days and cached as *segments* in which the offset does not change.

Terms: *at* is a real second since the epoch, *wall* is what a clock on the wall in that zone shows then, as seconds since the
epoch of the wall's own calendar (wall = at + offset). Where the wall jumps forward there is a gap, where it jumps back a fold.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duetime.model.rules.reading import DAY_SECONDS, FIRST_SECOND, LAST_SECOND

_CHUNK_BITS = 25
# No zone has ever changed its offset twice within seven days less an hour (Gaza in 2040, Recife in 2000 are the closest).
_STEP = 3 * DAY_SECONDS
_ONE_SECOND = timedelta(seconds=1)


class Segment(NamedTuple):
    """Real seconds from `start` up to `end`, all at one offset.

    `top` is the wall time that the wall had already reached, exclusive, before this segment began: in the second pass of a fold
    it lies ahead of the wall, otherwise behind it.
    """

    start: int
    end: int
    offset: int
    top: int


class Zone:
    """The segments of one IANA zone; made by `zone_of`, shared by all rules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._info = ZoneInfo(name)
        self._chunks: dict[int, tuple[Segment, ...]] = {}

    def segment(self, at: int) -> Segment:
        """Return the segment of a real second."""
        chunk = self._chunks.get(at >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[at >> _CHUNK_BITS] = self._look(at >> _CHUNK_BITS)
        for segment in chunk:
            if at < segment.end:
                return segment
        raise AssertionError(f"{self.name} has no segment for {at}")

    def first_at(self, wall: int) -> tuple[int, bool]:
        """Return the first real second at which the wall shows `wall` or later, and whether it shows exactly that.

        In a gap it does not: the result is then the first second after the gap. In a fold the result is the first pass.
        """
        at = wall - DAY_SECONDS  # no offset is a whole day, so the wall is still earlier
        while True:
            start, end, offset, _top = self.segment(at)
            if wall < end + offset:
                found = wall - offset
                return (found, True) if found >= start else (start, False)
            at = end

    def _look(self, number: int) -> tuple[Segment, ...]:
        start, end = number << _CHUNK_BITS, (number + 1) << _CHUNK_BITS
        at = start - 2 * DAY_SECONDS  # a fold may extend over the border
        offset = self._offset(at)
        segments: list[Segment] = []
        began, top = at, at + offset
        while at < end:
            step = min(at + _STEP, end)
            changed = self._offset(step)
            if changed != offset:
                step = self._change(at, step, offset)
                changed = self._offset(step)
            if changed != offset or step == end:
                segments.append(Segment(began, step, offset, top))
                began, top, offset = step, max(top, step + offset), changed
            at = step
        return tuple(segment for segment in segments if segment.end > start)

    def _change(self, before: int, after: int, offset: int) -> int:
        """Find the first second that no longer has `offset`."""
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(min(max(at, FIRST_SECOND), LAST_SECOND), self._info).utcoffset()
        assert offset is not None  # a ZoneInfo always has one
        return offset // _ONE_SECOND


@lru_cache(maxsize=1024)  # there are about 600 zones
def zone_of(name: str) -> Zone:
    return Zone(name)
