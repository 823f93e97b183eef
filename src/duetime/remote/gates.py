"""Gates over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from duetime.client.gates import IN_FORCE_WITHIN, GateInfo, GateKeeper, GateSet, Named
from duetime.clock import SECOND, Instant, Seconds, to_seconds
from duetime.model.gate import Gate
from duetime.model.task import check_name
from duetime.remote.address import part
from duetime.remote.problems import GateNotFound
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.gates import GateAnswer, GateBody, GateList

LONGEST_WAIT = 60.0  # that a request lets the server wait for its workers


class RemoteGates(GateKeeper):
    """`app.gates` over HTTP. The server records who set a gate."""

    def __init__(self, transport: Transport, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._user = user
        self._opened = opened

    def _now(self) -> Instant:
        return self._transport.now()

    async def put(self, gate: Gate, *, timeout: Seconds = IN_FORCE_WITHIN, allow_unknown: bool = False) -> GateSet:
        wait = min(max(0.0, to_seconds(timeout, "timeout")), LONGEST_WAIT)
        body = GateBody(
            action=gate.action,
            lasting=UNSET if gate.until_at is None else (gate.until_at - gate.set_at) / SECOND,
            note=gate.note,
            wait=wait,
            allow_unknown=allow_unknown,
        )
        await self._opened()
        done = await self._transport.ask(
            GateAnswer,
            "PUT",
            f"/v1/gates/{part(gate.handler)}",
            query=query_params({"collection": gate.collection}),
            body=body,
            again=True,
            wait=wait,
        )
        return GateSet(gate=done.gate, version=done.version, confirmed=done.confirmed, waiting=done.waiting)

    async def open(self, handler: str | Named, *, collection: str | None = None) -> bool:
        name = check_name(handler if isinstance(handler, str) else handler.name, "handler")
        await self._opened()
        try:
            await self._transport.send("DELETE", f"/v1/gates/{part(name)}", query=query_params({"collection": collection}))
        except GateNotFound:
            return False
        return True

    async def list(self) -> list[GateInfo]:
        await self._opened()
        return (await self._transport.ask(GateList, "GET", "/v1/gates")).items
