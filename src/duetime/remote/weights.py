"""Weights of collections over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from duetime.client.gates import Named, check_note
from duetime.client.weights import Weights, WeightsInfo, handler_name
from duetime.model.fairness import check_weights
from duetime.remote.address import part
from duetime.remote.transport import Transport
from duetime.wire.weights import WeightsBody, WeightsList


class RemoteWeights(Weights):
    """`app.weights` over HTTP. The server records who set them."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, handler: str | Named, weights: Mapping[str, float], *, note: str = "") -> WeightsInfo:
        body = WeightsBody(weights=check_weights(handler_name(handler), weights), note=check_note(note))
        await self._opened()
        return await self._transport.ask(WeightsInfo, "PUT", _path(handler), body=body, again=True)

    async def delete(self, handler: str | Named) -> WeightsInfo:
        await self._opened()
        return await self._transport.ask(WeightsInfo, "DELETE", _path(handler), again=True)

    async def get(self, handler: str | Named) -> WeightsInfo:
        await self._opened()
        return await self._transport.ask(WeightsInfo, "GET", _path(handler))

    async def list(self) -> list[WeightsInfo]:
        await self._opened()
        return (await self._transport.ask(WeightsList, "GET", "/v1/weights")).items


def _path(handler: str | Named) -> str:
    return f"/v1/weights/{part(handler_name(handler))}"
