"""Attempts that are HTTP requests: one request, with the redirects that are followed, per attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import msgspec

from duetime.clock import SECOND, to_seconds
from duetime.errors import DuetimeError
from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.model.test_run import is_test
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.http.answers import VENDOR_TYPE, is_text, judge
from duetime.targets.http.messages import Answer, Request, RequestFailed, Sender
from duetime.targets.http.phases import Phases
from duetime.targets.http.redirects import followed, location_of, withdrawing
from duetime.targets.http.spec import HttpRequest
from duetime.targets.python.middleware import with_middleware
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, AttemptHandle, Stop
from duetime.targets.typed import PlainPayloads

ACCEPTED = 202
WITHDRAW_WITHIN = 5.0  # seconds

logger = logging.getLogger("duetime.http")


class HttpFailed(Exception):
    """How an attempt ended that did not succeed, for middleware around it: type and message are those of its error."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(str(ended.error or ended.outcome))
        self.ended = ended


class HttpTarget:
    """Performs the attempts of one handler, with one pool of connections."""

    direct_call = None

    def __init__(self, declared: HttpRequest, handler: HandlerSpec, host: TargetHost) -> None:
        self._declared = declared
        self._payloads = cast(PlainPayloads, handler.payloads)
        self._host = host
        self._sender = _sender(handler, declared, host)
        self._stops: dict[str, Stop] = {}

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        self._stops[attempt.claimed.id] = reason
        attempt.cancel()
        return 0.0

    async def perform(self, attempt: AttemptHandle) -> Ended | Accepted:
        phases = Phases() if attempt.claimed.extras is None else _phases_of(attempt)
        try:
            if not self._host.middleware:
                return await self._perform(attempt, phases)
            return await self._between(attempt, phases)
        except asyncio.CancelledError:
            if self._stops.get(attempt.claimed.id) is not Stop.TIMEOUT:
                raise
            return _timed_out(attempt, phases)
        finally:
            self._stops.pop(attempt.claimed.id, None)

    async def _between(self, attempt: AttemptHandle, phases: Phases) -> Ended | Accepted:
        """Perform an attempt inside the middleware, which sees a result or an exception as it does around a Python function."""
        performed: list[Ended | Accepted] = []

        async def call() -> Any:
            ended = await self._perform(attempt, phases)
            if isinstance(ended, Accepted):
                performed.append(ended)
                return None
            performed.append(ended := attempt.blanked(ended))
            if ended.outcome is not Outcome.SUCCEEDED:
                raise HttpFailed(ended)
            return None if ended.result is None else msgspec.json.decode(ended.result)

        try:
            value = await with_middleware(self._host.middleware, attempt.context, call)
        except HttpFailed as failure:
            return failure.ended
        last = performed[-1] if performed else None
        if isinstance(last, Accepted):
            return last
        return msgspec.structs.replace(succeeded(value), detail=None if last is None else last.detail)

    async def _perform(self, attempt: AttemptHandle, phases: Phases) -> Ended | Accepted:
        payload = self._payloads.plain(attempt.claimed.payload)
        callback = self._declared.callback
        request = await self._declared.build(attempt, payload, self._host.callback_door)
        try:
            if self._declared.redirects == "none":
                answer = await self._sender.send(request, phases)
            else:
                request, answer = await self._exchange(request, phases)
        except RequestFailed as failure:
            return _failed(request, failure, phases)
        if phases.told:
            phases.say(f"is done, after {len(answer.body):,} bytes")
        _keep(attempt, answer, self._declared.keep)
        if callback is not None and answer.status == ACCEPTED and answer.content_type != VENDOR_TYPE:
            silence = None if callback.silence is None else to_seconds(callback.silence, "silence")
            return Accepted(callback.deadline_at(attempt.started_at), silence, location_of(request, answer))
        now = attempt.started_at + phases.elapsed()
        ended, note = judge(request, answer, fatal=self._declared.fatal, keep=self._declared.keep, now=now)
        facts = {"status": answer.status, "url": request.shown, "bytes": len(answer.body), "note": note, **phases.facts()}
        detail = detail_of(facts)
        if ended.outcome is Outcome.SUCCEEDED:
            return Ended(Outcome.SUCCEEDED, result=ended.result, detail=detail)
        return msgspec.structs.replace(ended, detail=detail)

    @property
    def accepts(self) -> bool:
        return self._declared.callback is not None

    async def withdraw(self, attempt: AttemptHandle, location: str) -> None:
        """Send DELETE to the `Location` of an attempt's 202, which was on the origin that gave it."""
        try:
            async with asyncio.timeout(WITHDRAW_WITHIN):
                request = await self._declared.build(attempt, self._payloads.plain(attempt.claimed.payload))
                await self._sender.send(withdrawing(request, location), Phases())
        except (RequestFailed, TimeoutError, DuetimeError) as error:
            why = str(error) or type(error).__name__
            logger.info("the cancelled work of task %s could not be withdrawn from its server: %s", attempt.claimed.id, why)

    async def _exchange(self, request: Request, phases: Phases) -> tuple[Request, Answer]:
        """Send a request and follow its redirects; return the last request with its answer."""
        while True:
            answer = await self._sender.send(request, phases)
            following = followed(request, answer, self._declared.redirects, phases.redirects)
            if following is None:
                return request, answer
            phases.redirects += 1
            phases.say(f"follows the redirect to {following.shown}")
            request = following


def _sender(handler: HandlerSpec, declared: HttpRequest, host: TargetHost) -> Sender:
    """Return what sends a handler's requests: over the network, unless this is a test."""
    if host.sender is not None:
        return host.sender(handler)
    from duetime.targets.http.sender import NetworkSender  # only here: it needs aiohttp

    network = NetworkSender(declared, host, slots=handler.concurrency)
    host.closing.append(network.close)
    return network


def _phases_of(attempt: AttemptHandle) -> Phases:
    """Return the phases of an attempt; those of a test run are written to its output as they begin."""
    sink = attempt.sink if is_test(attempt.claimed.meta) else None
    return Phases(None if sink is None else sink.write)


def _keep(attempt: AttemptHandle, answer: Answer, keep: int) -> None:
    """Write the beginning of a body to the attempt's output."""
    sink = attempt.sink if answer.body and keep else None
    if sink is None:
        return
    if not is_text(answer):
        sink.write(f"({len(answer.body):,} bytes of {answer.content_type or 'an unknown type'})\n")
        return
    text = answer.body[:keep].decode("utf-8", "replace")
    left = len(answer.body) - keep
    sink.write(text + (f"\n… {left:,} bytes more\n" if left > 0 else "" if text.endswith("\n") else "\n"))


def _failed(request: Request, failure: RequestFailed, phases: Phases) -> Ended:
    outcome = Outcome.TIMED_OUT if failure.timed_out else Outcome.FATAL if failure.fatal else Outcome.FAILED
    facts = {"url": request.shown, "failed_in": phases.under_way, **phases.facts()}
    return Ended(outcome, error=ErrorInfo(failure.kind, str(failure)[:2_000]), detail=detail_of(facts))


def _timed_out(attempt: AttemptHandle, phases: Phases) -> Ended:
    within = (attempt.deadline_at - attempt.started_at) / SECOND
    text = f"ran longer than its timeout of {within:g} s; meanwhile {phases.sentence}"
    return Ended(
        Outcome.TIMED_OUT,
        error=ErrorInfo("TimedOut", text),
        detail=detail_of({"failed_in": phases.under_way, **phases.facts()}),
    )
