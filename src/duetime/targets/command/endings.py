"""What the end of a command means: pure rules from its exit code, its signal and its result."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import msgspec

from duetime.model.artifacts import Artifact
from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import MAX_PAYLOAD, ErrorInfo
from duetime.targets.command.command import Exit
from duetime.targets.command.supervising import Report
from duetime.targets.payload import from_json
from duetime.targets.target import Stop

_STOPPED = {Stop.CANCEL: Outcome.CANCELLED, Stop.RELEASE: Outcome.RELEASED, Stop.LOST: Outcome.RELEASED}


def end_of(
    report: Report,
    exits: Mapping[int, Exit],
    *,
    result: bytes,
    result_type: Any,
    printed: str,
    retry_delay: float,
    stopped: Stop | None = None,
    timeout: float = 0.0,
    artifact: Artifact | None = None,
) -> Ended:
    """Return the end of an attempt. `printed` is the last that it printed, `stopped` why it was told to stop, if it was.

    A command that was told to stop and exits with success all the same has succeeded.
    """
    detail = detail_of_command(report, artifact)
    if report.status is None:
        return Ended(Outcome.FAILED, error=ErrorInfo("CommandNotStarted", report.problem or ""), detail=detail)
    code = os.waitstatus_to_exitcode(report.status)
    meaning = exits.get(code, "failed") if code >= 0 else "failed"
    if meaning == "succeeded":
        return _succeeded(result, result_type, detail)
    if stopped is Stop.TIMEOUT:
        error = ErrorInfo("TimedOut", f"ran longer than its timeout of {timeout:g} s and was stopped: {manner(code)}", printed)
        return Ended(Outcome.TIMED_OUT, error=error, detail=detail)
    if stopped is not None:
        return Ended(_STOPPED[stopped], detail=detail)
    if report.stopped:  # all commands were, because the worker lost its lease
        return Ended(Outcome.LOST, error=ErrorInfo("CommandKilled", "the worker gave up all that it ran"), detail=detail)
    if report.out_of_memory:
        error = ErrorInfo("OutOfMemory", f"the command used up the memory of its sandbox: {manner(code)}", printed)
        return Ended(Outcome.FAILED, error=error, detail=detail)
    error = ErrorInfo("CommandFailed", manner(code), printed)
    if meaning == "retry":
        return Ended(Outcome.RETRY_LATER, error=error, delay=retry_delay, detail=detail)
    return Ended(Outcome.FATAL if meaning == "fatal" else Outcome.FAILED, error=error, detail=detail)


def _succeeded(result: bytes, result_type: Any, detail: bytes | None) -> Ended:
    """Keep the result. The work is done, so one that does not fit is Fatal, not retried."""
    if len(result) > MAX_PAYLOAD:
        problem = f"the result on descriptor 3 has more than {MAX_PAYLOAD:,} bytes; store the data elsewhere and pass its address"
        return Ended(Outcome.FATAL, error=ErrorInfo("PayloadTooLarge", problem), detail=detail)
    given = result.strip() or None
    try:
        msgspec.json.decode(given or b"null", type=Any if result_type is None else result_type, dec_hook=from_json)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        what = "wrote no result to descriptor 3" if given is None else "wrote a result to descriptor 3 that does not fit"
        return Ended(Outcome.FATAL, error=ErrorInfo("InvalidResult", f"the command {what}: {error}"[:2_000]), detail=detail)
    return Ended(Outcome.SUCCEEDED, result=None if given is None else msgspec.json.format(given, indent=-1), detail=detail)


def detail_of_artifact(artifact: Artifact | None) -> dict[str, object]:
    """Return what is kept of the artifact that an attempt runs: which bytes it was."""
    return {} if artifact is None else {"artifact": artifact.reference, "sha256": artifact.sha256}


def detail_of_command(report: Report, artifact: Artifact | None = None) -> bytes | None:
    """Return what is kept of a command with its attempt."""
    if report.status is None:
        return detail_of(detail_of_artifact(artifact))
    code = os.waitstatus_to_exitcode(report.status)
    return detail_of(
        {
            "exit_code": code if code >= 0 else None,
            "signal": None if code >= 0 else signal_name(-code),
            "cpu_seconds": round(report.cpu, 3),
            "peak_memory": report.memory,
            **detail_of_artifact(artifact),
        }
    )


def manner(code: int) -> str:
    """Say how a process ended whose code is that of `os.waitstatus_to_exitcode`."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code} ({signal_name(-code)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
