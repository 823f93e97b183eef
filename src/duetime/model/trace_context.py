"""The trace that a task belongs to, as it travels in a task's meta: the two fields of the W3C's Trace Context.

Nothing here needs a tracing library: a server without one passes on what a request says.
"""

from __future__ import annotations

import re

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MOST_STATE = 512  # characters that must be passed on at least, by the recommendation

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?")
_STATE = re.compile(r"[ -~\t]+")


def read_headers(parent: str | None, state: str | None) -> dict[str, str]:
    """Give what to put into a task's meta; nothing if the headers do not fit, because a trace is never a reason to refuse a task."""
    parent, state = (parent or "").strip(), (state or "").strip()
    if not _PARENT.fullmatch(parent) or (parent.startswith("00") and len(parent) != 55):
        return {}
    if not state or len(state) > MOST_STATE or not _STATE.fullmatch(state):
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}
