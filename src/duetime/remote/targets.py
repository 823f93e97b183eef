"""Stored targets over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.client.targets import TargetInfo, Targets
from duetime.model.task import Task, check_name, shown
from duetime.remote.address import part
from duetime.remote.handlers import handlers
from duetime.remote.transport import Transport
from duetime.targets.stored.definitions import Definition, write_definition
from duetime.targets.stored.specs import spec_of
from duetime.wire.targets import TestBody
from duetime.wire.tasks import RawTask, record_of


class RemoteTargets(Targets):
    """`app.targets` over HTTP. The token needs the scope operate, and for commands admin."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, name: str, target: Definition, *, seen: int | None = None, by: str | None = None) -> TargetInfo:
        spec_of(name, target)
        data = write_definition(target)
        await self._opened()
        answer = await self._transport.send("PUT", _path(name), data=data, headers=_conditions(seen), again=True)
        return self._transport.read(TargetInfo, answer)

    async def get(self, name: str) -> TargetInfo:
        path = _path(name)
        await self._opened()
        return await self._transport.ask(TargetInfo, "GET", path)

    async def list(self) -> list[TargetInfo]:
        await self._opened()
        return [each.target for each in await handlers(self._transport) if each.target is not None]

    async def delete(self, name: str, *, seen: int | None = None) -> None:
        path = _path(name)
        await self._opened()
        await self._transport.send("DELETE", path, headers=_conditions(seen))

    async def test(self, name: str, /, **payload: Any) -> Task[Any]:
        path = _path(name, "test")
        await self._opened()
        return shown(record_of(await self._transport.ask(RawTask, "POST", path, body=TestBody(payload=payload))))


def _path(name: str, what: str = "target") -> str:
    return f"/v1/handlers/{part(check_name(name, 'the name of a handler'))}/{what}"


def _conditions(seen: int | None) -> dict[str, str]:
    """Return the headers for a target that must be as it was seen; 0: there must be none."""
    if seen is None:
        return {}
    return {"if-match": f'"{seen}"'} if seen else {"if-none-match": "*"}
