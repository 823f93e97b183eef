"""Overviews over HTTP."""

from __future__ import annotations

from duetime.client.insight import AttemptInfo, HandlerInfo, Insight, Stats, WorkerInfo
from duetime.clock import Instant
from duetime.model.figures import FigureKey
from duetime.model.task import TaskRecord
from duetime.model.why import Reason
from duetime.remote.address import needs_store
from duetime.remote.handlers import handlers
from duetime.remote.transport import Transport
from duetime.wire.overview import WorkerList
from duetime.wire.tasks import AttemptList, ReasonList


class RemoteInsight(Insight):
    """The read models of Insight over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def ping(self) -> None:
        await self._transport.send("GET", "/readyz")

    def now(self) -> Instant:
        return self._transport.now()

    @property
    def durability(self) -> str:
        raise needs_store("this", self._transport.url)

    async def why(self, record: TaskRecord) -> list[Reason]:
        return (await self._transport.ask(ReasonList, "GET", f"/v1/tasks/{record.id}/why")).items

    async def attempts(self, task_id: str) -> list[AttemptInfo]:
        return (await self._transport.ask(AttemptList, "GET", f"/v1/tasks/{task_id}/attempts")).items

    async def handlers(self) -> list[HandlerInfo]:
        return await handlers(self._transport)

    async def workers(self) -> list[WorkerInfo]:
        return (await self._transport.ask(WorkerList, "GET", "/v1/workers")).items

    async def stats(self) -> Stats:
        return await self._transport.ask(Stats, "GET", "/v1/stats")

    async def figures(self) -> dict[FigureKey, int]:
        raise needs_store("reading the metrics of workers, which a server shows at /metrics,", self._transport.url)
