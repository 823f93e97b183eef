"""Publish over MQTT 5 with QoS 1: each message is confirmed by the broker's PUBACK.

aiomqtt connects and keeps the connection alive. It does not say what a PUBACK says, so the callbacks are extended here: a broker that
does not permit a topic confirms too, with a reason.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from contextlib import suppress
from typing import Any

from aiomqtt import Client, MqttError, ProtocolVersion
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.client import MQTT_ERR_SUCCESS
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from duetime.clock import SECOND
from duetime.targets.publish.address import Address
from duetime.targets.publish.brokers import CONNECT_WITHIN
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused

_NOT_PERMITTED = (0x86, 0x87, 0x8C)  # bad user name or password, not authorized, bad authentication method
_TOO_LARGE = 0x95
_BUSY = (0x88, 0x89, 0x97)  # server unavailable, busy, quota exceeded
_LONGEST_EXPIRY = 0xFFFF_FFFF


class _Client(Client):
    """Notes what the broker says of each message, and of the connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.waiting: dict[int, asyncio.Future[ReasonCode]] = {}
        self.largest: int | None = None

    def send(self, message: Message, properties: Properties) -> tuple[int, asyncio.Future[ReasonCode]]:
        info = self._client.publish(message.to, message.body, 1, message.options.retain, properties)
        if info.rc != MQTT_ERR_SUCCESS:
            raise BrokerUnreachable(f"the message cannot be sent (error {info.rc})")
        reply: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
        self.waiting[info.mid] = reply
        return info.mid, reply

    @property
    def is_open(self) -> bool:
        return self._connected.done() and not self._disconnected.done()

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Properties | None = None) -> None:
        self.largest = getattr(properties, "MaximumPacketSize", None)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties) -> None:
        super()._on_publish(client, userdata, mid, reason_code, properties)
        reply = self.waiting.get(mid)
        if reply is not None and not reply.done():
            reply.set_result(reason_code)

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Properties | None = None) -> None:
        super()._on_disconnect(client, userdata, flags, reason_code, properties)
        for reply in self.waiting.values():
            if not reply.done():
                reply.set_exception(BrokerUnreachable(f"disconnected: {reason_code}"))


class MqttLink:
    """One connection."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    @property
    def is_open(self) -> bool:
        return self._client.is_open

    async def publish(self, message: Message) -> Acknowledgement:
        properties = _properties(message)
        packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
        size = len(message.body) + len(message.to.encode()) + len(packed) + 16
        if self._client.largest is not None and size > self._client.largest:
            limit = f"the broker takes packets of {self._client.largest:,} (its maximum packet size)"
            raise PublishRefused("MessageTooLarge", f"the message has {size:,} bytes with its properties, and {limit}", fatal=True)
        number, reply = self._client.send(message, properties)
        try:
            reason = await reply
        finally:
            del self._client.waiting[number]
        if reason.is_failure:
            raise _refusal(message.to, reason)
        return {"confirmed": "PUBACK", "note": None if reason.value == 0 else str(reason)}

    async def close(self) -> None:
        with suppress(MqttError):
            await self._client.__aexit__(None, None, None)


def _properties(message: Message) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = message.content_type
    properties.UserProperty = list(message.headers.items())
    if message.expires_at is not None:
        seconds = math.ceil((message.expires_at - message.now) / SECOND)
        properties.MessageExpiryInterval = min(max(seconds, 1), _LONGEST_EXPIRY)
    return properties


def _refusal(to: str, reason: ReasonCode) -> Exception:
    if reason.value in _BUSY:
        return BrokerUnreachable(f"the broker cannot take it now: {reason}")
    if reason.value in _NOT_PERMITTED:
        return PublishRefused("NotPermitted", f"the broker does not permit this user to publish to {to}: {reason}")
    if reason.value == _TOO_LARGE:
        return PublishRefused("MessageTooLarge", f"the message is larger than the broker takes: {reason}", fatal=True)
    return PublishRefused("PublishRefused", f"the broker refused the message: {reason}")


async def open_mqtt(address: Address, host: tuple[str, int]) -> MqttLink:
    """Connect to a broker; raises BrokerUnreachable, or PublishRefused for credentials that are wrong."""
    name, port = host
    client = _Client(
        hostname=name,
        port=port,
        username=address.user,
        password=address.password,
        protocol=ProtocolVersion.V5,
        tls_context=ssl.create_default_context() if address.tls else None,
        timeout=CONNECT_WITHIN,
        keepalive=20,
    )
    try:
        await client.__aenter__()
    except MqttConnectError as error:
        if isinstance(error.rc, ReasonCode) and error.rc.value in _BUSY:
            raise BrokerUnreachable(str(error)) from error
        raise PublishRefused("NotPermitted", f"{address.shown} refuses the connection: {error}; it must speak MQTT 5") from error
    except (MqttError, OSError) as error:
        raise BrokerUnreachable(str(error) or type(error).__name__) from error
    return MqttLink(client)
