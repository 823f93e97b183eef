"""Flows over HTTP."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from typing import Any

from duetime.client.flows import AnyFlow, Flow, FlowList, Flows, MemberInfo, id_of
from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.flow import FlowState
from duetime.model.why import Reason
from duetime.remote.address import part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.store.flows import VALUES_AT_ONCE, FlowCount, NewFlow
from duetime.store.results import ResultsPage
from duetime.wire.flows import RerunBody, flow_body
from duetime.wire.tasks import ReasonList

LONGEST_WAIT = 30.0  # seconds that one waiting request may last
BREATH = 0.2  # seconds before a wait is requested again that the server has ended early


class RemoteFlows(Flows):
    """`app.flows` over HTTP."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def submit(self, flow: NewFlow, *, connection: object | None = None) -> Flow[Any]:
        if connection is not None:
            raise InvalidValue("connection= is for an App that uses the store itself; a server cannot be part of your transaction")
        await self._opened()
        # named by the flow's id, so the request can be repeated and the flow is stored once
        headers = {"idempotency-key": flow.id}
        return await self._transport.ask(Flow[Any], "POST", "/v1/flows", body=flow_body(flow), headers=headers, again=True)

    async def get(self, flow: AnyFlow) -> Flow[Any]:
        await self._opened()
        return await self._transport.ask(Flow[Any], "GET", _path(flow))

    async def list(
        self, *, state: FlowState | None = None, name: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> FlowList:
        await self._opened()
        query = query_params({"state": state, "name": name, "limit": limit, "cursor": cursor})
        return await self._transport.ask(FlowList, "GET", "/v1/flows", query=query)

    async def counts(self) -> builtins.list[FlowCount]:
        await self._opened()
        return await self._transport.ask(builtins.list[FlowCount], "GET", "/v1/flow-counts")

    async def members(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = 100) -> builtins.list[MemberInfo]:
        await self._opened()
        query = query_params({"first": first, "limit": limit})
        return await self._transport.ask(builtins.list[MemberInfo], "GET", f"{_path(flow)}/nodes/{part(node)}/members", query=query)

    async def results_page(self, flow: AnyFlow, node: str, *, first: int = 0, limit: int = VALUES_AT_ONCE) -> ResultsPage:
        await self._opened()
        query = query_params({"first": first, "limit": limit})
        return await self._transport.ask(ResultsPage, "GET", f"{_path(flow)}/nodes/{part(node)}/results", query=query)

    async def why(self, flow: AnyFlow) -> builtins.list[Reason]:
        await self._opened()
        return (await self._transport.ask(ReasonList, "GET", f"{_path(flow)}/why")).items

    async def cancel(self, flow: AnyFlow) -> Flow[Any]:
        await self._opened()
        return await self._transport.ask(Flow[Any], "POST", f"{_path(flow)}/cancel")

    async def retry(self, flow: AnyFlow) -> Flow[Any]:
        await self._opened()
        return await self._transport.ask(Flow[Any], "POST", f"{_path(flow)}/retry")

    async def rerun(self, flow: AnyFlow, node: str) -> Flow[Any]:
        await self._opened()
        return await self._transport.ask(Flow[Any], "POST", f"{_path(flow)}/rerun", body=RerunBody(node=node))

    async def wait(self, flow: AnyFlow, *, timeout: Seconds | None = None) -> Flow[Any]:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + to_seconds(timeout, "timeout")
        await self._opened()
        while True:
            began = loop.time()
            asked = LONGEST_WAIT if end is None else max(0.0, min(LONGEST_WAIT, end - began))
            found = await self._transport.ask(Flow[Any], "GET", _path(flow), query={"wait": f"{asked:.3f}"}, wait=asked)
            left = LONGEST_WAIT if end is None else end - loop.time()
            if found.final or left <= 0:
                return found
            if loop.time() - began < asked:  # a server that stops ends all waits
                await asyncio.sleep(min(BREATH, left))


def _path(flow: AnyFlow) -> str:
    return f"/v1/flows/{part(id_of(flow))}"
