"""What a server wrote during one test, short enough to be read."""

from __future__ import annotations

import re

WIDTH = 200  # a statement may be pages long
ERRORS = 20
LINES = 30

_BEGINNING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \S+ \[\d+\] (?P<level>[A-Z0-9]+): ")  # as log_line_prefix says


def excerpt(text: str) -> str:
    """Return the errors and the last lines of a log, each message on one line."""
    messages: list[str] = []
    for line in text.splitlines():
        if messages and not _BEGINNING.match(line):
            messages[-1] += " " + line.strip()  # a message of several lines
        else:
            messages.append(line)
    errors = [index for index, message in enumerate(messages) if _is_error(message)]
    shown = sorted({*errors[-ERRORS:], *range(max(0, len(messages) - LINES), len(messages))})
    lines = [_cut(messages[index]) for index in shown]
    return "\n".join([*([f"… {len(messages) - len(shown)} earlier messages"] if len(shown) < len(messages) else []), *lines])


def _is_error(message: str) -> bool:
    found = _BEGINNING.match(message)
    return found is not None and found["level"] in ("ERROR", "FATAL", "PANIC")


def _cut(message: str) -> str:
    plain = re.sub(r"\s+", " ", message)
    return plain if len(plain) <= WIDTH else f"{plain[:WIDTH]}…"
