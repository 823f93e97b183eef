"""What public status pages go by: read from the store at most every few seconds, however many ask."""

from __future__ import annotations

import msgspec

from duetime.app.app import App
from duetime.model.health import HealthVerdict

READ_EVERY = 10.0


class Known(msgspec.Struct, frozen=True):
    """The verdict on the store, and the names of all handlers and schedules."""

    verdict: HealthVerdict
    names: frozenset[str]


async def read_known(app: App) -> Known:
    names = {each.name for each in await app.handlers()}
    names |= {each.name for each in await app.schedules.list()}
    return Known(await app.insight.health(), frozenset(names))
