"""The two fields of the W3C Trace Context, as they travel in a task's meta.

This needs no tracing library: a server without one passes on the headers of a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MOST_STATE = 512  # characters that the recommendation requires to be passed on

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?")
_STATE = re.compile(r"[ -~\t]+")


def trace_id(meta: Mapping[str, str]) -> str:
    """Return the id of the trace that a task belongs to, 32 hexadecimal digits; "" if it belongs to none."""
    parent = read_headers(meta.get(TRACEPARENT), None).get(TRACEPARENT, "")
    return parent.split("-")[1] if parent else ""


def read_headers(parent: str | None, state: str | None) -> dict[str, str]:
    """Return what to add to a task's meta. Invalid headers are ignored, because a trace is no reason to refuse a task."""
    parent, state = (parent or "").strip(), (state or "").strip()
    if not _PARENT.fullmatch(parent) or (parent.startswith("00") and len(parent) != 55):
        return {}
    if not state or len(state) > MOST_STATE or not _STATE.fullmatch(state):
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}
