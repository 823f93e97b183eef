"""How results and exceptions become an `Ended`."""

from __future__ import annotations

import traceback

import msgspec

from duetime.clock import to_seconds
from duetime.errors import DuetimeError, Fatal, InvalidPayload, InvalidValue, PayloadTooLarge, RetryLater
from duetime.model.outcome import Ended, Outcome
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo
from duetime.targets.payload import encode_result

MAX_TRACEBACK = 16_384
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
    if isinstance(error, RetryLater):
        try:
            delay = to_seconds(error.delay, "RetryLater")
            if delay < 0:
                raise InvalidValue(f"RetryLater must not be negative, got {error.delay}")
        except InvalidValue as invalid:
            return Ended(Outcome.FATAL, error=describe(invalid))
        return Ended(Outcome.RETRY_LATER, delay=delay, error=ErrorInfo("RetryLater", _message(error)))
    if isinstance(error, Fatal | InvalidPayload | PayloadTooLarge):
        return Ended(Outcome.FATAL, error=describe(error))
    return Ended(Outcome.FAILED, error=describe(error), retriable=policy.accepts(error))


def describe(error: BaseException) -> ErrorInfo:
    """Return an exception as it is stored: type, message and the end of its traceback."""
    text = "".join(traceback.format_exception(error))
    if len(text) > MAX_TRACEBACK:
        text = "… (cut)\n" + text[-MAX_TRACEBACK:]
    return ErrorInfo(type(error).__name__, _message(error), _clean(text))


def _message(error: BaseException) -> str:
    """Return an exception's message, also if its `__str__` is broken."""
    try:
        message = str(error)
    except BaseException as broken:
        message = f"(its message cannot be shown: {type(broken).__name__})"
    return _clean(message)[:MAX_MESSAGE]


def _clean(text: str) -> str:
    """Replace lone surrogates, which neither JSON nor a database can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
