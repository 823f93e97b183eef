"""Overviews, asked of a server."""

from __future__ import annotations

from duetime.client.insight import AttemptInfo, HandlerInfo, Insight, Stats, WorkerInfo
from duetime.model.figures import FigureKey
from duetime.model.task import TaskRecord
from duetime.model.why import Reason
from duetime.remote.address import needs_store
from duetime.remote.place import ServerPlace
from duetime.wire.overview import WorkerList
from duetime.wire.tasks import AttemptList, ReasonList


class RemoteInsight(Insight):
    """The read models of Insight over HTTP."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._transport = place.transport

    async def why(self, record: TaskRecord) -> list[Reason]:
        return (await self._transport.ask(ReasonList, "GET", f"/v1/tasks/{record.id}/why")).items

    async def attempts(self, task_id: str) -> list[AttemptInfo]:
        return (await self._transport.ask(AttemptList, "GET", f"/v1/tasks/{task_id}/attempts")).items

    async def handlers(self) -> list[HandlerInfo]:
        return await self._place.handlers()

    async def workers(self) -> list[WorkerInfo]:
        return (await self._transport.ask(WorkerList, "GET", "/v1/workers")).items

    async def stats(self) -> Stats:
        return await self._transport.ask(Stats, "GET", "/v1/stats")

    async def figures(self) -> dict[FigureKey, int]:
        raise needs_store("reading the figures of workers, which a server shows at /metrics,", self._place.url)
