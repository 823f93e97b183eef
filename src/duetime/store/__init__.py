"""The interface between Duetime and its databases: verbs on batches, with an answer per item.

`Store` is the sum of its roles: those of `store.shard` (tasks on their way) and of `store.control` (everything else). Code that needs
one role takes that role as its argument type. Every sentence of a docstring there is a promise that `tests/conformance` checks on every
store. What holds for all verbs:

* **Atomic.** What a verb does to one item happens whole or not at all, also when the process or the server dies in the middle of it;
  with `traits.atomic == "call"` so does the whole call, otherwise what it does to each shard.
* **Durable.** When a verb that writes returns, its effect is committed with the durability that `traits.durability` states.
* **Time.** The store's clock decides. A store is opened with a clock only by tests.
* **Answers in order.** A list of answers has one entry per item of the batch, in the order of the batch.
* **Empty batches** are answered with empty lists and touch nothing.
* **Unknown ids** are answered per item (None, or the verdict `UNKNOWN`), never by an exception.
* **Failure** of the store itself is `StoreUnavailable`, Then either nothing was stored, or the caller cannot know. Every verb may be
repeated safely with the same arguments.
"""

from __future__ import annotations

from typing import Protocol

from duetime.store.control import Control
from duetime.store.shard import Shard
from duetime.store.traits import Traits

__all__ = ["Store"]


class Store(Shard, Control, Protocol):
    """Where tasks live. Opened before use, usable from several event loops one after the other."""

    @property
    def url(self) -> str:
        """The URL without secrets, for people to read."""
        ...

    @property
    def traits(self) -> Traits:
        """What this store promises where stores differ, and how it is used best."""
        ...

    @property
    def output_folder(self) -> str | None:
        """The folder beside this store in which workers collect output of attempts; None if it has none."""
        ...

    async def open(self, *, migrate: bool = True) -> None:
        """Connect to the store, and create or upgrade its schema unless `migrate` is False. Opening twice is harmless.

        Any number of processes may open at once. A schema newer than this code is refused with StoreUnavailable.
        """
        ...

    async def close(self) -> None:
        """Finish what was begun and free all resources. Closing twice is harmless."""
        ...

    async def ping(self) -> None:
        """Return when the store has answered and would accept a write; change nothing. Raises StoreUnavailable if it does not."""
        ...

    def script(self) -> str:
        """Return the statements that make or update the tables, for a person to read and run."""
        ...
