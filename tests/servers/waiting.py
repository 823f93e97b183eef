"""Wait for another process, without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds after which a test says that what it waits for hangs. It bounds only failures, so it is as long as a machine that does ten
# things at once may need; a test that proves that something happens soon says so in another way.
PATIENCE = 90.0


def wait_until(what: str, condition: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Look until a condition holds; the bound is generous, because nothing here measures time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.005)
