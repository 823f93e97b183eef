"""Passing on what attempts print, line by line, beside keeping it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

MOST_OF_A_LINE = 8_192  # characters that are passed on although no newline has come yet


class Printed(NamedTuple):
    """A line that an attempt printed."""

    handler: str
    task: str
    attempt: int
    line: str


Echo: TypeAlias = Callable[[Printed], None]


class Lines:
    """Makes lines of what one attempt prints, in whatever pieces and threads, up to as much as is kept of it."""

    def __init__(self, echo: Echo, handler: str, task: str, attempt: int, cap: int) -> None:
        self._echo = echo
        self._of = (handler, task, attempt)
        self._left = cap
        self._cut = False
        self._line = ""
        self._lock = threading.RLock()  # reentrant: a signal handler or a finaliser may print too

    def write(self, text: str) -> None:
        with self._lock:
            if self._cut:
                return
            if len(text) > self._left:
                self._cut = True
                text = text[: self._left] + "\n… the rest is neither kept nor shown: the attempt prints too much\n"
            self._left -= len(text)
            *whole, self._line = (self._line + text).split("\n")
            if len(self._line) > MOST_OF_A_LINE:
                whole.append(self._line)
                self._line = ""
            for line in whole:
                self._echo(Printed(*self._of, line))

    def close(self) -> None:
        """Pass on an unfinished line."""
        with self._lock:
            if self._line:
                self._echo(Printed(*self._of, self._line))
                self._line = ""
