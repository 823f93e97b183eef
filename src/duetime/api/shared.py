"""What all requests of a server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from duetime.api.health import Readiness
from duetime.api.metrics import Figures
from duetime.app.app import App
from duetime.client.batching import Batching
from duetime.client.waiting import Waiters
from duetime.runtime.service import Pulse
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
        self.readiness = Readiness(app)
        self.figures = Figures(app)
        self.pulses: list[Pulse] = []  # of other loops that run in this process
        self.stopping = False
        self.to_try: tuple[str, dict[str, Any]] | None = None  # a handler and a payload for it, to be shown on the front page
        self._describe = describe
        self._description = b""

    @property
    def description(self) -> bytes:
        """The API's description, built at the first request for it."""
        if not self._description:
            self._description = msgspec.json.encode(self._describe())
        return self._description
