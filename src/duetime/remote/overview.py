"""Overviews over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from duetime.client.activity import USUAL_UPCOMING
from duetime.client.insight import AttemptInfo, HandlerDetails, HandlerInfo, Insight, Stats
from duetime.client.series import Series
from duetime.client.servers import ServerInfo
from duetime.client.workers import WorkerInfo
from duetime.clock import Instant
from duetime.model.figures import FigureKey
from duetime.model.health import HealthVerdict
from duetime.model.query import write_cursor
from duetime.model.task import TaskRecord
from duetime.model.why import Reason
from duetime.remote.address import needs_store, part
from duetime.remote.handlers import handlers
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.wire.overview import SeriesList, ServerList, WorkerList
from duetime.wire.tasks import AttemptList, RawTaskList, ReasonList, record_of


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

    async def why(self, record: TaskRecord, *, may_see: Callable[[str], bool] | None = None) -> list[Reason]:
        return (await self._transport.ask(ReasonList, "GET", f"/v1/tasks/{record.id}/why")).items

    async def attempts(self, task_id: str, *, after: int = 0, limit: int | None = None) -> list[AttemptInfo]:
        items: list[AttemptInfo] = []
        cursor = write_cursor(after) if after else None
        while limit is None or len(items) < limit:
            query = {} if cursor is None else {"cursor": cursor}
            page = await self._transport.ask(AttemptList, "GET", f"/v1/tasks/{task_id}/attempts", query=query)
            items += page.items
            if (cursor := page.next) is None:
                break
        return items if limit is None else items[:limit]

    async def handlers(self) -> list[HandlerInfo]:
        return await handlers(self._transport)

    async def handler(self, name: str) -> HandlerDetails:
        return await self._transport.ask(HandlerDetails, "GET", f"/v1/handlers/{part(name)}")

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[TaskRecord]:
        found = await self._transport.ask(
            RawTaskList, "GET", f"/v1/handlers/{part(handler)}/upcoming", query=query_params({"limit": limit})
        )
        return [record_of(task) for task in found.items]

    async def workers(self) -> list[WorkerInfo]:
        return (await self._transport.ask(WorkerList, "GET", "/v1/workers")).items

    async def servers(self) -> list[ServerInfo]:
        return (await self._transport.ask(ServerList, "GET", "/v1/servers")).items

    async def stats(self) -> Stats:
        return await self._transport.ask(Stats, "GET", "/v1/stats")

    async def health(self) -> HealthVerdict:
        return await self._transport.ask(HealthVerdict, "GET", "/v1/health")

    async def figures(self) -> dict[FigureKey, int]:
        raise needs_store("reading the metrics of workers, which a server shows at /metrics,", self._transport.url)

    async def series(
        self,
        names: Iterable[str] = (),
        *,
        handler: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        [found] = await self._series(names, handler=handler, since=since, until=until, step=step)
        return found

    async def series_by_handler(
        self, names: Iterable[str] = (), *, since: datetime | None = None, until: datetime | None = None, step: int | None = None
    ) -> list[Series]:
        return await self._series(names, by="handler", since=since, until=until, step=step)

    async def _series(self, names: Iterable[str], **query: object) -> list[Series]:
        wanted = ",".join(names)
        return (await self._transport.ask(SeriesList, "GET", "/v1/series", query=query_params({"names": wanted or None, **query}))).items
