"""The half of the seam that is SQL-shaped: everything that is not a task on its way. It exists once, however many shards there are.

Every sentence of a docstring here is a promise that `tests/conformance` checks on every store. `duetime.store` says what holds for all.
The larger roles have modules of their own: `schedules`, `access`, `requests`, `output`, `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duetime.clock import Instant
from duetime.model.gate import Gate, Gates
from duetime.model.query import Page, Query
from duetime.model.task import NewTask, State
from duetime.store.access import AccessStore
from duetime.store.figures import FigureStore
from duetime.store.output import OutputStore
from duetime.store.requests import RequestStore
from duetime.store.schedules import ScheduleStore
from duetime.store.values import Added, Counts, Declaration, HandlerLoad, Inconsistency, Pruned


class CallersTransactions(Protocol):
    """Submitting inside a transaction of the caller's own."""

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        """Prepare, outside of the caller's transaction, what adding these tasks on the caller's connection needs."""
        ...

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        """Do the same as `add` on the caller's own connection, inside the transaction that is open there.

        The tasks exist once the caller commits; if the caller rolls back, they never existed. With a synchronous connection the call
        never suspends once the tasks were prepared, so it runs entirely in the caller's thread. Raises InvalidValue for a connection of
        an unknown kind, of another database, or without an open transaction, and says what to do.
        """
        ...


class DeclarationStore(Protocol):
    """Which handlers there are."""

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        """Record handlers, replacing earlier declarations of the same names."""
        ...

    async def declarations(self) -> list[Declaration]:
        """List all declared handlers by name."""
        ...


class GateStore(Protocol):
    """Where gates live. Their version grows with every change."""

    async def put_gate(self, gate: Gate) -> int:
        """Set a gate in place of an earlier one for the same handler and collection; return the new gates version."""
        ...

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        """Open a gate and wake workers; return the new version, or None if there was none."""
        ...

    async def gates(self) -> Gates:
        """Return all gates with their version. Gates whose time is over are left out."""
        ...


class Listing(Protocol):
    """Reading many tasks at once."""

    async def page(self, query: Query) -> Page:
        """Return one page of tasks, newest submitted first; with one final state as a filter, latest finished first.

        Following `next` visits every task that matches throughout exactly once, whatever is added meanwhile.
        """
        ...

    async def counts(self) -> Counts:
        """Count tasks by lane and by final state."""
        ...

    async def handler_load(self, handler: str) -> HandlerLoad:
        """Count a handler's running tasks and its due tasks. Looks at no waiting or finished task of another handler."""
        ...


class Upkeep(Protocol):
    """What keeps a store small, fast and sound."""

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        """Remove up to `limit` tasks in this final state that finished before an instant, with their attempts and output.

        May remove fewer if they have much output; only when it removes none are none left. Never removes a live task.
        """
        ...

    async def tidy(self) -> None:
        """Do the periodic maintenance that keeps the store fast. Any process may do it, at any time."""
        ...

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        """Look for impossible states, and repair them if `repair`. No live task is lost, none is invented."""
        ...


class Control(
    CallersTransactions,
    DeclarationStore,
    GateStore,
    ScheduleStore,
    AccessStore,
    RequestStore,
    OutputStore,
    FigureStore,
    Listing,
    Upkeep,
    Protocol,
):
    """Everything that is not a task on its way."""
