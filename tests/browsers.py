"""Finds the browser that tests drive: the system's Chromium, because its own downloads are not reachable everywhere."""

from __future__ import annotations

import functools
import os
import shutil


@functools.cache
def chromium() -> str | None:
    """Return the path of the browser; None if there is none. `make browser` installs it where it may."""
    named = os.environ.get("DUETIME_TEST_CHROMIUM")
    return named or next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
