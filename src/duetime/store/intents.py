"""The role of the seam that is about cancels and edits in a caller's transaction; a part of `store.control`.

A caller's transaction may stay open for long, so it locks no task: it leaves an *intent*, a row of its own, which any process that
performs duties carries out after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from duetime.model.task import TaskRecord
from duetime.store.values import Edit


class Intent(msgspec.Struct, frozen=True):
    """What a caller's transaction asks for: the cancel of a task, or with `edit` that change of it."""

    task: str
    edit: Edit | None = None


class IntentStore(Protocol):
    """Where intents live from the commit of a caller's transaction until they are carried out.

    A verb that takes a connection treats it as `add_on` does: it is part of the transaction that is open there, never suspends on a
    synchronous connection, and raises InvalidValue for what it cannot use.
    """

    async def get_on(self, connection: object, ids: Sequence[str]) -> list[TaskRecord | None]:
        """Return tasks by id as the caller's transaction sees them, also those that it has added itself."""
        ...

    async def find_on(self, connection: object, handler: str, key: str) -> TaskRecord | None:
        """Return the task that `find` would return, as the caller's transaction sees it."""
        ...

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        """Leave intents in the caller's transaction; if it is rolled back, there never were any.

        Nothing else is written and no task is locked, so nobody waits for the caller, however long the transaction stays open. Listeners
        are woken after the commit, where the store can do that. The `seen` of an edit is not kept.
        """
        ...

    async def carry_out(self, limit: int) -> int:
        """Do what up to `limit` committed intents ask for, the oldest first, and forget them; return how many.

        Each has the effect that `cancel` or `edit` has at this moment, exactly once, however many processes do this at the same time. What
        those would refuse has no effect. Intents about one task are carried out in the order of their transaction.
        """
        ...

    async def intents(self, task: str) -> list[Intent]:
        """Return the committed intents about a task that have not been carried out, in their order."""
        ...


class Round(msgspec.Struct, frozen=True):
    """Intents that can be carried out together: first all edits, then all cancels. Each comes with its number; for stores."""

    edits: list[tuple[int, Edit]]
    cancels: list[tuple[int, str]]


def in_rounds(intents: Iterable[tuple[int, Intent]]) -> list[Round]:
    """Divide intents, so that those about one task keep their order: an edit after a cancel of the same task begins a new round."""
    rounds = [Round([], [])]
    cancelled: set[str] = set()
    for number, intent in intents:
        if intent.edit is None:
            cancelled.add(intent.task)
            rounds[-1].cancels.append((number, intent.task))
            continue
        if intent.task in cancelled:
            rounds.append(Round([], []))
            cancelled.clear()
        rounds[-1].edits.append((number, intent.edit))
    return rounds
