"""`app.operations`: acts on all tasks that match, which go on whoever asked for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from duetime.clock import Instant, Seconds, to_datetime, to_seconds
from duetime.errors import Conflict, InvalidValue, OperationNotFound
from duetime.ids import new_id
from duetime.model.operation import (
    ENDED,
    Canary,
    Changes,
    Operation,
    OperationSpec,
    OperationState,
    Verb,
    ended,
    in_state,
)
from duetime.model.query import OF_THE_PAGE, Query, read_cursor, write_cursor
from duetime.model.task import check_name, check_priority, delay_micros, due_instant
from duetime.model.text_search import read_terms
from duetime.store import Store
from duetime.store.values import Hint, HintKind

LOOK_AGAIN = 0.5  # seconds between two looks at an operation that somebody waits for, unless a hint comes
TRIES = 20  # against others who change the same operation

_BOUNDS = ("_after", "_before")


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it is shown. `filter` and `changes` have what was given, as in JSON.

    `answers` counts the tasks that were acted on by verdict, and `matched` is their sum. `note` says why it failed or was stopped, if
    that is known. `stage` of a retry with a canary: 0 the first task, 1 a share of them, 2 the rest.
    """

    id: str
    verb: Verb
    filter: Mapping[str, Any]
    changes: Mapping[str, Any]
    rate: float | None
    canary: Canary | None
    stage: int | None
    made_by: str
    state: OperationState
    started_at: datetime
    ended_at: datetime | None
    matched: int
    answers: Mapping[str, int]
    note: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Bulk(msgspec.Struct, frozen=True):
    """What a verb on many tasks did: how many matched, and the number of each verdict (none after a dry run)."""

    matched: int
    answers: Mapping[str, int]


