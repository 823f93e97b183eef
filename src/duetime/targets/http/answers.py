"""What an answer means for an attempt. Pure: given the answer and the time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.model.outcome import Ended, Outcome, Unavailable
from duetime.model.retry_after import LONGEST, read_retry_after
from duetime.model.task import ErrorInfo
from duetime.targets.http.messages import Answer, Request

VENDOR_TYPE = "application/vnd.duetime+json"
MAX_MESSAGE = 2_000
_QUOTED = 300  # characters of a body in an error's message
_RETRY_LATER = (429, 503)


class Judged(NamedTuple):
    """The end of an attempt, and a note for its detail."""

    ended: Ended
    note: str | None = None


class Saying(StrEnum):
    """How an answer's body may say that the work ended; the words of pull workers."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an answer with the type `application/vnd.duetime+json`: it decides, whatever the status."""

    outcome: Saying
    result: Any = None
    message: str = ""
    fatal: bool = False
    delay: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delay) and 0 <= self.delay <= LONGEST):
            raise ValueError(f"delay must be from 0 to {LONGEST:g} seconds, got {self.delay}")


_read_verdict = msgspec.json.Decoder(Verdict).decode
_read_json = msgspec.json.Decoder().decode


def judge(request: Request, answer: Answer, *, fatal: Collection[int], keep: int, now: Instant) -> Judged:
    """Return what an answer means."""
    note = None
    if answer.content_type == VENDOR_TYPE:
        try:
            return Judged(_told(request, answer, _read_verdict(answer.body)))
        except (msgspec.MsgspecError, ValueError) as error:
            note = f"the body has the type {VENDOR_TYPE} but cannot be read, so the status decides: {error}"[:_QUOTED]
    if 200 <= answer.status < 300:
        result, problem = result_of(answer, keep)
        return Judged(Ended(Outcome.SUCCEEDED, result=result), note or problem)
    why = ErrorInfo(f"Status{answer.status}", _message(request, answer))
    if answer.status == 410 or answer.status in fatal:
        return Judged(Ended(Outcome.FATAL, error=why), note)
    if answer.status in _RETRY_LATER and "retry-after" in answer.headers:
        delay = read_retry_after(answer.headers["retry-after"], now)
        if delay is not None:
            busy = Unavailable(f"it says when to come again (Retry-After), last: {answer.status}")
            return Judged(Ended(Outcome.RETRY_LATER, delay=delay, error=why, unavailable=busy), note)
        note = note or f"its Retry-After is neither seconds nor a date: {answer.headers['retry-after'][:100]!r}"
    return Judged(Ended(Outcome.FAILED, error=why), note)


def _told(request: Request, answer: Answer, verdict: Verdict) -> Ended:
    message = verdict.message[:MAX_MESSAGE] or f"{request.shown} answered {answer.status} and said {verdict.outcome}"
    match verdict.outcome:
        case Saying.SUCCEEDED:
            return Ended(Outcome.SUCCEEDED, result=None if verdict.result is None else msgspec.json.encode(verdict.result))
        case Saying.RETRY:
            return Ended(Outcome.RETRY_LATER, delay=verdict.delay, error=ErrorInfo("RetryLater", message))
        case Saying.FAILED:
            return Ended(Outcome.FATAL if verdict.fatal else Outcome.FAILED, error=ErrorInfo(f"Status{answer.status}", message))


def result_of(answer: Answer, keep: int) -> tuple[bytes | None, str | None]:
    """Return a JSON body as a result, or why it is none. The work is done either way, so it is never a failure."""
    if not answer.body or not (answer.content_type == "application/json" or answer.content_type.endswith("+json")):
        return None, None
    if len(answer.body) > keep:
        return None, f"the body has {len(answer.body):,} bytes, more than keep={keep:,}, so it is not the result"
    try:
        value = _read_json(answer.body)
        return None if value is None else msgspec.json.encode(value), None  # again: only JSON as we write it is stored
    except msgspec.MsgspecError as error:
        return None, f"the body is not the JSON that its type says, so there is no result: {error}"[:_QUOTED]


def _message(request: Request, answer: Answer) -> str:
    reason = answer.reason or _phrase(answer.status)
    text = f"{request.shown} answered {answer.status} {reason}".rstrip()
    location = answer.headers.get("location")
    if 300 <= answer.status < 400 and location:
        text += f"; it leads to {location[:_QUOTED]}, and redirects are not followed further"
    quoted = answer.body[: 4 * _QUOTED].decode("utf-8", "replace").strip()[:_QUOTED] if is_text(answer) else ""
    return (f"{text}: {quoted}" if quoted else text)[:MAX_MESSAGE]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def is_text(answer: Answer) -> bool:
    """Return whether a body can be shown to people."""
    kind = answer.content_type
    known = kind.startswith("text/") or kind.endswith(("json", "xml", "x-www-form-urlencoded")) or not kind
    return known and answer.headers.get("content-encoding", "identity") == "identity"


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}
