"""What pytest finds in a program's tests once Duetime is installed: one fixture, which costs nothing until a test asks for it.

It stands outside `duetime.testing`, because importing that package loads the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duetime.testing import using


@pytest.fixture
def duetime_using() -> type[using]:
    """Give `duetime.testing.using`: `async with duetime_using(app) as t`, or `with duetime_using(app) as t` in a plain `def` test."""
    from duetime.testing import using

    return using
