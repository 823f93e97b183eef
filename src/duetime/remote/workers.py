"""One worker over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from duetime.client.workers import WorkerDetails, WorkerInfo, Workers
from duetime.remote.address import part
from duetime.remote.transport import Transport


class RemoteWorkers(Workers):
    """The verbs of Workers over HTTP. The server records who drains one."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def get(self, worker: str) -> WorkerDetails:
        await self._opened()
        return await self._transport.ask(WorkerDetails, "GET", f"/v1/workers/{part(worker)}")

    async def drain(self, worker: str, *, undo: bool = False) -> WorkerInfo:
        await self._opened()
        return await self._transport.ask(WorkerInfo, "DELETE" if undo else "POST", f"/v1/workers/{part(worker)}/drain", again=True)
