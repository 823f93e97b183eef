"""Publish to Kafka: confirmed by all replicas in sync (`acks=all`), idempotent within one connection of the producer.

A message's key is the task's key, or its id: messages of one key keep their order, in one partition.
"""

from __future__ import annotations

import ssl

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from duetime.targets.publish.address import Address
from duetime.targets.publish.brokers import CONFIRM_WITHIN, closed_in_time
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused
from duetime.targets.publish.spec import CONTENT_TYPE

_LARGEST = 1_048_576  # bytes of a request: what brokers take unless told otherwise
_AWAY = (KafkaConnectionError, KafkaTimeoutError, RequestTimedOutError, ProducerClosed)


class KafkaLink:
    """One producer."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self.is_open = True

    async def publish(self, message: Message) -> Acknowledgement:
        headers = {CONTENT_TYPE: message.content_type, **message.headers}
        try:
            written = await self._producer.send_and_wait(
                message.to,
                message.body,
                key=(message.key or message.id).encode(),
                headers=[(name.lower(), value.encode()) for name, value in headers.items()],
            )
        except UnknownTopicOrPartitionError as error:
            hint = f"create it, such as with kafka-topics.sh --create --topic {message.to}"
            raise PublishRefused("NoTopic", f"there is no topic {message.to}; {hint}") from error
        except MessageSizeTooLargeError as error:
            raise PublishRefused("MessageTooLarge", f"the message is larger than the broker takes: {_text(error)}", fatal=True) from error
        except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError) as error:
            raise PublishRefused(
                "NotPermitted", f"the broker does not permit this user to write to {message.to}: {_text(error)}"
            ) from error
        except (*_AWAY, OSError) as error:
            raise BrokerUnreachable(_text(error)) from error
        except KafkaError as error:
            if error.retriable:
                raise BrokerUnreachable(_text(error)) from error
            raise PublishRefused("PublishRefused", f"the broker refused the message: {_text(error)}") from error
        return {"topic": written.topic, "partition": written.partition, "offset": written.offset}

    async def close(self) -> None:
        self.is_open = False
        await _stop(self._producer)


async def _stop(producer: AIOKafkaProducer) -> None:
    """Stop a producer without waiting for what cannot be sent: its tasks would go on trying for ever."""
    if producer._sender is not None:
        await producer._sender.close()
    await producer.stop()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def open_kafka(address: Address, host: tuple[str, int]) -> KafkaLink:
    """Connect to a cluster; raises BrokerUnreachable, or PublishRefused for credentials that are wrong."""
    credentials = "SASL_" if address.user is not None else ""
    producer = AIOKafkaProducer(
        bootstrap_servers=[f"{name}:{port}" for name, port in address.hosts],
        client_id="duetime",
        acks="all",
        enable_idempotence=True,
        max_request_size=_LARGEST,
        request_timeout_ms=int(CONFIRM_WITHIN * 800),  # so that its own errors, which say more, come before ours
        retry_backoff_ms=1_000,
        security_protocol=f"{credentials}{'SSL' if address.tls else 'PLAINTEXT'}",
        ssl_context=ssl.create_default_context() if address.tls else None,
        sasl_mechanism="PLAIN",
        sasl_plain_username=address.user,
        sasl_plain_password=address.password,
    )
    try:
        await producer.start()
    except BaseException as error:
        await closed_in_time(_stop(producer))
        if isinstance(error, SaslAuthenticationFailed):
            raise PublishRefused("NotPermitted", f"{address.shown} refuses user and password: {_text(error)}") from error
        if isinstance(error, KafkaError | OSError):
            raise BrokerUnreachable(_text(error)) from error
        raise
    return KafkaLink(producer)
