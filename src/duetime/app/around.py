"""Tasks around an event, moved and cancelled as one set: remind 90, 60 and 15 minutes before, follow up 15 minutes after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.app.filters import name_of
from duetime.app.handlers import AnyHandler
from duetime.client.client import Bulk, Client
from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_instant, to_micros
from duetime.errors import DuplicateKeys, InvalidValue
from duetime.ids import key_shard, new_id
from duetime.model.task import LIVE, NewTask, State, Task, TaskRecord, check_meta, check_name
from duetime.runtime.portal import Inline
from duetime.targets.context import current

R = TypeVar("R")

MOST_OFFSETS = 100
FURTHEST = 10 * 366 * 86_400 * 1_000_000
EVENT, OFFSET, OFFSETS = "duetime.event", "duetime.offset", "duetime.offsets"
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_LONG_AGO = 1  # an expiry that has passed


class ClientHolder(Protocol):
    """The part of App that a set uses."""

    client: Client

    async def ensure_open(self, *, declare: bool) -> None: ...

    async def prepare(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool) -> None: ...


class Around:
    """The result of `app.around`: the tasks around one event, identified by the event's key and their offsets.

    The object has no state of its own; any process that uses the same key can submit, move and cancel the set. A set belongs to one
    handler.
    """

    def __init__(
        self, app: ClientHolder, event_at: datetime, *, key: str, offsets: Iterable[Seconds], formerly: Iterable[Seconds] = ()
    ) -> None:
        self._app = app
        self._event_at = _read_event(event_at)
        self._key = check_name(key, "key")
        self._offsets = {label_of(offset): offset for offset in _read_offsets(offsets)}
        self._formerly = [label_of(offset) for offset in _read_offsets(formerly, least=0)]
        for label in (*self._offsets, *self._formerly):
            check_name(self.key_of(label), "key and offset together")

    def key_of(self, label: str) -> str:
        """Return the key of the task at one offset: `booking-7@-90m`."""
        return f"{self._key}@{label}"

    @property
    def planned(self) -> dict[str, datetime]:
        """Return the instant of each offset, also of those that have passed."""
        return {label: to_datetime(self._event_at + offset) for label, offset in self._offsets.items()}

    def submit(
        self, task: NewTask[R], /, *, connection: object | None = None, allow_unknown: bool = False
    ) -> Coroutine[Any, Any, list[Task[R]]]:
        """Store one task for each offset that lies in the future, and return them, the earliest first.

        Submitting again, with another time or other offsets, moves the set: waiting tasks are replaced, and those whose offset has
        passed or is no longer listed are cancelled. A running task cannot be replaced: DuplicateKeys names it, and the others are
        stored. With a `connection` everything is part of the caller's transaction; tasks that would be cancelled then end as `expired`.
        """
        if not isinstance(task, NewTask):
            raise InvalidValue(f"app.around(…).submit takes a new task, as handler.new(…) makes it; got {type(task).__name__}")
        if task.key is not None:
            raise InvalidValue(f"the tasks around an event get their keys from app.around(key=…); leave out key={task.key!r}")
        if task.due_at is not None or task.delay:
            raise InvalidValue("the tasks around an event are due at its offsets; leave out .at and .after")
        found: list[dict[str, TaskRecord]] = []
        call = self._submit(task, connection, allow_unknown, found)
        if connection is None:
            return call

        async def prepare() -> None:
            await self._app.ensure_open(declare=False)
            found.append(await self._find_tasks(task.handler))
            await self._app.prepare(self._new_tasks(task, found[0])[0] or [task], allow_unknown)

        return Inline(call, prepare)

    def cancel(self, handler: str | AnyHandler, /, *, connection: object | None = None) -> Coroutine[Any, Any, Bulk]:
        """Cancel what is left of the set, for example because its condition is met.

        A handler of the set may call it: its own task continues.

        With a `connection` it is part of the caller's transaction: waiting tasks end as `expired`, a running one is left alone.
        """
        name = name_of(handler)
        found: list[dict[str, TaskRecord]] = []
        call = self._cancel(name, connection, found)
        if connection is None:
            return call

        async def prepare() -> None:
            await self._app.ensure_open(declare=False)
            found.append(await self._find_tasks(name))
            await self._app.prepare(_endings(_live(found[0])) or [_nothing(name)], True)

        return Inline(call, prepare)

    async def _submit(
        self, task: NewTask[R], connection: object | None, allow_unknown: bool, found: list[dict[str, TaskRecord]]
    ) -> list[Task[R]]:
        await self._app.ensure_open(declare=connection is None)
        stored = found[0] if found else await self._find_tasks(task.handler)
        client = self._app.client
        new_tasks, surplus = self._new_tasks(task, stored)
        if connection is not None:
            added = await client.submit_many([*new_tasks, *_endings(surplus)], connection=connection, allow_unknown=allow_unknown)
            return list(added[: len(new_tasks)])
        try:
            tasks = list(await client.submit_many(new_tasks, allow_unknown=allow_unknown)) if new_tasks else []
        except DuplicateKeys:
            await client.cancel_all([record.id for record in surplus])
            raise
        await client.cancel_all([record.id for record in surplus])
        return tasks

    async def _cancel(self, handler: str, connection: object | None, found: list[dict[str, TaskRecord]]) -> Bulk:
        await self._app.ensure_open(declare=connection is None)
        client = self._app.client
        live = _live(found[0] if found else await self._find_tasks(handler))
        if connection is None:
            verdicts = await client.cancel_all([record.id for record in live])
            return Bulk(len(live), Counter(str(verdict) for verdict in verdicts))
        endings = _endings(live)
        if endings:
            await client.submit_many(endings, connection=connection, allow_unknown=True)
        answers = Counter({"cancelled": len(endings), "running": len(live) - len(endings)})
        return Bulk(len(live), +answers)

    def _new_tasks(self, task: NewTask[R], stored: dict[str, TaskRecord]) -> tuple[list[NewTask[R]], list[TaskRecord]]:
        """Return the tasks to store, and the live ones that are no longer wanted."""
        now = self._app.client.now()
        ahead = {label: offset for label, offset in self._offsets.items() if self._event_at + offset > now}
        new_tasks = [self._new_task(task, label, offset) for label, offset in sorted(ahead.items(), key=lambda pair: pair[1])]
        return new_tasks, _live({label: record for label, record in stored.items() if label not in ahead})

    def _new_task(self, task: NewTask[R], label: str, offset: int) -> NewTask[R]:
        key, planned_at = self.key_of(label), self._event_at + offset
        meta = {EVENT: to_datetime(self._event_at).isoformat(), OFFSET: label, OFFSETS: ",".join(self._offsets)}
        return msgspec.structs.replace(
            task,
            id=new_id(key_shard(task.handler, key)),
            key=key,
            if_exists="replace",
            due_at=planned_at,
            planned_at=planned_at,
            meta=check_meta({**(task.meta or {}), **meta}),
        )

    async def _find_tasks(self, handler: str) -> dict[str, TaskRecord]:
        """Find the tasks of the set. Each names all offsets that it was submitted with, so tasks of earlier offsets are found too."""
        found: dict[str, TaskRecord] = {}
        waiting, seen = [*self._offsets, *self._formerly], set[str]()
        while waiting and len(seen) < 10 * MOST_OFFSETS:
            label = waiting.pop()
            if label in seen:
                continue
            seen.add(label)
            record = await self._app.client.look_up(handler, self.key_of(label))
            if record is not None:
                found[label] = record
                waiting += [other for other in (record.meta or {}).get(OFFSETS, "").split(",") if other]
        return found


def label_of(offset: int) -> str:
    """Write an offset in microseconds in the largest unit that divides it: -90m, +15m, +1d, 0."""
    millis = abs(offset) // 1_000
    if not millis:
        return "0"
    unit, size = next((unit, size) for unit, size in _UNITS if millis % size == 0)
    return f"{'-' if offset < 0 else '+'}{millis // size}{unit}"


def _read_event(event_at: datetime) -> Instant:
    instant = to_instant(event_at, "event_at")
    if not FURTHEST <= instant <= LATEST - FURTHEST:
        raise InvalidValue(f"event_at must lie between the years 1980 and 9989, got {event_at.isoformat()}")
    return instant


def _read_offsets(offsets: Iterable[Seconds], *, least: int = 1) -> list[int]:
    example = "for example offsets=[-5400, -900, timedelta(minutes=15)]"
    if isinstance(offsets, str) or not isinstance(offsets, Iterable):
        raise InvalidValue(f"offsets must be a list of seconds or timedeltas, negative before the event; {example}")
    found = [round(to_micros(offset, "an offset") / 1_000) * 1_000 for offset in offsets]
    if not least <= len(found) <= MOST_OFFSETS:
        raise InvalidValue(f"offsets must be 1 to {MOST_OFFSETS}, got {len(found)}; {example}")
    if len(set(found)) < len(found):
        raise InvalidValue(f"offsets must differ from each other by at least a millisecond; {example}")
    for offset in found:
        if abs(offset) > FURTHEST:
            raise InvalidValue(f"offsets must lie within 10 years of the event, got {offset / 1_000_000:g} s; {example}")
    return found


def _live(found: dict[str, TaskRecord]) -> list[TaskRecord]:
    """Return the tasks that have not ended, without the one that this code runs in."""
    own = _own_id()
    return [record for record in found.values() if record.state in LIVE and record.id != own]


def _endings(records: Sequence[TaskRecord]) -> list[NewTask[Any]]:
    """Return tasks that have already expired, to replace waiting ones inside the caller's transaction, so that they never run."""
    return [
        NewTask(
            id=new_id(key_shard(record.handler, record.key)),
            handler=record.handler,
            payload=record.payload,
            due_at=record.due_at,
            key=record.key,
            if_exists="replace",
            collection=record.collection,
            priority=record.priority,
            expires_at=_LONG_AGO,
            meta=record.meta,
            planned_at=record.planned_at,
        )
        for record in records
        if record.key is not None and record.state is not State.RUNNING
    ]


def _nothing(handler: str) -> NewTask[Any]:
    return NewTask(id=new_id(), handler=handler, payload=b"{}")


def _own_id() -> str | None:
    try:
        return current().idempotency_key
    except InvalidValue:
        return None
