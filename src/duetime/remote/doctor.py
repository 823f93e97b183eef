"""The doctor over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from duetime.client.doctor import Diagnosis, Doctor
from duetime.remote.transport import Transport

LONGEST_EXAMINATION = 3_600.0  # seconds: the whole store is read


class RemoteDoctor(Doctor):
    """`app.doctor` over HTTP. The server watches workers all the time, so that nobody waits here until a silent one is dead."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def examine(self, *, repair: bool = False, on_watch: Callable[[int, float], None] | None = None) -> Diagnosis:
        await self._opened()
        method, path = ("POST", "/v1/doctor/repair") if repair else ("GET", "/v1/doctor")
        return await self._transport.ask(Diagnosis, method, path, again=True, wait=LONGEST_EXAMINATION)
