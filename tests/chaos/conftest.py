"""What chaos tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as fleet:
        yield fleet
