"""What a proxy understands of the conversation that passes through it: where a request begins and where its answer ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Conversation(Protocol):
    """One connection's two directions, fed with every byte that passes."""

    def client(self, data: bytes) -> list[bytes]:
        """Give the requests that these bytes of the client complete."""
        ...

    def server(self, data: bytes) -> bool:
        """Tell whether an answer ends in these bytes of the server."""
        ...


class Plain:
    """Knows no protocol: all that the client said since the last answer is a request, and any word of the server answers it."""

    def __init__(self) -> None:
        self._said = b""

    def client(self, data: bytes) -> list[bytes]:
        self._said += data
        return [self._said]

    def server(self, data: bytes) -> bool:
        self._said = b""
        return True


class PostgresConversation:
    """PostgreSQL's protocol, version 3, without encryption.

    A request is the execution of a statement: its text followed by the message that binds its arguments, because a prepared
    statement is executed by a name that says nothing. An answer ends when the server is ready for the next request; by then
    what was done outside of a transaction block is committed.
    """

    ENCRYPTION = (80_877_103, 80_877_104)  # TLS or GSSAPI is asked for by one of these numbers, and answered by a byte without a frame

    def __init__(self) -> None:
        self._from_client = b""
        self._from_server = b""
        self._started = False
        self._bare_bytes = 0
        self._texts: dict[bytes, bytes] = {}  # by name of the prepared statement

    def client(self, data: bytes) -> list[bytes]:
        self._from_client += data
        while not self._started and len(self._from_client) >= 8:
            length, number = int.from_bytes(self._from_client[:4]), int.from_bytes(self._from_client[4:8])
            if len(self._from_client) < length:
                break
            self._from_client = self._from_client[length:]
            self._bare_bytes += number in self.ENCRYPTION
            self._started = number not in self.ENCRYPTION
        if not self._started:
            return []
        messages, self._from_client = _split(self._from_client)
        return [request for kind, body in messages for request in self._requests(kind, body)]

    def _requests(self, kind: bytes, body: bytes) -> Iterator[bytes]:
        if kind == b"P":  # Parse
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text
        elif kind == b"B":  # Bind
            _portal, name, _ = body.split(b"\0", 2)
            yield self._texts.get(name, b"") + b"\0" + body
        elif kind == b"Q":  # Query
            yield body

    def server(self, data: bytes) -> bool:
        self._from_server += data
        bare = min(self._bare_bytes, len(self._from_server))
        self._bare_bytes -= bare
        messages, self._from_server = _split(self._from_server[bare:])
        return any(kind == b"Z" for kind, _ in messages)  # ReadyForQuery


def _split(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Take messages apart into kind and body; give what is left of an incomplete one too."""
    messages, at = [], 0
    while len(data) - at >= 5:
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5])
        if end > len(data):
            break
        messages.append((data[at : at + 1], data[at + 5 : end]))
        at = end
    return messages, data[at:]
