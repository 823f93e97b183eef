"""Named requests. A request is stored no later than its task and holds its id, so a repeat completes what broke off in between."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.store.redis.ledger import Ledger
from duetime.store.redis.records import encode
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.values import Added

_read = msgspec.msgpack.Decoder(tuple[str, str, bool]).decode


def _field(request: NamedRequest) -> str:
    return f"{request.caller}\0{request.key}"


def _text(request: NamedRequest) -> bytes:
    return encode((request.digest, request.task, request.met))


class Requests(Ledger):
    """Where named requests live: on the server, beside the tasks."""

    async def add_requested(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        if not requested:
            return []
        decided = decide(requested, await self._note([request for _, request in requested if request is not None]))
        added = await self.add(decided.tasks)
        moved, forgotten = decided.corrected(added)
        changes = self._changes()
        for request in moved:
            changes.do("HSET", self._keys.requests, _field(request), _text(request))
        for request in forgotten:
            changes.do("HDEL", self._keys.requests, _field(request))
            changes.do("ZREM", self._keys.request_times, _field(request))
        await self._write(changes)
        return decided.answered(added)

    async def _note(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        """Store requests whose key the caller has not used before, and return what is stored under each."""
        commands: list[tuple[str | bytes | int, ...]] = []
        for request in requests:
            field = _field(request)
            commands += [
                ("ZADD", self._keys.request_times, "NX", self.now(), field),
                ("HSETNX", self._keys.requests, field, _text(request)),
                ("HGET", self._keys.requests, field),
            ]
        replies = await self._opened.call_all(commands) if commands else []
        stored = []
        for request, raw in zip(requests, replies[2::3], strict=True):
            digest, task, met = _read(raw)
            stored.append(NamedRequest(request.caller, request.key, digest, task, met))
        return stored

    async def prune_requests(self, before: Instant, limit: int) -> int:
        fields: list[bytes] = await self._opened.call("ZRANGEBYSCORE", self._keys.request_times, "-inf", f"({before}", "LIMIT", 0, limit)
        changes = self._changes()
        for field in fields:
            changes.do("ZREM", self._keys.request_times, field)
            changes.do("HDEL", self._keys.requests, field)
        await self._write(changes)
        return len(fields)
