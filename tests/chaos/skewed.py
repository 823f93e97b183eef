"""A worker on a host whose wall clock is wrong: `CHAOS_CLOCK_OFF=600 python -m tests.chaos.skewed worker …`.

Only what Python programs ask for the time of day lies. Monotonic clocks and the kernel's own timers are right, as on a real host.
"""

import os
import time

OFF = "CHAOS_CLOCK_OFF"
_skewed = False


def skew() -> None:
    """Put this process's wall clock off by as many seconds as the environment says."""
    global _skewed
    seconds = float(os.environ.get(OFF, "0"))
    if seconds and not _skewed:
        right, right_ns = time.time, time.time_ns
        time.time = lambda: right() + seconds
        time.time_ns = lambda: right_ns() + int(seconds * 1e9)
        _skewed = True


if __name__ == "__main__":
    from tests.chaos import skewed  # not this module itself, whose name is another while it is run: the handlers import it too

    skewed.skew()
    from duetime.cli.main import main

    main()
