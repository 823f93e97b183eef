"""Limits over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import UNSET

from duetime.client.gates import IN_FORCE_WITHIN, Named, check_note, lasting_of
from duetime.client.limits import LimitInfo, Limits, LimitSet, PartitionInfo, check_partition, check_put, name_of
from duetime.clock import SECOND, Seconds, to_seconds
from duetime.model.limit import Rate
from duetime.remote.address import part
from duetime.remote.gates import LONGEST_WAIT
from duetime.remote.transport import Transport
from duetime.wire.limits import LimitAnswer, LimitBody, LimitList, PartitionList, RateBody


class RemoteLimits(Limits):
    """`app.limits` over HTTP. The server records who changed a limit."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(
        self,
        name: str | Named,
        *,
        running: int | None = None,
        rate: Sequence[Rate] | None = None,
        partition: str | None = None,
        lasting: Seconds | None = None,
        note: str = "",
        timeout: Seconds = IN_FORCE_WITHIN,
    ) -> LimitSet:
        check_put(running, rate, partition)
        wait = min(max(0.0, to_seconds(timeout, "timeout")), LONGEST_WAIT)
        seconds = UNSET if lasting is None else lasting_of(lasting) / SECOND
        of = UNSET if partition is None else check_partition(partition)
        number = UNSET if running is None else running
        rates = [RateBody(count=each.count, per=each.period / SECOND or "day", burst=each.burst) for each in rate or ()]
        body = LimitBody(running=number, rate=rates or UNSET, partition=of, lasting=seconds, note=check_note(note), wait=wait)
        await self._opened()
        done = await self._transport.ask(LimitAnswer, "PUT", _path(name), body=body, again=True, wait=wait)
        return LimitSet(limit=done.limit, version=done.version, confirmed=done.confirmed, waiting=done.waiting, partition=done.partition)

    async def reset(self, name: str | Named, *, partition: str | None = None) -> LimitInfo:
        query = {} if partition is None else {"partition": check_partition(partition)}
        await self._opened()
        return await self._transport.ask(LimitInfo, "DELETE", _path(name), query=query, again=True)

    async def partitions(
        self, name: str | Named, *, partition: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        named = {"partition": None if partition is None else check_partition(partition), "cursor": after}
        query = {key: value for key, value in named.items() if value is not None} | {"limit": str(limit)}
        await self._opened()
        return (await self._transport.ask(PartitionList, "GET", f"{_path(name)}/partitions", query=query)).items

    async def get(self, name: str | Named) -> LimitInfo:
        await self._opened()
        return await self._transport.ask(LimitInfo, "GET", _path(name))

    async def list(self) -> list[LimitInfo]:
        await self._opened()
        return (await self._transport.ask(LimitList, "GET", "/v1/limits")).items


def _path(name: str | Named) -> str:
    return f"/v1/limits/{part(name_of(name))}"
