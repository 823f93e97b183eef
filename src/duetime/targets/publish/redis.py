"""Publish to a stream of Redis or Valkey (XADD): confirmed by the server's reply, which is the entry's id.

Commands go out as they come and replies are read in their order, on one connection: 50 handlers' attempts need one round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from duetime.targets.publish.address import Address
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused
from duetime.targets.publish.spec import CONTENT_TYPE

_LATER = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS")  # another answer after a while


class RedisLink:
    """One connection, with a task that reads its replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._problem: Exception | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        return self._problem is None and self._connection.is_connected

    async def publish(self, message: Message) -> Acknowledgement:
        command: list[Any] = ["XADD", message.to]
        if message.options.max_length is not None:
            command += ["MAXLEN", "~", message.options.max_length]
        command += ["*", "body", message.body, CONTENT_TYPE.lower(), message.content_type]
        for name, value in message.headers.items():
            command += [name.lower(), value]
        if not self.is_open:
            raise BrokerUnreachable(str(self._problem or "it was closed"))
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        try:
            await self._connection.send_packed_command(self._connection.pack_command(*command), check_health=False)
            entry = await reply
        except ResponseError as error:
            raise _refusal(message.to, error) from error
        except (RedisError, OSError) as error:
            raise BrokerUnreachable(str(error) or type(error).__name__) from error
        return {"stream": message.to, "entry": entry.decode()}

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        """Hand each reply to whoever waits longest, until the connection ends."""
        problem: Exception = ConnectionError("it was closed")
        try:
            while True:
                try:
                    reply: Any = await self._connection.read_response()
                except ResponseError as refused:  # the reply to one command; the connection goes on
                    reply = refused
                self._answer(reply)
        except (RedisError, OSError) as error:
            problem = error
        finally:
            self._problem = problem
            while self._waiting:
                self._answer(ConnectionError(str(problem)))

    def _answer(self, reply: Any) -> None:
        waiting = self._waiting.popleft()
        if waiting.done():  # its attempt was told to stop
            return
        if isinstance(reply, Exception):
            waiting.set_exception(reply)
        else:
            waiting.set_result(reply)


def _refusal(to: str, error: ResponseError) -> Exception:
    text = str(error)
    if text.startswith(_LATER):
        return BrokerUnreachable(f"the server cannot take it now: {text}")
    if text.startswith("WRONGTYPE"):
        return PublishRefused("WrongType", f"the key {to} is not a stream but has another type: {text}")
    if text.startswith("MOVED"):
        return PublishRefused("PublishRefused", f"the stream {to} is on another node of a cluster ({text}); clusters are not supported")
    if isinstance(error, NoPermissionError):
        return PublishRefused("NotPermitted", f"the server does not permit this user to add to {to}: {text}")
    if "invalid bulk length" in text:
        return PublishRefused(
            "MessageTooLarge", f"the message is larger than the server takes (its proto-max-bulk-len): {text}", fatal=True
        )
    return PublishRefused("PublishRefused", f"the server refused the message: {text}")


async def open_redis(address: Address, host: tuple[str, int]) -> RedisLink:
    """Connect to a server; raises BrokerUnreachable, or PublishRefused for credentials that are wrong."""
    name, port = host
    kind = SSLConnection if address.tls else Connection
    connection = kind(
        host=name,
        port=port,
        db=int(address.path or 0),
        username=address.user,
        password=address.password,
        client_name="duetime",
        socket_timeout=None,
        protocol=2,
    )
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException as error:  # also when it takes too long
        await connection.disconnect(nowait=True)
        match error:
            case AuthenticationError() | NoPermissionError():
                raise PublishRefused("NotPermitted", f"{address.shown} refuses user and password: {error}") from error
            case RedisError() | OSError():
                raise BrokerUnreachable(str(error) or type(error).__name__) from error
        raise
    return RedisLink(connection)
