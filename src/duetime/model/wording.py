"""Words for numbers and lengths of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with what it counts: `1 task`, `2,000 tasks`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join parts of a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def span(length: timedelta) -> str:
    """Format a length of time in the one or two units that matter."""
    seconds = abs(length.total_seconds())
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3_600), int(seconds // 86_400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{days:,} days"
