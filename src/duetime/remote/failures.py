"""Failures by kind over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime

from duetime.client.failures import DAY, Failure, Failures, since_instant
from duetime.clock import Seconds, to_datetime, to_seconds
from duetime.model.failures import check_fingerprint
from duetime.remote.address import part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.failures import FailureList, MuteBody


class RemoteFailures(Failures):
    """`app.failures` over HTTP. The server records who mutes."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def list(self, *, since: datetime | Seconds = DAY, handler: str | None = None) -> builtins.list[Failure]:
        await self._opened()
        query = query_params({"since": self._since(since), "handler": handler})
        return (await self._transport.ask(FailureList, "GET", "/v1/failures", query=query)).items

    async def get(self, fingerprint: str, *, since: datetime | Seconds = DAY) -> Failure:
        path = _path(fingerprint)
        await self._opened()
        return await self._transport.ask(Failure, "GET", path, query=query_params({"since": self._since(since)}))

    async def mute(self, fingerprint: str, until: datetime | Seconds, *, by: str | None = None) -> Failure:
        path = _path(fingerprint)
        await self._opened()
        if isinstance(until, datetime):
            body = MuteBody(until_at=until)
        else:  # the server's clock counts it
            body = MuteBody(lasting=to_seconds(until, "until"))
        return await self._transport.ask(Failure, "POST", f"{path}/mute", body=body, again=True)

    async def unmute(self, fingerprint: str) -> Failure:
        path = _path(fingerprint)
        await self._opened()
        return await self._transport.ask(Failure, "POST", f"{path}/unmute", again=True)

    def _since(self, since: datetime | Seconds) -> datetime | None:
        return None if since == DAY else to_datetime(since_instant(since, self._transport.now()))


def _path(fingerprint: str) -> str:
    return f"/v1/failures/{part(check_fingerprint(fingerprint))}"
