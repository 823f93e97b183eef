"""The log of failures: a warning for each attempt that failed, an error for each task that failed for good.

A record has the exception (`exc_info`, where it was raised in this process), its traceback as text, and what people filter by as
fields: `duetime_task`, `duetime_handler`, `duetime_attempt`, `duetime_outcome`, `duetime_error`, `duetime_location`, `duetime_final`.

A handler that always fails must neither slow the worker nor fill disks: of the same failure the first five in a minute are logged, and
of the others their number, in one line every ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from duetime.clock import SECOND, monotonic
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import ErrorInfo, State
from duetime.targets.tracebacks import MAX_TRACEBACK, own_part

logger = logging.getLogger("duetime.failures")

IN_FULL = 5  # of one kind in a window
WINDOW = 60.0
SUMMARY_EVERY = 10.0
MOST_KINDS = 1_000  # that are told apart; what comes beyond them in one window is one kind per handler
MAX_SAID = 300  # characters of a message in a log line; the traceback has more of it

_FAILURES = {Outcome.FAILED: "failed", Outcome.FATAL: "failed", Outcome.TIMED_OUT: "timed out", Outcome.LOST: "lost its process"}


class Kind(NamedTuple):
    """What counts as the same failure."""

    handler: str
    type: str
    location: str
    final: bool


class _Window:
    """How often a kind of failure has been seen since an instant, and what has not been told of it."""

    __slots__ = ("last", "seen", "since", "untold")

    def __init__(self, since: float) -> None:
        self.since = since
        self.seen = self.untold = 0
        self.last: Settlement | None = None


class FailureLog:
    """Logs failures. `later` calls a function so many seconds from now."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object], now: Callable[[], float] = monotonic) -> None:
        self._later = later
        self._now = now
        self._windows: dict[Kind, _Window] = {}
        self._summary_is_due = False

    def note(self, handler: str, settlement: Settlement, raised: BaseException | None = None) -> None:
        """Log the end of an attempt if it failed."""
        error, final = settlement.error, settlement.state is State.FAILED
        if error is None or not (final or settlement.outcome in _FAILURES) or not logger.isEnabledFor(_level(final)):
            return
        window = self._window(Kind(handler, error.type, error.location, final))
        window.seen += 1
        if window.seen <= IN_FULL:
            _log(handler, settlement, error, raised)
            return
        window.untold += 1
        window.last = settlement
        if not self._summary_is_due:
            self._summary_is_due = True
            self._later(SUMMARY_EVERY, self.tell)

    def tell(self) -> None:
        """Log how many failures were not logged one by one since the last time."""
        self._summary_is_due = False
        for kind, window in self._windows.items():
            if window.untold and window.last is not None:
                _log_summary(kind, window.untold, window.last)
                window.untold, window.last = 0, None

    def _window(self, kind: Kind) -> _Window:
        now = self._now()
        window = self._windows.get(kind)
        if window is None and len(self._windows) >= MOST_KINDS:
            self._forget(now)
            if len(self._windows) >= MOST_KINDS:
                kind = Kind(kind.handler, "different errors", "", kind.final)
                window = self._windows.get(kind)
        if window is None:
            self._windows[kind] = window = _Window(now)
        elif now >= window.since + WINDOW:
            window.since, window.seen = now, 0
        return window

    def _forget(self, now: float) -> None:
        self._windows = {kind: window for kind, window in self._windows.items() if window.untold or now < window.since + WINDOW}


def _level(final: bool) -> int:
    return logging.ERROR if final else logging.WARNING


def _log(handler: str, settlement: Settlement, error: ErrorInfo, raised: BaseException | None) -> None:
    how, then = _FAILURES.get(settlement.outcome, "failed"), _then(settlement)
    text = "%s %s in attempt %d of task %s: %s%s; %s"
    arguments = (handler, how, settlement.attempt, settlement.id, _one_line(str(error)), _at(error.location), then)
    fields = {
        "duetime_task": settlement.id,
        "duetime_handler": handler,
        "duetime_attempt": settlement.attempt,
        "duetime_outcome": settlement.outcome.value,
        "duetime_error": error.type,
        "duetime_location": error.location,
        "duetime_final": settlement.state is State.FAILED,
    }
    info = None if raised is None else (type(raised), raised, own_part(raised.__traceback__))
    _emit(_level(settlement.state is State.FAILED), text, arguments, fields, info, error.traceback[-MAX_TRACEBACK:].rstrip("\n"))


def _log_summary(kind: Kind, number: int, last: Settlement) -> None:
    text = "%s failed %s more time%s like this: %s%s; the last was attempt %d of task %s"
    arguments = (kind.handler, f"{number:,}", "" if number == 1 else "s", kind.type, _at(kind.location), last.attempt, last.id)
    fields = {
        "duetime_task": last.id,
        "duetime_handler": kind.handler,
        "duetime_attempt": last.attempt,
        "duetime_outcome": last.outcome.value,
        "duetime_error": kind.type,
        "duetime_location": kind.location,
        "duetime_final": kind.final,
        "duetime_count": number,
    }
    _emit(_level(kind.final), text, arguments, fields, None, "")


def _emit(level: int, text: str, arguments: tuple[object, ...], fields: dict[str, object], info: Any, trace: str) -> None:
    """Log a record whose traceback is the bounded text that is also stored, whatever formats it.

    `Logger.error(exc_info=…)` would have each handler format the exception again, with the worker's frames and a message of any length.
    """
    record = logger.makeRecord(logger.name, level, __file__, 0, text, arguments, info, extra=fields)
    record.exc_text = trace or None
    with contextlib.suppress(Exception):  # a handler or filter of the program that fails must not end the worker
        logger.handle(record)


def _then(settlement: Settlement) -> str:
    if settlement.state is State.FAILED:
        return "the task has failed"
    if settlement.due_at is None:
        return f"the task is {settlement.state}"
    wait = max(0.0, (settlement.due_at - settlement.finished_at) / SECOND)
    return f"it runs again in {wait:.3g} s" if wait >= 0.001 else "it runs again"


def _at(location: str) -> str:
    return f" ({location})" if location else ""


def _one_line(text: str) -> str:
    """Return the beginning of a text as one line without control characters: nobody forges log lines with an exception's message."""
    said = text[:MAX_SAID] + ("…" if len(text) > MAX_SAID else "")
    return said if said.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in said)
