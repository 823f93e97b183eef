"""The guide's chapters share one App on a fresh file and, where work is done, a worker beside the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from duetime import App


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/duetime.db", user="anna@shop") as app:
        yield app
