"""When a server that answers 429 or 503 wants to be asked again."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from duetime.clock import SECOND, Instant, to_instant
from duetime.errors import InvalidValue

LONGEST = 86_400.0  # seconds: a server that asks for more is asked after a day


def read_retry_after(value: str | None, now: Instant) -> float | None:
    """Return the seconds that the header Retry-After asks for, 0 to a day; None if it is missing or means nothing.

    It has whole seconds or a date. A date that has passed means now. Fractions, which some servers send, are read too.
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text) and len(text) <= 400:  # as many digits as a float has at most
        return min(float(text), LONGEST)
    try:
        when = parsedate_to_datetime(text)
        wait = (to_instant(when, "Retry-After") - now) / SECOND if when.tzinfo is not None else None
    except (ValueError, TypeError, IndexError, OverflowError, InvalidValue):
        return None
    return None if wait is None else min(max(wait, 0.0), LONGEST)
