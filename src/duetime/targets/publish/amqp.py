"""Publish over AMQP 0-9-1 (RabbitMQ): persistent and mandatory messages, each confirmed by the broker.

A refusal closes the channel on which it happens, and with it what else is under way there. So each exchange has a channel of its own,
and whether there is such an exchange is asked on one more.
"""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)

from duetime.targets.publish.address import Address
from duetime.targets.publish.brokers import CONNECT_WITHIN
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused


class AmqpLink:
    """One connection with a channel per exchange."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._exchanges: dict[str, tuple[AbstractChannel, AbstractExchange]] = {}
        self._opening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return not self._connection.is_closed

    async def publish(self, message: Message) -> Acknowledgement:
        name = message.options.exchange
        body = aio_pika.Message(
            message.body,
            headers=dict(message.headers),
            content_type=message.content_type,
            message_id=message.id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            app_id="duetime",
        )
        try:
            exchange = await self._exchange(name)
            await exchange.publish(body, routing_key=message.to, mandatory=True)
        except asyncio.CancelledError:
            # the client cancels what is under way when the connection ends
            task = asyncio.current_task()
            if self.is_open or task is None or task.cancelling():
                raise
            raise BrokerUnreachable("the connection was lost") from None
        except (AMQPError, RuntimeError, OSError) as error:  # it raises RuntimeError for channels of a closed connection
            raise self._judged(message.to, name, error) from error
        return {"confirmed": "Basic.Ack", "exchange": name or None}

    def _judged(self, to: str, exchange: str, error: Exception) -> Exception:
        text = str(error) or type(error).__name__
        match error:
            case PublishError():
                return PublishRefused("Unroutable", _unroutable(exchange, to))
            case DeliveryError():
                return PublishRefused("PublishRefused", f"the broker did not take the message: {text}")
            case _ if not self.is_open:
                return BrokerUnreachable(text)
            case ChannelNotFoundEntity():
                return PublishRefused("NoExchange", f"there is no exchange {exchange}; declare it, and bind a queue to it: {text}")
            case ChannelAccessRefused():
                return PublishRefused("NotPermitted", f"the broker does not permit this user to publish: {text}")
            case ChannelPreconditionFailed():
                return PublishRefused("MessageTooLarge", f"the broker refused the message: {text}", fatal=True)
            case ChannelClosed():
                return PublishRefused("PublishRefused", f"the broker refused the message: {text}")
            case _:
                return BrokerUnreachable(text)

    async def close(self) -> None:
        await self._connection.close()

    async def _exchange(self, name: str) -> AbstractExchange:
        async with self._opening:
            channel, exchange = self._exchanges.get(name, (None, None))
            if channel is not None and exchange is not None and not channel.is_closed:
                return exchange
            if name:
                async with self._connection.channel() as asking:
                    await asking.get_exchange(name, ensure=True)
            channel = self._connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.initialize()
            exchange = await channel.get_exchange(name, ensure=False) if name else channel.default_exchange
            self._exchanges[name] = channel, exchange
            return exchange


def _unroutable(exchange: str, to: str) -> str:
    if exchange:
        return f"no queue is bound to the exchange {exchange} for the routing key {to}, so the message would be lost; bind one"
    return f"there is no queue {to}, so the message would be lost; declare it, or say exchange="


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def open_amqp(address: Address, host: tuple[str, int]) -> AmqpLink:
    """Connect to a broker; raises BrokerUnreachable, or PublishRefused for credentials that are wrong."""
    name, port = host
    try:
        connection = await aio_pika.connect(
            host=name,
            port=port,
            login=address.user or "guest",
            password=address.password or "guest",
            virtualhost=address.path or "/",
            ssl=address.tls,
            timeout=CONNECT_WITHIN,
            client_properties={"connection_name": "duetime"},
        )
    except (AuthenticationError, ProbableAuthenticationError) as error:
        raise PublishRefused("NotPermitted", f"{address.shown} refuses user and password: {_text(error)}") from error
    except (AMQPError, OSError) as error:
        if "Connection.Close" in _text(error):  # it said no where it should have said that the connection is open
            wanted = f"the virtual host {address.path or '/'}"
            raise PublishRefused("NotPermitted", f"{address.shown} refuses {wanted}: does it exist, and may this user use it?") from error
        raise BrokerUnreachable(_text(error)) from error
    return AmqpLink(connection)
