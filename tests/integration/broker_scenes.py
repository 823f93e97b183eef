"""A broker of each kind with what reads back what was published to it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import aio_pika
import aiomqtt
import nats
import redis.asyncio as redis_client
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from nats.js.api import StreamConfig
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.servers.brokers import AmqpServer, BrokerServer, KafkaMock, MqttServer, NatsServer, RedisServer
from tests.servers.waiting import PATIENCE


class Published(NamedTuple):
    """One message as a consumer sees it; the names of headers are in lower case."""

    to: str
    headers: dict[str, str]
    body: bytes


class Scene(Protocol):
    """A broker whose messages to `shop.…` can be read."""

    server: BrokerServer

    async def prepare(self) -> None:
        """Make the broker keep what is published."""
        ...

    async def published(self) -> list[Published]:
        """Return all messages in the order in which the broker took them."""
        ...


class NatsScene:
    """A stream of all subjects of the shop."""

    def __init__(self, settings: str = "") -> None:
        self.server: BrokerServer = NatsServer(settings)

    async def prepare(self, max_msg_size: int = -1) -> None:
        client = await nats.connect(self.server.url)
        await client.jetstream().add_stream(StreamConfig(name="SHOP", subjects=["shop.>"], max_msg_size=max_msg_size))
        await client.close()

    async def published(self) -> list[Published]:
        client = await nats.connect(self.server.url)
        stream = client.jetstream()
        last = (await stream.stream_info("SHOP")).state.last_seq
        found = []
        for sequence in range(1, last + 1):
            message = await stream.get_msg("SHOP", sequence)
            lines = base64.b64decode(message.hdrs or "").decode().split("\r\n")[1:]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            found.append(Published(message.subject or "", headers, message.data or b""))
        await client.close()
        return found


class RedisScene:
    """Streams whose names begin with that of the shop."""

    def __init__(self, *settings: str) -> None:
        self.server: BrokerServer = RedisServer(*settings)

    async def prepare(self) -> None:
        pass

    async def published(self) -> list[Published]:
        client: Any = redis_client.Redis(port=self.server.port, decode_responses=True)
        found = []
        for stream in sorted(await client.keys("shop.*")):
            for _, fields in await client.xrange(stream):
                found.append(Published(stream, fields, fields.pop("body").encode()))
        await client.aclose()
        return found


class MqttScene:
    """A session that holds what is published to the shop, also while its consumer is away."""

    def __init__(self, settings: str = "allow_anonymous true") -> None:
        self.server: BrokerServer = MqttServer(settings)
        assert isinstance(self.server, MqttServer)
        self._save = self.server.save
        self._found: list[Published] = []

    def _consumer(self) -> aiomqtt.Client:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3_600
        return aiomqtt.Client(
            "127.0.0.1",
            self.server.port,
            identifier="consumer",
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            properties=properties,
            max_queued_incoming_messages=0,
        )

    async def prepare(self) -> None:
        async with self._consumer() as consumer:
            await consumer.subscribe("#", qos=1)
        self._save()

    async def published(self) -> list[Published]:
        async with self._consumer() as consumer:
            # what was published before this comes before it
            mark = str(uuid4())
            await consumer.publish("mark", mark, qos=1)
            async for message in consumer.messages:
                assert isinstance(message.payload, bytes)
                if str(message.topic) == "mark":
                    if message.payload == mark.encode():
                        break
                    continue
                headers = {name.lower(): value for name, value in getattr(message.properties, "UserProperty", [])}
                headers["content-type"] = getattr(message.properties, "ContentType", "")
                if message.properties is not None and hasattr(message.properties, "MessageExpiryInterval"):
                    headers["expires"] = str(message.properties.MessageExpiryInterval)
                self._found.append(Published(str(message.topic), headers, message.payload))
        return self._found


class AmqpScene:
    """A durable queue of the shop."""

    def __init__(self) -> None:
        self.server: BrokerServer = AmqpServer()
        self._found: list[Published] = []

    async def prepare(self) -> None:
        async with await aio_pika.connect(self.server.url) as connection:
            await (await connection.channel()).declare_queue("shop.eu", durable=True)

    async def published(self) -> list[Published]:
        async with await aio_pika.connect(self.server.url) as connection:
            queue = await (await connection.channel()).declare_queue("shop.eu", durable=True)
            while (message := await queue.get(fail=False)) is not None:
                headers = {name.lower(): str(value) for name, value in message.headers.items()}
                headers |= {"content-type": message.content_type or "", "message-id": message.message_id or ""}
                self._found.append(Published(message.routing_key or "", headers, message.body))
                await message.ack()
        return self._found


class KafkaScene:
    """A topic of the mock, whose partitions are read one by one."""

    def __init__(self) -> None:
        self.server: BrokerServer = KafkaMock()

    async def prepare(self) -> None:
        pass

    async def published(self) -> list[Published]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Published]:
        """Read with librdkafka, each of whose calls has its own time-out; stopping a consumer of aiokafka may wait for ever."""
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{self.server.port}", "group.id": "reader", "enable.auto.commit": False})
        try:
            numbers = consumer.list_topics("shop.eu", timeout=PATIENCE).topics["shop.eu"].partitions
            ends = {number: consumer.get_watermark_offsets(TopicPartition("shop.eu", number), timeout=PATIENCE)[1] for number in numbers}
            consumer.assign([TopicPartition("shop.eu", number, OFFSET_BEGINNING) for number in numbers])
            found: list[Published] = []
            for _ in range(sum(ends.values())):
                message = consumer.poll(PATIENCE)
                assert message is not None, f"read {len(found)} messages within {PATIENCE:g} s; the partitions hold {ends}"
                assert message.error() is None, str(message.error())
                headers = {name: _text(value) for name, value in dict(message.headers() or ()).items()}
                body = message.value()
                assert isinstance(body, bytes)
                found.append(Published("shop.eu", {**headers, "key": _text(message.key())}, body))
            return found
        finally:
            consumer.close()


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until a condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110  # another process decides it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE:g} s in vain until {what}") from None
