"""Locks over HTTP."""

from __future__ import annotations

from msgspec import UNSET

from duetime.client.locks import LockDoor
from duetime.errors import LockNotFound
from duetime.remote.address import part
from duetime.remote.transport import Transport
from duetime.store.locks import LockRecord, Seen
from duetime.wire.locks import FreeLockBody, HolderBody, LockAnswer, LockHeld, LockList, SeenBody, TakeLockBody, record_of


class RemoteLocks(LockDoor):
    """The verbs of locks of a server. Each may be sent again when its answer is lost."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord:
        seen = UNSET if dead is None else SeenBody(fence=dead.fence, beat=dead.beat)
        body = TakeLockBody(holder=holder, lease=lease, dead=seen)
        return record_of(await self._transport.ask(LockAnswer, "POST", f"{_path(name)}/take", body=body, again=True))

    async def renew_lock(self, name: str, holder: str) -> bool:
        body = HolderBody(holder=holder)
        return (await self._transport.ask(LockHeld, "POST", f"{_path(name)}/renew", body=body, again=True)).held

    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool:
        body = FreeLockBody(holder=holder, rest=rest)
        return (await self._transport.ask(LockHeld, "POST", f"{_path(name)}/free", body=body, again=True)).held

    async def locks(self) -> list[LockRecord]:
        found = await self._transport.ask(LockList, "GET", "/v1/locks")
        return [record_of(each) for each in found.items]

    async def remove_lock(self, name: str) -> bool:
        try:
            await self._transport.send("DELETE", _path(name))
        except LockNotFound:
            return False
        return True


def _path(name: str) -> str:
    return f"/v1/locks/{part(name)}"
