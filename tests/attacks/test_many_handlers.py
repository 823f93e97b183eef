"""A worker with a thousand handlers: what a claim costs depends on those that have due tasks, not on how many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from duetime import App, Task
from duetime.clock import SECOND
from duetime.model.claim_order import ClaimOrder
from duetime.store.sqlite import schema, work
from duetime.store.sqlite.runner import SyncRunner, drive
from duetime.store.sqlite.submit import Submission
from duetime.store.values import Claim
from duetime.worker.queues import HandlerQueue
from tests.conformance.build import new_task

FEW, MANY = 10, 1_000
LATER = 3_600 * SECOND


class Counted:
    """A store in memory that counts the statements of a claim, and the steps of SQLite's machine, which are many per row."""

    def __init__(self, connection: sqlite3.Connection, handlers: int) -> None:
        self._connection = connection
        self._handlers = [f"handler-{number:04}" for number in range(handlers)]
        self._order = ClaimOrder()
        self.statements = self.steps = 0
        schema.migrate(connection, now=0)
        connection.execute(
            "insert into duetime_worker (id, host, pid, slots, started_at, process) values ('worker', 'host', 1, '{}', 0, '-')"
        )

    def add(self, handlers: int, *, each: int = 1, delay: int = 0) -> None:
        """Add tasks for the last so many handlers."""
        tasks = [new_task(handler, delay=delay) for handler in self._handlers[-handlers:] for _ in range(each)]
        drive(Submission(SyncRunner(self._connection), 0).add(tasks))

    def claim(self, total: int) -> Claim:
        self.statements = self.steps = 0
        self._connection.set_trace_callback(self._on_statement)
        self._connection.set_progress_handler(self._on_step, 1)
        try:
            return work.hand_out(self._connection, "worker", 1, dict.fromkeys(self._handlers, 50), total, 0, 1, self._order)
        finally:
            self._connection.set_trace_callback(None)
            self._connection.set_progress_handler(None, 0)

    def _on_statement(self, statement: str) -> None:
        self.statements += 1

    def _on_step(self) -> int:
        self.steps += 1
        return 0


@pytest.fixture(params=[FEW, MANY])
def handlers(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def store(handlers: int) -> Iterator[Counted]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield Counted(connection, handlers)


def test_handlers_with_nothing_due_cost_a_claim_nothing(store: Counted, handlers: int) -> None:
    store.add(handlers, delay=LATER)
    store.add(2)
    assert len(store.claim(2_000).tasks) == 2
    assert store.statements < 20
    assert store.steps < 1_000, "a step for each of a thousand handlers would be too many"


def test_a_claim_for_all_handlers_is_a_few_statements(store: Counted, handlers: int) -> None:
    store.add(handlers)
    assert len(store.claim(2_000).tasks) == handlers
    assert store.statements < 20


def test_a_claim_of_one_task_reads_the_entries_of_one_handler(store: Counted, handlers: int) -> None:
    store.add(handlers, each=3)
    assert len(store.claim(1).tasks) == 1
    assert store.statements < 20
    assert store.steps < 1_000 + 50 * handlers, "the lanes are listed, but what waits in them is not read"


async def test_a_worker_looks_at_the_queues_that_have_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("sqlite:///:memory:")
    looked_at: list[str] = []
    buffer = HandlerQueue.buffer

    def counted(queue: HandlerQueue) -> int:
        looked_at.append(queue.spec.name)
        return buffer(queue)

    monkeypatch.setattr(HandlerQueue, "buffer", counted)

    async def work() -> None: ...

    handlers = [app.task(work, name=f"handler-{number}") for number in range(MANY)]
    async with app.worker():
        first: Task[None] = await handlers[0].now()
        await app.result(first)
        second: Task[None] = await handlers[0].now()  # by now every queue has been looked at, and all but one found idle
        await app.result(second)
        looked_at.clear()
        third: Task[None] = await handlers[-1].now()
        await app.result(third)
    assert set(looked_at) <= {handlers[0].name, handlers[-1].name}
