"""What clients do while everything else is broken: submit in several ways, cancel, close and open a gate."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from duetime import CancelVerdict, NewTask
from duetime.errors import StoreUnavailable, TaskNotFound
from tests.chaos.fleet import Fleet

T = TypeVar("T")
PAUSE = 0.2
MIXED = ("quick", "quick", "quick", "threaded", "threaded", "stumbles")
KEYS = 20


class Load:
    """Submits so many tasks in all: most do nothing, some run for a while, in the loop, in threads, in sub-processes."""

    def __init__(self, fleet: Fleet, total: int, chance: random.Random, dsn: Callable[[], str]) -> None:
        self._fleet = fleet
        self._total = total
        self._chance = chance
        self._dsn = dsn
        self.submitted = 0
        self.cancelled = 0
        self.rolled_back = 0
        self.relentless = False  # the faults are over: submit the rest without a pause

    async def run(self) -> None:
        rounds = 0
        while self.submitted < self._total or not self.relentless:
            rounds += 1
            await self._submit(self._mixed() + [self._fleet.new("bulk") for _ in range(self._bulk())])
            if rounds % 5 == 0:
                await self._in_a_transaction(commits=self._chance.random() < 0.5)
                await self._cancel_some()
            if not self.relentless:
                await asyncio.sleep(PAUSE)

    def _bulk(self) -> int:
        left = max(0, self._total - self.submitted)
        return min(left, 2_000 if self.relentless else max(10, self._total // 250))

    def _mixed(self) -> list[NewTask[Any]]:
        """Give what keeps a few slots of each worker busy."""
        chance, fleet = self._chance, self._fleet
        new = [self._timed(handler) for handler in chance.choices(MIXED, k=8)]
        new.append(fleet.app.handler("quick").options(key=f"key {chance.randrange(KEYS)}", if_exists="keep").new(seconds=0.1))
        if chance.random() < 0.4:
            new.append(fleet.new("boxed", seconds=chance.uniform(0.1, 0.6)))
        return new

    def _timed(self, handler: str) -> NewTask[Any]:
        seconds = {} if handler == "stumbles" else {"seconds": self._chance.uniform(0.0, 0.6)}
        return self._fleet.new(handler, **seconds).after(self._chance.uniform(0.0, 0.5))

    async def _submit(self, new: list[NewTask[Any]]) -> None:
        self.submitted += len(await self._fleet.submit(new))

    async def _in_a_transaction(self, *, commits: bool) -> None:
        """Submit inside a caller's transaction, which is rolled back or committed; if that fails nobody knows which it was."""
        fleet, [new] = self._fleet, [self._fleet.new("quick")]
        try:
            connection = await asyncpg.connect(self._dsn(), timeout=5, command_timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            return
        try:
            transaction = connection.transaction()
            await transaction.start()
            await fleet.app.submit_many([new], connection=connection, allow_unknown=True)
            if not commits:
                await transaction.rollback()
                self.rolled_back += 1
                return
            fleet.journal.write("perhaps", task=new.id)
            await transaction.commit()
            fleet.journal.write("submitted", task=new.id, handler=new.handler)
            self.submitted += 1
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, StoreUnavailable, TimeoutError):
            return
        finally:
            connection.terminate()

    async def _cancel_some(self) -> None:
        tasks = await self._fleet.submit(self._fleet.new("quick", seconds=0.2).after(self._chance.uniform(0.0, 1.5)) for _ in range(3))
        self.submitted += len(tasks)
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        for task in tasks:
            with contextlib.suppress(StoreUnavailable, TaskNotFound):  # a fail-over may have taken it
                if await self._fleet.app.cancel(task.id) is CancelVerdict.CANCELLED:
                    self._fleet.journal.write("cancelled", task=task.id)
                    self.cancelled += 1


async def persistently(call: Callable[[], Awaitable[T]], *, rounds: int = 600) -> T:
    """Repeat a verb until the store has answered it."""
    for _ in range(rounds):
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    return await call()