class OperationPage(msgspec.Struct, frozen=True):
    """Some operations, latest started first, and the cursor of the next page, None on the last."""

    items: list[OperationInfo]
    next: str | None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for: a verb, which tasks, what an edit changes, and how fast."""

    verb: Verb
    query: Query
    due_at: datetime | None = None
    delay: Seconds | None = None
    priority: int | None = None
    collection: str | None = None
    rate: float | None = None
    canary: Canary | None = None


class Request(NamedTuple):
    """A request that its caller has named (Idempotency-Key): repeated, it is answered with the operation that the first one started."""

    caller: str
    key: str
    digest: str

    @property
    def operation(self) -> str:
        """The id of its operation."""
        bits = int.from_bytes(hashlib.blake2b(f"{self.caller}\0{self.key}".encode(), digest_size=16).digest())
        text = f"{bits & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def fields_of(query: Query) -> dict[str, Any]:
    """Return the fields of a query that choose tasks, as they are shown."""
    given = {name: getattr(query, name) for name in Query.__struct_fields__ if name not in OF_THE_PAGE}
    return {name: to_datetime(value) if name.endswith(_BOUNDS) else value for name, value in given.items() if value not in (None, (), {})}


def shown_operation(operation: Operation) -> OperationInfo:
    spec, progress = operation.spec, operation.progress
    asked = {} if spec.changes is None else msgspec.structs.asdict(spec.changes)
    changes = {name: value for name, value in asked.items() if value is not None}
    return OperationInfo(
        id=operation.id,
        verb=spec.verb,
        filter=msgspec.to_builtins(fields_of(spec.query)),
        changes=msgspec.to_builtins({name: to_datetime(value) if name == "due_at" else value for name, value in changes.items()}),
        rate=spec.rate,
        canary=spec.canary,
        stage=None if spec.canary is None else progress.stage,
        made_by=spec.made_by,
        state=operation.state,
        started_at=to_datetime(operation.started_at),
        ended_at=None if operation.ended_at is None else to_datetime(operation.ended_at),
        matched=operation.count,
        answers=dict(progress.answers),
        note=progress.note,
    )


class Operations(Protocol):
    """Acts on all tasks that match a filter, over a store or a server."""

    async def start(self, asked: Asked, *, made_by: str | None = None, request: Request | None = None) -> OperationInfo:
        """Store an operation, which workers and servers then perform. It touches nothing that is submitted after its start.

        A repeated request is answered with the operation that the first one started. Raises Conflict if that asked for something else.
        """
        ...

    async def get(self, operation: str) -> OperationInfo:
        """Return an operation as it is now. Raises OperationNotFound if there is none."""
        ...

    async def page(self, limit: int = 100, cursor: str | None = None) -> OperationPage:
        """Return operations, latest started first."""
        ...

    async def stop(self, operation: str) -> OperationInfo:
        """End an operation: no further task is acted on. What was done stays. Raises Conflict if it has ended."""
        ...

    async def pause(self, operation: str) -> OperationInfo:
        """Let an operation rest until it is resumed. Raises Conflict if it has ended."""
        ...

    async def resume(self, operation: str) -> OperationInfo:
        """Let a paused operation go on. Raises Conflict if it has ended."""
        ...

    async def wait(self, operation: str, *, timeout: Seconds | None = None) -> OperationInfo:
        """Wait until an operation has ended, at most `timeout` seconds, and return it as it is then."""
        ...


Perform = Callable[[Operation], Awaitable[tuple[Operation, float]]]


class LocalOperations(Operations):
    """`app.operations` over a store. Who waits also performs, so that an operation ends although no worker or server runs."""

    def __init__(self, store: Store, *, user: str, opened: Callable[[], Awaitable[None]], perform: Perform | None) -> None:
        self._store = store
        self._user = user
        self._opened = opened
        self._perform = perform

    async def start(self, asked: Asked, *, made_by: str | None = None, request: Request | None = None) -> OperationInfo:
        await self._opened()
        spec = msgspec.structs.replace(
            self.spec_of(asked), made_by=self._user if made_by is None else made_by, request="" if request is None else request.digest
        )
        name = new_id() if request is None else request.operation
        stored = await self._store.add_operation(Operation(id=name, spec=spec))
        if stored.spec.request != spec.request:
            raise Conflict(
                f"this Idempotency-Key stands for operation {stored.id}, which came with another body; "
                "repeat a request with its body unchanged, or use a new key"
            )
        return shown_operation(stored)

    def spec_of(self, asked: Asked) -> OperationSpec:
        """Check what somebody asks for."""
        if asked.query.logs is not None:
            read_terms(asked.query.logs)
        query = msgspec.structs.replace(asked.query.by(self._user), limit=1, cursor=None, brief=False)
        return OperationSpec(verb=asked.verb, query=query, changes=self._changes(asked), rate=asked.rate, canary=asked.canary)

    def _changes(self, asked: Asked) -> Changes | None:
        if asked.verb is not Verb.EDIT:
            return None
        if asked.due_at is not None and asked.delay is not None:
            raise InvalidValue("give due_at or delay, not both")
        due_at: Instant | None = None
        if asked.due_at is not None:
            due_at = due_instant(asked.due_at)
        elif asked.delay is not None:
            due_at = self._store.now() + delay_micros(asked.delay)
        if due_at is None and asked.priority is None and asked.collection is None:
            raise InvalidValue("nothing to change: give due_at, delay, priority or collection")
        return Changes(
            due_at=due_at,
            priority=None if asked.priority is None else check_priority(asked.priority),
            collection=None if asked.collection is None else check_name(asked.collection, "collection"),
        )

    async def get(self, operation: str) -> OperationInfo:
        return shown_operation(await self._found(operation))

    async def page(self, limit: int = 100, cursor: str | None = None) -> OperationPage:
        await self._opened()
        before: tuple[Instant, str] | None = None
        if cursor is not None:
            started_at, name = read_cursor(cursor, int, str)
            before = started_at, name
        found = await self._store.operations(limit + 1, before=before)
        last = found[limit - 1] if len(found) > limit else None
        return OperationPage(
            [shown_operation(each) for each in found[:limit]], None if last is None else write_cursor(last.started_at, last.id)
        )

    async def stop(self, operation: str) -> OperationInfo:
        return await self._change(operation, lambda found: ended(found, OperationState.STOPPED, self._store.now()))

    async def pause(self, operation: str) -> OperationInfo:
        return await self._change(operation, lambda found: in_state(found, OperationState.PAUSED))

    async def resume(self, operation: str) -> OperationInfo:
        return await self._change(operation, lambda found: in_state(found, OperationState.RUNNING))

    async def wait(self, operation: str, *, timeout: Seconds | None = None) -> OperationInfo:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + to_seconds(timeout, "timeout")
        found = await self._found(operation)
        seen: int | None = found.version  # if it is another by the next look, somebody else performs it
        changed = asyncio.Event()

        def on_hint(hint: Hint) -> None:
            if hint.kind is HintKind.OPERATIONS:
                changed.set()

        listener = self._store.listen(on_hint)
        try:
            while found.state not in ENDED:
                pause = LOOK_AGAIN
                if found.state is OperationState.RUNNING and self._perform is not None and found.version == seen:
                    found, pause = await self._perform(found)
                seen = found.version
                left = LOOK_AGAIN if end is None else end - loop.time()
                if left <= 0 or found.state in ENDED:
                    break
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, pause, LOOK_AGAIN)):
                        await changed.wait()
                found = await self._found(operation)
        finally:
            listener.close()
        return shown_operation(found)

    async def _found(self, operation: str) -> Operation:
        await self._opened()
        found = await self._store.operation(operation)
        if found is None:
            raise not_found(operation)
        return found

    async def _change(self, operation: str, change: Callable[[Operation], Operation]) -> OperationInfo:
        """Write a change. Who performs the operation writes often, so it is tried again."""
        for _ in range(TRIES):
            found = await self._found(operation)
            if found.state in ENDED:
                raise Conflict(f"operation {operation} has ended already: it is {found.state}")
            after = change(found)
            if after.state is found.state:
                return shown_operation(found)
            if await self._store.save_operation(after):
                return shown_operation(after)
        raise Conflict(f"operation {operation} changes too fast; try again")


def bulk_of(operation: OperationInfo) -> Bulk:
    """Return what a verb on many tasks did. Raises what kept the operation from its end."""
    if operation.state is OperationState.FAILED:
        raise InvalidValue(f"operation {operation.id} ended before all was done: {operation.note}")
    return Bulk(operation.matched, operation.answers)


def not_found(operation: str) -> OperationNotFound:
    return OperationNotFound(
        f"there is no operation {operation[:80]!r}: it was never started, or it ended long ago; `duetime operations` lists all"
    )
