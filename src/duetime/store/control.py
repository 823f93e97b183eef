"""The half of the seam that is SQL-shaped: everything that is not a task on its way. It exists once, however many shards there are.

Every sentence of a docstring here is a promise that `tests/conformance` checks on every store. `duetime.store` says what holds for all.
The larger roles have modules of their own: `disabling`, `schedules`, `access`, `secrets`, `artifacts`, `targets`, `requests`, `intents`,
`output`, `figures`, `series`, `failures`, `operations`, `flows`, `events`, `locks`, `limits`, `steps`, `servers`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from duetime.clock import Instant
from duetime.model.gate import Gate, Gates
from duetime.model.query import USUAL_COUNT, Page, Query, TaskCount
from duetime.model.task import NewTask, State, TaskRecord
from duetime.store.access import AccessStore
from duetime.store.alerts import AlertStore
from duetime.store.artifacts import ArtifactStore
from duetime.store.disabling import DisablingStore
from duetime.store.events import EventStore
from duetime.store.failures import FailureStore
from duetime.store.figures import FigureStore
from duetime.store.flows import FlowStore
from duetime.store.intents import IntentStore
from duetime.store.limits import LimitStore
from duetime.store.locks import LockStore
from duetime.store.operations import OperationStore
from duetime.store.output import OutputStore
from duetime.store.quotas import QuotaStore
from duetime.store.requests import RequestStore
from duetime.store.schedules import ScheduleStore
from duetime.store.secrets import SecretStore
from duetime.store.series import SeriesStore
from duetime.store.servers import ServerStore
from duetime.store.steps import StepStore
from duetime.store.targets import TargetStore
from duetime.store.values import MOST_IN_LANE, Added, Counts, Declaration, HandlerLoad, Inconsistency, Pruned
from duetime.store.weights import WeightStore


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
        """Record handlers. What was declared before under a name, with another digest, is kept beside it.

        The present declaration of a handler is the one that was first declared last: a process that declares again what it declared
        before changes nothing, so an old worker that restarts does not take back what a newer one declared. A new declaration lets all
        others of its name be forgotten but the one before it and those that a registered worker holds. An alias of the present
        declaration is another name of the handler, also for gates, until a later declaration leaves it out.
        """
        ...

    async def declarations(self, *, former: bool = False) -> list[Declaration]:
        """List the present declaration of each handler by name; with `former`, after earlier ones that a registered worker holds."""
        ...


class GateStore(Protocol):
    """Where gates live. Their version grows with every change."""

    async def put_gate(self, gate: Gate) -> int:
        """Set a gate in place of an earlier one for the same handler and collection; return the new gates version.

        Every name of a handler stands for all of them, here and in `remove_gate`.
        """
        ...

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        """Open a gate, forget the streak that may have closed it, and wake workers; return the new version, or None if there was none."""
        ...

    async def gates(self) -> Gates:
        """Return all gates with their version. Gates whose time is over are left out."""
        ...


class Listing(Protocol):
    """Reading many tasks at once."""

    async def page(self, query: Query) -> Page:
        """Return one page of tasks, newest submitted first; if only final states match, latest finished first.

        Following `next` visits every task that matches throughout exactly once, whatever is added meanwhile. A page has fewer tasks
        than the limit where their payloads, results and errors would exceed `MAX_PAGE_BYTES` together, and at least one; what is not
        on it is not read, except for one task. Where tasks have to be looked at one by one (`Query.walks`) it also ends after
        `Query.scan` of them, says so (`looked`), and may be empty although there is a next one. The tasks of a brief page are as `brief`
        makes them, and large payloads are not read at all.
        """
        ...

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        """Count the tasks that match, wherever a cursor is: up to a limit, and not by reading them. Of those that have to be looked at
        one by one, look at so many as ten pages would.
        """
        ...

    async def counts(self, limit: int = MOST_IN_LANE) -> Counts:
        """Count tasks by lane and by final state. Of a lane at most `limit` due tasks are counted, so that no flood makes it long."""
        ...

    async def handler_load(self, handler: str) -> HandlerLoad:
        """Count a handler's due tasks. Looks at no task of another handler."""
        ...

    async def upcoming(self, handler: str, limit: int) -> list[TaskRecord]:
        """List pending tasks of a handler that only time holds back, in the order of their positions: what has been due longest is first.

        Looks at no task of another handler, and at no more than `limit` of each lane.
        """
        ...


class Upkeep(Protocol):
    """What keeps a store small, fast and sound."""

    async def prune(
        self, state: State, before: Instant, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Pruned]:
        """Remove up to `limit` tasks in this final state that finished before an instant, with their attempts and output.

        May remove fewer if they have much output; only when it removes none are none left. Never removes a live task. Of handlers only
        those in `only` count, if it is given, and none in `but`: a task of theirs is neither removed nor hidden for a moment. With either a
        store remembers up to where nothing is left, for a day: what is written as finished before that is removed up to a day late.
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
    IntentStore,
    DeclarationStore,
    GateStore,
    DisablingStore,
    LimitStore,
    WeightStore,
    QuotaStore,
    ScheduleStore,
    AccessStore,
    SecretStore,
    ArtifactStore,
    TargetStore,
    RequestStore,
    OutputStore,
    FigureStore,
    OperationStore,
    SeriesStore,
    FailureStore,
    FlowStore,
    EventStore,
    LockStore,
    StepStore,
    AlertStore,
    ServerStore,
    Listing,
    Upkeep,
    Protocol,
):
    """Everything that is not a task on its way."""
