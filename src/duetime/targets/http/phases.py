"""How long the parts of a request took, and which one is under way."""

from __future__ import annotations

from collections.abc import Callable
from ssl import SSLObject
from time import monotonic
from typing import Any

from duetime.clock import SECOND

_UNDER_WAY = {
    "prepare": "it prepared the request",
    "dns": "it looked up the host's name",
    "connect": "it connected",
    "tls": "it shook hands (TLS)",
    "first_byte": "it waited for the answer",
    "body": "it read the answer's body",
}
# what a test run tells when a phase begins; "connect" is told with the address, when there is a socket
_BEGINS = {
    "dns": "looks up the host's name",
    "tls": "shakes hands (TLS)",
    "first_byte": "is connected, sends the request and waits for the answer",
    "body": "reads the answer's body",
}


class Phases:
    """The phases of one attempt, each with its seconds. `under_way` names the present one; a redirect goes through them again.

    `tell` is given a line whenever one begins.
    """

    __slots__ = ("_began", "_spent", "_switched", "_tell", "address", "certificate_expires", "redirects", "reused", "tls", "under_way")

    def __init__(self, tell: Callable[[str], object] | None = None) -> None:
        self._tell = tell
        self._began = self._switched = monotonic()
        self._spent: dict[str, float] = {}
        self.under_way = "prepare"
        self.reused: bool | None = None
        self.address: str | None = None
        self.certificate_expires: str | None = None
        self.redirects = 0
        self.tls: SSLObject | None = None  # of a connection that was made for this request

    def enter(self, phase: str) -> None:
        """Note that a phase begins, and so that the one before has ended."""
        now = monotonic()
        if self.under_way != "prepare":
            self._spent[self.under_way] = self._spent.get(self.under_way, 0.0) + now - self._switched
        self.under_way, self._switched = phase, now
        if self._tell is not None and phase in _BEGINS:
            self.say(_BEGINS[phase])

    @property
    def told(self) -> bool:
        """Whether somebody watches the attempt."""
        return self._tell is not None

    def say(self, text: str) -> None:
        """Tell whoever watches the attempt what happens now."""
        if self._tell is not None:
            self._tell(f"{monotonic() - self._began:7.3f} s  {text}\n")

    def connecting(self) -> None:
        """Note that a connection is asked for. It is one that is used again unless a socket is made."""
        self.reused = True
        self.enter("connect")

    def connected(self) -> None:
        """Note that there is a connection, and the request is sent."""
        if self.reused:
            self.say("uses a connection that is open already")
        self.enter("first_byte")
        if self.reused:
            del self._spent["connect"]

    def elapsed(self) -> int:
        """Return the microseconds since the attempt began."""
        return int((monotonic() - self._began) * SECOND)

    @property
    def sentence(self) -> str:
        """What was done in the phase under way, as the end of a sentence."""
        return _UNDER_WAY.get(self.under_way, self.under_way)

    def facts(self) -> dict[str, Any]:
        """Return what to keep with the attempt."""
        if self.under_way != "done":
            self.enter("done")
        spent = {name: round(seconds, 5) for name, seconds in self._spent.items() if name != "done"}
        return {
            "address": self.address,
            "reused": self.reused or None,
            "redirects": self.redirects or None,
            "phases": {**spent, "total": round(self._switched - self._began, 5)} if spent else None,
            "certificate_expires": self.certificate_expires,
        }
