"""Signals over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.client.signals import SignalDoor
from duetime.errors import SignalNotFound
from duetime.model.steps import NewSignal, SignalRecord
from duetime.remote.address import needs_store, part
from duetime.remote.transport import Transport
from duetime.wire.signals import SendSignalBody, SignalList, SignalsDeleted, SignalSent, record_of


class RemoteSignals(SignalDoor):
    """The verbs of signals of a server. A signal has an id, so it may be sent again when the answer is lost."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send_signals(self, signals: Sequence[NewSignal]) -> list[bool]:
        return [await self._send(signal) for signal in signals]

    async def _send(self, signal: NewSignal) -> bool:
        body = SendSignalBody(value=msgspec.Raw(signal.data), id=signal.id, keep=signal.keep)
        return (await self._transport.ask(SignalSent, "POST", _path(signal.name), body=body, again=True)).new

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        raise needs_store("connection=, a part of your own transaction,", self._transport.url)

    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[SignalRecord]:
        query = {"cursor": str(after), "limit": str(limit)} | ({} if name is None else {"name": name})
        found = await self._transport.ask(SignalList, "GET", "/v1/signals", query=query)
        return [record_of(each) for each in found.items]

    async def delete_signals(self, name: str, id: str | None = None) -> int:
        try:
            query = {} if id is None else {"id": id}
            return (await self._transport.ask(SignalsDeleted, "DELETE", _path(name), query=query)).deleted
        except SignalNotFound:
            return 0


def _path(name: str) -> str:
    return f"/v1/signals/{part(name)}"
