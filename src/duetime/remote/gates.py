"""Gates over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable

from msgspec import UNSET

from duetime.client.gates import IN_FORCE_WITHIN, GateInfo, GateKeeper, GateSet, Named
from duetime.clock import SECOND, Instant, Seconds, to_seconds
from duetime.model.gate import Gate, GateAction
from duetime.model.task import check_name
from duetime.remote.address import needs_store, part
from duetime.remote.problems import GateNotFound
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.gates import GateAnswer, GateBody, GateList, GatesAnswer, GatesBody

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

    async def close_all(
        self,
        pattern: str,
        action: GateAction,
        *,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
        by: str | None = None,
        visible: Callable[[str], bool] | None = None,
    ) -> builtins.list[GateSet]:
        if by is not None or visible is not None:
            raise needs_store("by= or visible=", self._transport.url)
        gate = self._gate(action, pattern, None, lasting, note)
        wait = min(max(0.0, to_seconds(timeout, "timeout")), LONGEST_WAIT)
        body = GatesBody(
            handler=pattern,
            action=action,
            lasting=UNSET if gate.until_at is None else (gate.until_at - gate.set_at) / SECOND,
            note=note,
            wait=wait,
        )
        await self._opened()
        done = await self._transport.ask(GatesAnswer, "POST", "/v1/gates", body=body, again=True, wait=wait)
        return [GateSet(gate=each.gate, version=each.version, confirmed=each.confirmed, waiting=each.waiting) for each in done.items]

    async def open_all(self, pattern: str = "*", *, visible: Callable[[str], bool] | None = None) -> builtins.list[GateInfo]:
        if visible is not None:
            raise needs_store("visible=", self._transport.url)
        await self._opened()
        query = query_params({"handler": check_name(pattern, "pattern")})
        return (await self._transport.ask(GateList, "DELETE", "/v1/gates", query=query)).items

    async def list(self) -> list[GateInfo]:
        await self._opened()
        return (await self._transport.ask(GateList, "GET", "/v1/gates")).items
