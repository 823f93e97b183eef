"""Counting what passes between programs and a PostgreSQL server, from a proxy between them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

ENCRYPTION = (80_877_103).to_bytes(4)  # a connection may begin by asking for TLS, which the server answers by one byte without a frame
UNASKED = b"ANS"  # notification, notice, changed parameter: the server says these on its own
TERMINATE = b"X\0\0\0\4"


class WireMeter:
    """Totals over all connections."""

    def __init__(self) -> None:
        self.statements = 0
        self.round_trips = 0
        self.transactions = 0
        self.longest = 0.0

    def read(self) -> dict[str, float]:
        """Return the totals, and begin to look for the longest transaction anew."""
        self.longest = 0.0
        return {"statements": self.statements, "round_trips": self.round_trips, "transactions": self.transactions}

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        longest = self.longest
        return {name: value - before[name] for name, value in self.read().items()} | {"longest": longest}


class MeteredConversation:
    """One connection, as `tests.servers.wire.Conversation` asks for it.

    A statement is what the server reports as complete, `begin` and `commit` included. A round trip begins whenever the client speaks after
    the server has answered. A transaction lasts from the client's first word to the server's word that it is idle again.
    """

    def __init__(self, meter: WireMeter) -> None:
        self._meter = meter
        self._from_server = b""
        self._bare_bytes = 0
        self._answered = True
        self._began: float | None = None
        self._done = 0  # statements of the open transaction

    def client(self, data: bytes) -> list[bytes]:
        if data[4:8] == ENCRYPTION and len(data) == 8:
            self._bare_bytes = 1
        if self._answered and data != TERMINATE:
            self._meter.round_trips += 1
            self._answered = False
        if self._began is None:
            self._began = time.perf_counter()
        return []

    def server(self, data: bytes) -> bool:
        self._from_server += data
        if self._bare_bytes:
            self._from_server = self._from_server[1:]
            self._bare_bytes, self._answered = 0, True
        ready = False
        for kind, first in self._messages():
            if kind in UNASKED:
                continue
            self._answered = True
            if kind == ord("C"):  # CommandComplete
                self._meter.statements += 1
                self._done += 1
            elif kind == ord("Z"):  # ReadyForQuery
                ready = True
                if first == ord("I"):
                    self._idle()
        return ready

    def _idle(self) -> None:
        if self._done and self._began is not None:
            self._meter.transactions += 1
            self._meter.longest = max(self._meter.longest, time.perf_counter() - self._began)
        self._began, self._done = None, 0

    def _messages(self) -> Iterator[tuple[int, int]]:
        """Take the complete messages: the kind of each and the first byte of its body."""
        data, at = self._from_server, 0
        while len(data) - at >= 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5])
            if end > len(data):
                break
            yield data[at], data[at + 5] if end > at + 5 else 0
            at = end
        self._from_server = data[at:]
