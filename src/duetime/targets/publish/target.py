"""Attempts that are messages to a broker: one message per attempt, and its end is the broker's word."""

from __future__ import annotations

from time import monotonic
from typing import cast

import msgspec

from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome, Unavailable
from duetime.model.task import ErrorInfo
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.publish.guarding import guarded
from duetime.targets.publish.links import opener
from duetime.targets.publish.messages import BrokerUnreachable, Publisher, PublishRefused
from duetime.targets.publish.spec import Publish
from duetime.targets.python.middleware import with_middleware
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import AttemptHandle, Stop
from duetime.targets.typed import PlainPayloads

MAX_MESSAGE = 2_000
HIGHEST = 9
PROBE_EVERY = 20.0  # seconds after which another task tries, unless the one that does says when: longer than connecting and confirming take
APART = 0.05  # seconds by which tasks come back after those of the next higher priority, so that an outage does not change the order


class PublishFailed(Exception):
    """How an attempt ended that did not succeed, for middleware around it: type and message are those of its error."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(str(ended.error or ended.outcome))
        self.ended = ended


class PublishTarget:
    """Performs the attempts of one handler; the connection is shared with all handlers of the same broker."""

    direct_call = None

    def __init__(self, declared: Publish, handler: HandlerSpec, host: TargetHost) -> None:
        self._declared = declared
        self._payloads = cast(PlainPayloads, handler.payloads)
        self._host = host
        open_link = opener(declared.address.kind) if host.publisher is None else None
        self._open_link = guarded(open_link, host.addresses) if open_link is not None and declared.address.guarded else open_link
        self._given = None if host.publisher is None else host.publisher(handler)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0

    async def perform(self, attempt: AttemptHandle) -> Ended:
        if not self._host.middleware:
            return await self._perform(attempt)
        performed: list[Ended] = []

        async def call() -> None:
            performed.append(ended := attempt.blanked(await self._perform(attempt)))
            if ended.outcome is not Outcome.SUCCEEDED:
                raise PublishFailed(ended)

        try:
            value = await with_middleware(self._host.middleware, attempt.context, call)
        except PublishFailed as failure:
            return failure.ended
        return msgspec.structs.replace(succeeded(value), detail=performed[-1].detail if performed else None)

    async def _perform(self, attempt: AttemptHandle) -> Ended:
        claimed = attempt.claimed
        message = self._declared.build(claimed, self._payloads.plain(claimed.payload), now=attempt.started_at)
        facts = {"broker": self._declared.address.shown, "to": message.to}
        began = monotonic()
        try:
            publisher = await self._publisher(attempt)
            acknowledged = await publisher.publish(message)
        except BrokerUnreachable as error:
            delay = error.delay + APART * (HIGHEST - claimed.priority)
            away = Unavailable(f"{self._declared.address.shown} cannot be reached", PROBE_EVERY)
            why = _error("BrokerUnreachable", error)
            return Ended(Outcome.RETRY_LATER, delay=delay, error=why, detail=detail_of(facts), unavailable=away)
        except PublishRefused as error:
            outcome = Outcome.FATAL if error.fatal else Outcome.FAILED
            return Ended(outcome, error=_error(error.kind, error), detail=detail_of(facts))
        took = {"bytes": len(message.body), "phases": {"confirmed": round(monotonic() - began, 5)}}
        return Ended(Outcome.SUCCEEDED, detail=detail_of({**facts, **acknowledged, **took}))

    async def _publisher(self, attempt: AttemptHandle) -> Publisher:
        """Return what publishes: the worker's connection for these credentials, unless this is a test."""
        if self._open_link is None:
            assert self._given is not None
            return self._given
        return self._host.brokers.at(await self._declared.credited(attempt), self._open_link)


def _error(kind: str, error: Exception) -> ErrorInfo:
    return ErrorInfo(kind, str(error).encode("utf-8", "replace").decode()[:MAX_MESSAGE])
