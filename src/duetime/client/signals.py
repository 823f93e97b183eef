"""`app.signals`: events from outside that somebody waits for (`ctx.wait`), or will."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duetime.clock import Seconds, to_datetime, to_seconds
from duetime.errors import InvalidValue, SignalNotFound
from duetime.ids import token
from duetime.model.steps import KEPT, NewSignal, SignalRecord, check_kept, check_signal
from duetime.model.task import check_name
from duetime.runtime.portal import Inline
from duetime.targets.payload import encode_result

MOST_LISTED = 1_000
PAGE = 200


class SignalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is kept. `task`: who got it; None as long as nobody has waited for it."""

    name: str
    id: str
    value: Any
    sent_at: datetime
    sent_by: str
    keep_until: datetime
    task: str | None = None


class SignalDoor(Protocol):
    """The verbs of signals, of a store or of a server."""

    async def send_signals(self, signals: Sequence[NewSignal]) -> builtins.list[bool]: ...
    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> builtins.list[bool]: ...
    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> builtins.list[SignalRecord]: ...
    async def delete_signals(self, name: str, id: str | None = None) -> int: ...


class Signals:
    """`app.signals`: send, list and delete signals. `opened` opens the store, `ready` does so without writing to it."""

    def __init__(self, door: SignalDoor, *, user: str, opened: Callable[[], Awaitable[None]], ready: Callable[[], Awaitable[None]]) -> None:
        self._door = door
        self._user = user
        self._opened = opened
        self._ready = ready

    def send(
        self, name: str, value: object = None, /, *, id: str | None = None, keep: Seconds = KEPT, connection: object | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Send a signal: the task that has waited longest for its name goes on with the value. Return whether it is new.

        It is kept for who comes later, a day unless `keep` says otherwise, and reaches one wait only. A second one with the same name and
        `id` is the same one. With a `connection` it is part of the caller's transaction, and is looked at after the commit.
        """
        signal = new_signal(name, encode_result(value, "the value of the signal"), id=id, keep=keep, by=self._user)
        call = self._send(signal, connection)
        return call if connection is None else Inline(call, self._ready)

    async def _send(self, signal: NewSignal, connection: object | None) -> bool:
        if connection is None:
            await self._opened()
            return (await self._door.send_signals([signal]))[0]
        await self._ready()
        return (await self._door.send_signals_on(connection, [signal]))[0]

    async def list(self, name: str | None = None, /, *, limit: int = MOST_LISTED) -> builtins.list[SignalInfo]:
        """Return kept signals, the oldest first: of one name, or of all."""
        if not 1 <= limit <= 10_000:
            raise InvalidValue(f"limit must be 1 to 10,000, got {limit}")
        await self._opened()
        found: builtins.list[SignalRecord] = []
        while len(found) < limit:
            page = await self._door.signals(name, after=found[-1].number if found else 0, limit=min(PAGE, limit - len(found)))
            found += page
            if not page:
                break
        return [shown(record) for record in found]

    async def delete(self, name: str, id: str | None = None, /) -> int:
        """Forget the kept signals of a name, or one of them; return how many. Who has got one keeps its value.

        Raises SignalNotFound if there is none.
        """
        await self._opened()
        deleted = await self._door.delete_signals(check_signal(name), id)
        if not deleted:
            raise no_signal(name, id)
        return deleted


def new_signal(name: str, data: bytes, *, id: str | None, keep: Seconds, by: str) -> NewSignal:
    """Return a signal as it is stored; without an id it gets one of its own."""
    checked = token(8) if id is None else check_name(id, "the id of a signal")
    return NewSignal(name=check_signal(name), id=checked, data=data, sent_by=by, keep=check_kept(to_seconds(keep)))


def no_signal(name: str, id: str | None = None) -> SignalNotFound:
    return SignalNotFound(f"no signal {name!r}{'' if id is None else f' with the id {id!r}'} is kept")


def shown(record: SignalRecord) -> SignalInfo:
    return SignalInfo(
        name=record.name,
        id=record.id,
        value=msgspec.json.decode(record.data),
        sent_at=to_datetime(record.sent_at),
        sent_by=record.sent_by,
        keep_until=to_datetime(record.keep_until),
        task=record.task,
    )
