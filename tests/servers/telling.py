"""A target whose attempts end as a test says, with a detail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duetime import App
from duetime.app.handlers import AnyHandler
from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome
from duetime.targets.host import TargetHost
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import AttemptHandle, Stop


class Telling:
    """A target spec and its target in one."""

    kind = "telling"
    direct_call = None

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def open(self, handler: HandlerSpec, host: TargetHost) -> Telling:
        return self

    async def perform(self, attempt: AttemptHandle) -> Ended:
        return Ended(Outcome.SUCCEEDED, detail=detail_of(self._facts))

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        return 0.0


def declare_telling(app: App, name: str, facts: Mapping[str, Any]) -> AnyHandler:
    """Declare a handler whose attempts succeed with these facts as their detail."""
    return app.register(HandlerSpec(name=name, target=Telling(facts), payloads=OpenPayloads(name)))
