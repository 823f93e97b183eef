"""Publish to NATS JetStream: each message is confirmed by the stream that stores it.

The task's id is the message's `Nats-Msg-Id`: within the stream's duplicate window a message that is published again is stored once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from itertools import count
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from duetime.targets.publish.address import Address
from duetime.targets.publish.brokers import CONNECT_WITHIN
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused
from duetime.targets.publish.spec import CONTENT_TYPE

_NOT_PERMITTED = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]*)\"", re.IGNORECASE)
_TOO_LARGE = 10054  # JetStream's own numbers of errors
_UNAVAILABLE = 503


class _Refusal(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Reply(msgspec.Struct):
    """JetStream's reply to a message."""

    stream: str = ""
    seq: int = 0
    duplicate: bool | None = None
    domain: str | None = None
    error: _Refusal | None = None


_read_reply = msgspec.json.Decoder(_Reply).decode


class NatsLink:
    """One connection. Replies come to an inbox of its own, each under the number of its message."""

    def __init__(self) -> None:
        self.client = Client()
        self._numbers = count(1)
        self._inbox = ""
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._problem = "it was closed"

    async def open(self, address: Address, host: tuple[str, int]) -> None:
        name, port = host
        await self.client.connect(
            f"nats://[{name}]:{port}" if ":" in name else f"nats://{name}:{port}",
            name="duetime",
            user=address.user if address.password is not None else None,
            password=address.password,
            token=address.user if address.password is None else None,
            tls=ssl.create_default_context() if address.tls else None,
            tls_hostname=name if address.tls else None,
            allow_reconnect=False,
            connect_timeout=int(CONNECT_WITHIN),
            ping_interval=20,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    @property
    def is_open(self) -> bool:
        return self.client.is_connected

    async def publish(self, message: Message) -> Acknowledgement:
        headers = {CONTENT_TYPE: message.content_type, **message.headers, "Nats-Msg-Id": message.id}
        size = len(message.body) + _size(headers)
        if size > self.client.max_payload:
            raise PublishRefused(
                "MessageTooLarge", f"the message has {size:,} bytes with its headers, and the server takes {self.client.max_payload:,}"
                " (its max_payload)", fatal=True,
            )  # fmt: skip
        number = str(next(self._numbers))
        reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[number] = message.to, reply
        try:
            await self.client.publish(message.to, message.body, reply=f"{self._inbox}.{number}", headers=headers)
            replied = await reply
        except (Error, OSError) as error:
            raise BrokerUnreachable(_text(error)) from error
        finally:
            self._waiting.pop(number, None)
        return _judge(message.to, replied)

    async def close(self) -> None:
        await self.client.close()

    async def _on_reply(self, reply: Msg) -> None:
        _, waiting = self._waiting.get(reply.subject.rpartition(".")[2], ("", None))
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def _on_error(self, error: Exception) -> None:
        """Tell those whom an error concerns: NATS tells it to the connection, not to the message."""
        self._problem = _text(error)
        refused = _NOT_PERMITTED.search(self._problem)
        if refused is None:
            return
        about_replies = refused[1].lower() == "subscription"
        for to, waiting in self._waiting.values():
            if not waiting.done() and (about_replies or to.lower() == refused[2].lower()):
                what = "receive replies (_INBOX.>)" if about_replies else f"publish to {to}"
                waiting.set_exception(PublishRefused("NotPermitted", f"the server does not permit this user to {what}: {self._problem}"))

    async def _on_closed(self) -> None:
        for _, waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrokerUnreachable(self._problem))


def _size(headers: dict[str, str]) -> int:
    return len("NATS/1.0\r\n\r\n") + sum(len(name.encode()) + len(value.encode()) + len(": \r\n") for name, value in headers.items())


def _judge(to: str, replied: Msg) -> Acknowledgement:
    if not replied.data and (replied.headers or {}).get("Status") == str(_UNAVAILABLE):
        raise PublishRefused(
            "NoStream", f"no stream stores the subject {to}, so the message would be lost; create one, such as with"
            f" nats stream add NAME --subjects '{to}'",
        )  # fmt: skip
    try:
        reply = _read_reply(replied.data)
    except msgspec.MsgspecError:
        raise PublishRefused("NoStream", f"something that is not JetStream replied on the subject {to}: {replied.data[:200]!r}") from None
    if reply.error is not None:
        text = f"JetStream refused the message: {reply.error.description} (error {reply.error.err_code})"
        if reply.error.code == _UNAVAILABLE:
            raise BrokerUnreachable(text)
        if reply.error.err_code == _TOO_LARGE:
            raise PublishRefused("MessageTooLarge", f"{text}; see the stream's max_msg_size", fatal=True)
        raise PublishRefused("PublishRefused", text)
    if not reply.stream:
        raise PublishRefused("NoStream", f"something that is not JetStream replied on the subject {to}: {replied.data[:200]!r}")
    facts: dict[str, Any] = {"stream": reply.stream, "sequence": reply.seq, "duplicate": reply.duplicate or None, "domain": reply.domain}
    return facts


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def open_nats(address: Address, host: tuple[str, int]) -> NatsLink:
    """Connect to a server; raises BrokerUnreachable, or PublishRefused for credentials that are wrong."""
    link = NatsLink()
    try:
        await link.open(address, host)
    except BaseException as error:  # also when it takes too long
        await link.client.close()
        if isinstance(error, Error) and "authorization violation" in _text(error).lower():
            raise PublishRefused("NotPermitted", f"{address.shown} refuses user and password: {_text(error)}") from error
        if isinstance(error, Error | OSError):
            raise BrokerUnreachable(_text(error)) from error
        raise
    return link
