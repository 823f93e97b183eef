"""Secrets over HTTP: the server seals them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from duetime.client.secrets import GRACE, Rotation, SecretInfo, Secrets, check_grace, check_secret_name
from duetime.clock import SECOND, Seconds
from duetime.model.secrets import check_value
from duetime.remote.address import part
from duetime.remote.transport import Transport
from duetime.wire.secrets import SecretBody, SecretList


class RemoteSecrets(Secrets):
    """`app.secrets` over HTTP. The token needs the scope admin."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, name: str, value: str, *, grace: Seconds = GRACE, by: str | None = None) -> SecretInfo:
        path = _path(name)
        body = SecretBody(value=check_value(value), grace=check_grace(grace) / SECOND)
        await self._opened()
        return await self._transport.ask(SecretInfo, "PUT", path, body=body, again=True)

    async def list(self) -> list[SecretInfo]:
        await self._opened()
        return (await self._transport.ask(SecretList, "GET", "/v1/secrets")).items

    async def delete(self, name: str) -> None:
        path = _path(name)
        await self._opened()
        await self._transport.send("DELETE", path)

    async def rotate(self) -> Rotation:
        await self._opened()
        return await self._transport.ask(Rotation, "POST", "/v1/secret-keys/rotate", again=True)


def _path(name: str) -> str:
    return f"/v1/secrets/{part(check_secret_name(name))}"
