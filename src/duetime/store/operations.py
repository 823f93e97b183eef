"""The role of the seam that is about operations; a part of `store.control`. Rules: `model/operation.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.operation import Operation


class Acted(msgspec.Struct, frozen=True):
    """The operation after a call of `act`, and the answers of the tasks that this very call has acted on."""

    operation: Operation
    answers: Mapping[str, str]


class OperationStore(Protocol):
    """Where operations live."""

    async def add_operation(self, operation: Operation) -> Operation:
        """Store an operation that starts now, by the store's clock, and wake who performs it.

        One whose id is stored already is a repeat: the stored one is returned, unchanged.
        """
        ...

    async def operations(self, limit: int, *, before: tuple[Instant, str] | None = None, live: bool = False) -> list[Operation]:
        """Return operations, latest started first, those before a start and id if they are given; `live`: only those not ended."""
        ...

    async def operation(self, operation: str) -> Operation | None:
        """Return an operation; None for an unknown id."""
        ...

    async def save_operation(self, operation: Operation) -> bool:
        """Replace the stored operation if its version is one less than this one's; return whether it was. Its start does not change."""
        ...

    async def act(self, operation: str) -> Acted | None:
        """Do what a running operation says to the tasks of its batch, and return it as it is then; None if the id is unknown.

        Each task has the effect and the verdict that `cancel`, `retry` or `edit` has at this moment. The transaction that acts on a task
        counts its verdict and takes it out of the batch, so each is acted on and counted once, whoever dies in between and however many
        processes do this at the same time. One that is not running is not touched. A task that cannot be dealt with now stays in the batch.
        """
        ...

    async def prune_operations(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` operations that ended before an instant; return how many."""
        ...
