"""How results and exceptions become an `Ended`."""

from __future__ import annotations

import msgspec

from duetime.clock import SECOND, to_micros
from duetime.errors import (
    ArtifactNotFound,
    DuetimeError,
    Fatal,
    InvalidPayload,
    InvalidStep,
    InvalidValue,
    PayloadTooLarge,
    RetryLater,
    SecretNotFound,
    SecretUnreadable,
)
from duetime.model.outcome import Ended, Outcome
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo
from duetime.targets.payload import UnfitPayload, encode_result
from duetime.targets.suspended import Suspended, suspension_of
from duetime.targets.tracebacks import trace_of

MAX_TYPE = 200
MAX_MESSAGE = 2_000
NOTHING = Ended(Outcome.SUCCEEDED)


def succeeded(value: object) -> Ended:
    """Turn a normal return into success. The work is done, so a value that cannot be stored is Fatal, not retried."""
    if value is None:
        return NOTHING
    try:
        return Ended(Outcome.SUCCEEDED, result=encode_result(value))
    except (DuetimeError, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        return Ended(Outcome.FATAL, error=ErrorInfo(type(error).__name__, f"the result cannot be stored: {_message(error)}"[:MAX_MESSAGE]))


def failed(error: BaseException, policy: RetryPolicy) -> Ended:
    """Turn an exception into the outcome that it stands for."""
    if isinstance(error, Suspended | BaseExceptionGroup) and (suspended := suspension_of(error)) is not None:
        return Ended(Outcome.SUSPENDED, suspension=suspended)
    if isinstance(error, RetryLater):
        try:
            delay = _delay(error)
        except InvalidValue as invalid:  # uses up a try, so that it ends
            return Ended(Outcome.FAILED, error=describe(invalid), retriable=policy.accepts(invalid))
        return Ended(Outcome.RETRY_LATER, delay=delay, error=ErrorInfo("RetryLater", _message(error)))
    if isinstance(error, UnfitPayload):
        return Ended(Outcome.PARKED, error=ErrorInfo("InvalidPayload", _message(error)))
    if isinstance(error, Fatal | InvalidPayload | InvalidStep | PayloadTooLarge | ArtifactNotFound | SecretNotFound | SecretUnreadable):
        return Ended(Outcome.FATAL, error=describe(error))
    return Ended(Outcome.FAILED, error=describe(error), retriable=policy.accepts(error))


def _delay(later: RetryLater) -> float:
    delay = to_micros(later.delay, "the delay of RetryLater") / SECOND
    if delay < 0:
        raise InvalidValue(f"the delay of RetryLater must not be negative, got {later.delay}; RetryLater(0) runs it again at once")
    return delay


def describe(error: BaseException) -> ErrorInfo:
    """Return an exception as it is stored: type, message, the end of its traceback, and where it was raised."""
    text, location = trace_of(error)
    return ErrorInfo(_clean(type(error).__name__[:MAX_TYPE]), _message(error), _clean(text), _clean(location))


def timed_out(error: BaseException, timeout: float) -> Ended:
    """Return the end of an attempt that was stopped at its timeout. The exception that stopped it says where its code was then."""
    return Ended(Outcome.TIMED_OUT, error=ran_too_long(timeout, describe(error)))


def ran_too_long(timeout: float, stopped_by: ErrorInfo | None) -> ErrorInfo:
    """Return the error of an attempt that was stopped at its timeout, with where its code was then."""
    where = ("", "") if stopped_by is None else (stopped_by.traceback, stopped_by.location)
    return ErrorInfo("TimedOut", f"ran longer than its timeout of {timeout:g} s", *where)


def _message(error: BaseException) -> str:
    """Return an exception's message, also if its `__str__` is broken."""
    try:
        message = str(error)
    except BaseException as broken:
        message = f"(its message cannot be shown: {type(broken).__name__})"
    return _clean(message[:MAX_MESSAGE])


def _clean(text: str) -> str:
    """Replace lone surrogates, which neither JSON nor a database can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
