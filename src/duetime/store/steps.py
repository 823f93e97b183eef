"""The role of the seam that is about steps and signals; a part of `store.control`. Values: `model/steps.py`; why: docs/design/flows.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from duetime.clock import MILLISECOND
from duetime.model.steps import NewSignal, NewStep, SignalRecord, StepRecord

AT_ONCE = 1_000  # waits, or tasks left behind, that one look deals with
SHORTEST_WAIT = 100 * MILLISECOND  # for a signal, from when it is stored; otherwise one that is stored late would not take what is kept


class Looked(msgspec.Struct, frozen=True):
    """What a look at waits has done: how many tasks go on, and which children live although the task that has called them has ended."""

    woken: int = 0
    more: bool = False
    orphans: tuple[str, ...] = ()


class StepStore(Protocol):
    """Saved steps of tasks, and signals that some of them wait for.

    A settlement that suspends a task (`Settlement.suspension`) lets it be `blocked` until that step is done, or its children have ended,
    and after its commit looks whether that is so already.
    """

    async def steps(self, task: str) -> list[StepRecord]:
        """Return the steps of a task in the order in which they were first saved. They are kept as long as the task is."""
        ...

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        """Save steps of attempts that the worker runs, and return them as they are stored; None for one of any other attempt.

        One that is stored already is written anew, but a wait that has ended is not: then what ended it is returned. A wait for a signal
        takes one that is kept already, the oldest first, also if its time is over when it is stored. Committed when this returns; nobody
        takes the attempt away meanwhile.
        """
        ...

    async def send_signals(self, signals: Sequence[NewSignal]) -> list[bool]:
        """Store signals, and give each to the task that has waited longest for its name; return which are new.

        One whose name and id are stored already changes nothing. Each reaches at most one wait, and each wait gets at most one.
        """
        ...

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        """Store signals in the caller's open transaction, as `add_on` does with tasks. A look after the commit gives them away."""
        ...

    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[SignalRecord]:
        """List kept signals, the oldest first: of one name, or of all."""
        ...

    async def delete_signals(self, name: str, id: str | None = None) -> int:
        """Forget signals of a name, or the one with this id; return how many. Who has got one keeps what it said."""
        ...

    async def look_at_waits(self) -> Looked:
        """Do what any look after a commit may have missed: give signals away, end waits whose time is over, let tasks go on whose wait
        has ended, forget signals that are kept no longer. Looks at a part of those that wait for other tasks, the next part each time.
        """
        ...
