"""Health checks: whether to restart the server (`/livez`), and whether to send it requests (`/readyz`).

While the store is down, the server is not ready; a restart would not help, so it still counts as alive.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.problems import Refusal
from duetime.app.app import App
from duetime.errors import StoreUnavailable
from duetime.wire.fields import NoQuery
from duetime.wire.overview import Health, LoopHealth
from duetime.wire.problem import NOT_READY, STOPPING, STUCK

if TYPE_CHECKING:
    from duetime.api.call import Call
    from duetime.api.shared import Shared

STUCK_AFTER = 90.0  # seconds: longer than any bound on a store's answer
ANSWER_WITHIN = 2.0
ASK_AGAIN = 0.5  # seconds for which an answer of the store is good


class Readiness:
    """Checks whether the store answers, at most twice a second, however many requests there are."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._asked_at = -ASK_AGAIN
        self._problem: str | None = None
        self._asking = asyncio.Lock()

    async def problem(self) -> str | None:
        async with self._asking:
            if time.monotonic() - self._asked_at >= ASK_AGAIN:
                self._problem = await self._ask()
                self._asked_at = time.monotonic()
        return self._problem

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self._app.open()  # where another application has mounted this one, no request may have opened it yet
                await self._app.insight.ping()
        except TimeoutError:
            return f"the store did not answer within {ANSWER_WITHIN:g} seconds"
        except StoreUnavailable as error:
            return str(error)
        return None


def loops_of(shared: Shared, now: float) -> list[LoopHealth]:
    """Return all loops of the server, and for how long each has made no progress. An outage of the store does not count."""
    return [
        LoopHealth("storing single tasks", shared.batching.stuck_for(now)),
        LoopHealth("looking for tasks that are waited for", shared.waiters.stuck_for(now)),
        *(LoopHealth(pulse.name, pulse.stuck_for(now)) for pulse in shared.pulses),
    ]


async def ready(call: Call) -> Response:
    call.query(NoQuery)
    if call.shared.stopping:
        raise Refusal(STOPPING, "this server is stopping; send requests to another one")
    problem = await call.shared.readiness.problem()
    if problem is not None:
        raise Refusal(NOT_READY, problem)
    return answer(Health("ok"))


async def alive(call: Call) -> Response:
    call.query(NoQuery)
    loops = loops_of(call.shared, time.monotonic())
    for loop in loops:
        if loop.seconds > STUCK_AFTER:
            raise Refusal(STUCK, f"{loop.name} has not gone on for {loop.seconds:.0f} seconds; restart this server")
    return answer(Health("ok", loops))
