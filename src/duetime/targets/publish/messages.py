"""Messages as plain values, and how publishing one can fail: what a broker's client is given and what it raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from duetime.clock import Instant


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What some brokers can be told: the longest length of a stream (Redis), an exchange (AMQP), keeping the last message (MQTT)."""

    max_length: int | None = None
    exchange: str = ""
    retain: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `id` is the task's, the same for all its attempts; `key` the task's own name, if it has one."""

    id: str
    to: str
    headers: Mapping[str, str]
    body: bytes
    content_type: str
    key: str | None = None
    expires_at: Instant | None = None
    now: Instant = 0
    options: Options = Options()


Acknowledgement = Mapping[str, Any]  # what a broker says of a message that it has, such as its stream and sequence


class BrokerUnreachable(Exception):
    """There is no connection, or it was lost before the broker confirmed: the message may be there or not."""

    def __init__(self, message: str, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class PublishRefused(Exception):
    """The broker has said no. `kind` becomes the error's type; `fatal` if it would say so again."""

    def __init__(self, kind: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.fatal = fatal


class Link(Protocol):
    """One connection to a broker, shared by all who publish there. It never connects again by itself."""

    @property
    def is_open(self) -> bool: ...

    async def publish(self, message: Message) -> Acknowledgement:
        """Publish a message and return the broker's acknowledgement; raises BrokerUnreachable or PublishRefused."""
        ...

    async def close(self) -> None: ...


class Publisher(Protocol):
    """Publishes the messages of a handler: to a broker, or to a test."""

    async def publish(self, message: Message) -> Acknowledgement:
        """Publish a message and return the broker's acknowledgement; raises BrokerUnreachable or PublishRefused."""
        ...
