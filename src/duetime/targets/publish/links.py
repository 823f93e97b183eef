"""Which client speaks to which kind of broker. Each is imported when a worker first needs it: it comes with an extra."""

from __future__ import annotations

from duetime.errors import MissingExtra
from duetime.targets.publish.address import Kind
from duetime.targets.publish.brokers import OpenLink


def opener(kind: Kind) -> OpenLink:
    """Return what connects to a kind of broker. Raises MissingExtra if its client is not installed."""
    try:
        match kind:
            case "nats":
                from duetime.targets.publish.nats import open_nats

                return open_nats
            case "redis":
                from duetime.targets.publish.redis import open_redis

                return open_redis
            case "mqtt":
                from duetime.targets.publish.mqtt import open_mqtt

                return open_mqtt
            case "amqp":
                from duetime.targets.publish.amqp import open_amqp

                return open_amqp
            case "kafka":
                from duetime.targets.publish.kafka import open_kafka

                return open_kafka
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"publishing to {kind}:// needs the package {missing.name}: pip install 'duetime[{kind}]'") from None
