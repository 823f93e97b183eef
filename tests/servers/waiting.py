"""Wait for another process, without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(what: str, condition: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Look until a condition holds; the bound is generous, because nothing here measures time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.005)
