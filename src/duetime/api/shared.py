"""What all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from duetime.api.health import Readiness
from duetime.api.known import READ_EVERY, read_known
from duetime.api.metrics import Figures, Kept
from duetime.app.app import App
from duetime.client.access.sessions import Sessions
from duetime.client.batching import Batching
from duetime.client.waiting import Waiters
from duetime.runtime.service import Pulse
from duetime.runtime.slices import off_loop
from duetime.worker.pull.service import PullService


class Limits(msgspec.Struct, frozen=True):
    """How large a body may be, in bytes: of a batch, and of everything else."""

    body: int = 4_000_000
    batch: int = 64_000_000


class Shared:
    """What all requests of a server share."""

    def __init__(self, app: App, limits: Limits, describe: Callable[[], dict[str, Any]]) -> None:
        self.app = app
        self.limits = limits
        self.batching = Batching(lambda requested: app.client.add_requested(requested))
        self.waiters = Waiters(lambda ids: app.client.records(ids), lambda on_hint: app.client.listen(on_hint))
        self.pull = PullService(lambda: app.store)
        self.sessions = Sessions(lambda: app.store, lambda: app.tokens)
        self.callback_keys = app.config.callback_keys()
        self.readiness = Readiness(app)
        self.figures = Figures(app)
        self.known = Kept(lambda: read_known(app), READ_EVERY, self.figures.note_store_error)
        self.pulses: list[Pulse] = []  # of other loops that run in this process
        self.stopping = False
        self.examining = asyncio.Lock()  # one examination of the store at a time: it is long, and takes a connection
        self.to_try: tuple[str, dict[str, Any]] | None = None  # a handler and a payload for it, to be shown on the front page
        self.browsers: str | None = None  # where `/` sends a browser: the dashboard, if there is one
        self._describe = describe
        self._describing = asyncio.Lock()
        self._description = b""

    async def description(self) -> bytes:
        """Return the API's description, built at the first request for it, beside the loop: it takes a few hundred milliseconds."""
        async with self._describing:
            if not self._description:
                self._description = await off_loop(lambda: msgspec.json.encode(self._describe()))
            return self._description
