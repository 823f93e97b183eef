"""What chaos tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.ground import Ground


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on a SQLite file."""
    async with Fleet(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def postgres_url(bare_postgres_url: str) -> str:
    """The address of a schema that no other test uses: what a killed process has sent to the server may be carried out late."""
    return bare_postgres_url


@pytest.fixture
async def postgres_fleet(tmp_path: Path, postgres_url: str) -> AsyncIterator[Fleet]:
    """A fleet on a schema of the session's server, which nobody harms."""
    async with Fleet(tmp_path, url=postgres_url) as fleet:
        yield fleet


@pytest.fixture(params=["sqlite", "postgres"])
async def any_fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on each kind of store."""
    url: str | None = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with Fleet(tmp_path, url=url) as fleet:
        yield fleet


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    """A server of the test's own behind a network of its own."""
    async with Ground() as ground:
        yield ground


@pytest.fixture
async def stormy(tmp_path: Path, ground: Ground) -> AsyncIterator[Fleet]:
    """A fleet on that ground; the tests themselves see its store by another way."""
    async with Fleet(tmp_path, url=ground.url, look_url=ground.look_url) as fleet:
        yield fleet
