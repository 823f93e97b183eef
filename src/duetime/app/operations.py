"""`app.operations`: acts on all tasks that match, with filters as people write them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, TypedDict, Unpack

from duetime.app.filters import Filters, query_of
from duetime.client.operations import Asked, OperationInfo, OperationPage, Operations
from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.operation import Canary, Verb


class EditValues(TypedDict, total=False):
    """What an edit changes on waiting tasks: `due_at` or `delay`, `priority`, `collection`."""

    due_at: datetime
    delay: Seconds
    priority: int
    collection: str


class AppOperations:
    """Starts operations and shows how far they are. Workers and servers perform them, whatever becomes of this program."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def start(
        self,
        verb: Literal["cancel", "retry", "edit"] | Verb,
        *,
        set: EditValues | None = None,
        rate: float | None = None,
        canary: bool | Canary = False,
        **filters: Unpack[Filters],
    ) -> OperationInfo:
        """Start acting on all tasks that match now: `await app.operations.start("retry", handler="charge", rate=50)`.

        Nothing that is submitted later is touched. `set` is what an edit changes; `rate` bounds how many tasks per second are acted on.
        `canary` of a retry: one task first, then 1 percent, then the rest, and it stops when more than 10 percent failed again.
        """
        if verb not in list(Verb):
            raise InvalidValue(f"an operation's verb is one of {', '.join(Verb)}, got {verb!r}")
        surplus = (set or {}).keys() - EditValues.__annotations__.keys()
        if surplus:
            raise InvalidValue(f"set takes {', '.join(EditValues.__annotations__)}, got {min(surplus)}")
        if set and verb != Verb.EDIT:
            raise InvalidValue(f"set is for an edit, not for {verb}")
        chosen = (Canary() if canary else None) if isinstance(canary, bool) else canary
        return await self._operations.start(Asked(verb=Verb(verb), query=query_of(filters), rate=rate, canary=chosen, **(set or {})))

    async def get(self, operation: str | OperationInfo) -> OperationInfo:
        """Return an operation as it is now. Raises OperationNotFound if there is none."""
        return await self._operations.get(_id(operation))

    async def list(self) -> AsyncIterator[OperationInfo]:
        """Return all operations, latest started first; those that ended are kept for 30 days."""
        cursor: str | None = None
        while True:
            page: OperationPage = await self._operations.page(cursor=cursor)
            for each in page.items:
                yield each
            cursor = page.next
            if cursor is None:
                return

    async def stop(self, operation: str | OperationInfo) -> OperationInfo:
        """End an operation: no further task is acted on, and what was done stays. Raises Conflict if it has ended."""
        return await self._operations.stop(_id(operation))

    async def pause(self, operation: str | OperationInfo) -> OperationInfo:
        """Let an operation rest until it is resumed."""
        return await self._operations.pause(_id(operation))

    async def resume(self, operation: str | OperationInfo) -> OperationInfo:
        """Let a paused operation go on."""
        return await self._operations.resume(_id(operation))

    async def wait(self, operation: str | OperationInfo, *, timeout: Seconds | None = None) -> OperationInfo:
        """Wait until an operation has ended, at most `timeout` seconds, and return it as it is then."""
        return await self._operations.wait(_id(operation), timeout=timeout)


def _id(operation: str | OperationInfo) -> str:
    return operation.id if isinstance(operation, OperationInfo) else operation
