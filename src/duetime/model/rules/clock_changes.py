"""What a change of clocks does to a rule: the local times that are skipped or come twice, told in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.rules.kinds import Cron, Rule
from duetime.model.rules.plan import Plan, plan_of
from duetime.model.rules.zones import Zone, zone_of
from duetime.model.wording import listed

MOST_NAMED = 3  # local times that a sentence names
MOST_COUNTED = 1_000


def clock_changes(rule: Rule, after: Instant, until: Instant) -> list[str]:
    """Tell what happens to a cron rule at each change of clocks that touches it; other rules have no fixed local times, or say them."""
    if not isinstance(rule, Cron):
        return []
    real, walls = plan_of(rule), plan_of(msgspec.structs.replace(rule, tz="UTC"))
    told = (_told(real, walls, at, before, later) for at, before, later in _changes(zone_of(rule.tz), after // SECOND, until // SECOND))
    return [sentence for sentence in told if sentence]


def _changes(zone: Zone, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Yield each change of the offset: when, and the offsets before and later."""
    segment = zone.segment(after)
    while segment.end <= until:
        following = zone.segment(segment.end)
        if following.offset != segment.offset:
            yield segment.end, segment.offset, following.offset
        segment = following


def _told(real: Plan, walls: Plan, at: int, before: int, later: int) -> str:
    start, end = sorted((at + before, at + later))  # of the local times that are left out, or come twice
    touched = _within(walls, start, end)
    if not touched:
        return ""
    named = _named(touched)
    one = len(touched) == 1
    if later > before:
        day, opens = _wall(start), f"{_wall(end):%H:%M}"
        head = f"On {day:%a %d %b %Y} clocks go from {day:%H:%M} to {opens}: {named} {'does' if one else 'do'} not exist"
        if _within(real, at, at + 1) and not _within(walls, end, end + 1):
            return f"{head}; it runs at {opens} instead."
        return f"{head}, and {'is' if one else 'are'} left out."
    day = _wall(start)
    head = f"On {day:%a %d %b %Y} clocks go back from {_wall(end):%H:%M} to {day:%H:%M}: {named} {'comes' if one else 'come'} twice"
    return f"{head}; it runs both times." if _within(real, at, at + end - start) else f"{head}; it runs the first time only."


def _within(plan: Plan, start: int, end: int) -> list[int]:
    """Return the seconds of a plan from a start up to an end."""
    return [instant // SECOND for instant in plan.between(start * SECOND - 1, end * SECOND - 1, MOST_COUNTED)]


def _named(walls: list[int]) -> str:
    names = list(dict.fromkeys(f"{_wall(wall):%H:%M}" for wall in walls))
    if len(names) <= MOST_NAMED:
        return listed(names)
    return f"{names[0]} to {names[-1]} ({len(walls)} times)"


def _wall(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)
