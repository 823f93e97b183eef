"""Operations over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import UNSET

from duetime.client.operations import Asked, OperationInfo, OperationPage, Operations, Request
from duetime.clock import Seconds, to_seconds
from duetime.ids import new_id
from duetime.model.operation import Verb
from duetime.model.task import check_name, check_priority, delay_micros, due_instant
from duetime.remote.address import part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.fields import optional
from duetime.wire.operations import CanaryBody, OperationBody, OperationList
from duetime.wire.tasks import Change, Filter, filter_of

LONGEST_WAIT = 30.0  # seconds that one waiting request may last
BREATH = 0.2  # seconds before a wait is requested again that the server has ended early


class RemoteOperations(Operations):
    """`app.operations` over HTTP. The server performs them and records who started them."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def start(self, asked: Asked, *, made_by: str | None = None, request: Request | None = None) -> OperationInfo:
        await self._opened()
        body = OperationBody(
            verb=asked.verb,
            filter=Filter(**filter_of(asked.query)),
            set=change_of(asked) if asked.verb is Verb.EDIT else UNSET,
            rate=optional(asked.rate),
            canary=UNSET if asked.canary is None else CanaryBody(share=asked.canary.share, failed=asked.canary.failed),
        )
        # with a name of its own it can be sent again when its answer is lost
        headers = {"idempotency-key": new_id()}
        return await self._transport.ask(OperationInfo, "POST", "/v1/operations", body=body, headers=headers, again=True)

    async def get(self, operation: str) -> OperationInfo:
        return await self._at(operation)

    async def page(self, limit: int = 100, cursor: str | None = None) -> OperationPage:
        await self._opened()
        query = query_params({"limit": limit, "cursor": cursor})
        found = await self._transport.ask(OperationList, "GET", "/v1/operations", query=query)
        return OperationPage(found.items, found.next)

    async def stop(self, operation: str) -> OperationInfo:
        return await self._at(operation, "stop")

    async def pause(self, operation: str) -> OperationInfo:
        return await self._at(operation, "pause")

    async def resume(self, operation: str) -> OperationInfo:
        return await self._at(operation, "resume")

    async def wait(self, operation: str, *, timeout: Seconds | None = None) -> OperationInfo:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + to_seconds(timeout, "timeout")
        await self._opened()
        while True:
            began = loop.time()
            asked = LONGEST_WAIT if end is None else max(0.0, min(LONGEST_WAIT, end - began))
            query = {"wait": f"{asked:.3f}"}
            found = await self._transport.ask(OperationInfo, "GET", f"/v1/operations/{part(operation)}", query=query, wait=asked)
            left = LONGEST_WAIT if end is None else end - loop.time()
            if found.ended or left <= 0:
                return found
            if loop.time() - began < asked:  # a server that stops ends all waits
                await asyncio.sleep(min(BREATH, left))

    async def _at(self, operation: str, verb: str = "") -> OperationInfo:
        await self._opened()
        address = f"/v1/operations/{part(operation)}"
        if not verb:
            return await self._transport.ask(OperationInfo, "GET", address)
        return await self._transport.ask(OperationInfo, "POST", f"{address}/{verb}")


def change_of(asked: Asked) -> Change:
    """Check the values to change. The server checks whether they are too many or none."""
    if asked.due_at is not None:
        due_instant(asked.due_at)
    if asked.delay is not None:
        delay_micros(asked.delay)
    return Change(
        due_at=optional(asked.due_at),
        delay=UNSET if asked.delay is None else to_seconds(asked.delay),
        priority=UNSET if asked.priority is None else check_priority(asked.priority),
        collection=UNSET if asked.collection is None else check_name(asked.collection, "collection"),
    )
