"""The pytest plugin: one fixture, which costs nothing until a test uses it.

It is outside `duetime.testing`, because importing that package loads the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duetime.testing import using


@pytest.fixture
def duetime_using() -> type[using]:
    """Return `duetime.testing.using`: `async with duetime_using(app) as t`, or `with duetime_using(app) as t` in a plain `def` test."""
    from duetime.testing import using

    return using
