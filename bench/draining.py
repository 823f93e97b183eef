"""Draining no-op tasks on SQLite: Duetime, Huey, and the bare statements that Duetime needs.

All with an fsync per commit. Duetime's figure counts durable completions with history kept (every attempt's start, end,
outcome and worker); Huey's counts executions: it removes a task before running it and keeps nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.rounds import Report, answer, in_process, interleave, median, median_ratio
from bench.submitting import rows
from duetime import App
from duetime.model.outcome import Settlement, SettleVerdict
from duetime.model.task import State
from duetime.store.sqlite.connection import connect
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

TASKS, HUEY_TASKS = 100_000, 4_000


async def duetime(folder: str) -> dict[str, float]:
    app = App(f"sqlite:///{folder}/bench.db")

    @app.task
    async def noop(number: int) -> None: ...

    async with app:
        for start in range(0, TASKS, 2_000):
            await app.submit_many([noop.new(number=number) for number in range(start, start + 2_000)])
        began = time.perf_counter()
        settles = 0
        async with app.worker() as worker:
            settle = app.store.settle

            async def counted(worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
                nonlocal settles
                settles += 1
                return await settle(worker, settlements)

            app.store.settle = counted  # type: ignore[method-assign]
            while worker.executor.finished < TASKS or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.002)
            elapsed = time.perf_counter() - began
        await app.open()
        done = {count.state: count.count for count in (await app.store.counts()).finals}
        assert done == {State.SUCCEEDED: TASKS}, done
    return {"rate": TASKS / elapsed, "batch": TASKS / max(settles, 1)}


def huey(folder: str) -> dict[str, float]:
    from huey import SqliteHuey

    logging.disable(logging.WARNING)
    queue = SqliteHuey("bench", filename=f"{folder}/huey.db", fsync=True, results=False)
    done = threading.Event()
    count = 0

    @queue.task()  # type: ignore[untyped-decorator]
    def noop(number: int) -> None:
        nonlocal count
        count += 1
        if count == HUEY_TASKS:
            done.set()

    for number in range(HUEY_TASKS):
        noop(number)
    consumer = queue.create_consumer(workers=1, worker_type="thread", periodic=False)
    began = time.perf_counter()
    consumer.start()
    done.wait(120)
    elapsed = time.perf_counter() - began
    consumer.stop(graceful=True)
    return {"rate": count / elapsed}


def bare(folder: str, batch: int) -> dict[str, float]:
    """The statements of claim and settle in a plain loop; two durable commits per batch, as in the worker."""

    async def prepare() -> None:
        async with App(f"sqlite:///{folder}/bench.db"):
            pass

    asyncio.run(prepare())
    with contextlib.closing(connect(f"{folder}/bench.db", synchronous="full", writes=True)) as connection:
        ((lane, _),) = connection.execute(SQL.add_lane, ("noop", "", 5)).fetchall()
        connection.execute(SQL.insert_worker, ("w", "h", 1, "{}", 0, "-"))
        for start in range(0, TASKS, 2_000):
            tasks, due = rows(start + 1, 2_000, lane)
            connection.execute("begin immediate")
            connection.executemany(SQL.insert_task, tasks)
            connection.executemany(SQL.insert_due, due)
            connection.execute(SQL.lower_lane, (0, lane, 0))
            connection.execute("commit")
        began = time.perf_counter()
        number = 0
        while claimed := _bare_claim(connection, lane, number, batch):
            number += 1
            _bare_settle(connection, claimed)
        return {"rate": TASKS / (time.perf_counter() - began)}


def _bare_claim(connection: sqlite3.Connection, lane: int, number: int, batch: int) -> list[Any]:
    now = time.time_ns() // 1000
    connection.execute("begin immediate")
    connection.execute(SQL.worker_known, ("w",)).fetchall()
    connection.execute(SQL.expired_tasks, (now, 1)).fetchall()
    connection.execute(SQL.all_gates, (now,)).fetchall()
    connection.execute(SQL.gates_version).fetchall()
    connection.execute(SQL.lanes_with_work, (now,)).fetchall()
    tasks = connection.execute(SQL.first_in_lane, (lane, now, batch)).fetchone()[0]
    connection.execute(SQL.insert_running, {"worker": "w", "claim": number, "now": now, "tasks": tasks})
    connection.execute(SQL.delete_due, (tasks,))
    claimed = connection.execute(SQL.claimed_tasks, (tasks,)).fetchone()[0]
    connection.execute(SQL.lanes_later, (now,)).fetchall()
    connection.execute("commit")
    rows: list[Any] = msgspec.json.decode(claimed)
    return rows


def _bare_settle(connection: sqlite3.Connection, claimed: list[Any]) -> None:
    now = time.time_ns() // 1000
    ids = write_json([row[0] for row in claimed])
    connection.execute("begin immediate")
    running = msgspec.json.decode(connection.execute(SQL.held_by_worker, ("w", ids)).fetchone()[0])
    connection.execute(SQL.finish_succeeded, (write_json([(row[1], now, now) for row in running]),))
    connection.execute(SQL.delete_running, (ids,))
    tasks = write_json([row[1] for row in running])
    connection.execute(SQL.free_keys, (tasks,))
    connection.execute(SQL.take_edges, (tasks,)).fetchall()
    connection.execute("commit")


def run(report: Report) -> None:
    batch = str(round(in_process("bench.draining", "duetime")["batch"]))
    figures = interleave(
        {
            "duetime": lambda: in_process("bench.draining", "duetime")["rate"],
            "huey": lambda: in_process("bench.draining", "huey")["rate"],
            "bare": lambda: in_process("bench.draining", "bare", batch)["rate"],
        }
    )
    ours = figures["duetime"]
    name = "drain of no-op async tasks, one process"
    report.add(name, f"{median(ours):,.0f}/s", f"Huey {median(figures['huey']):,.0f}/s", median_ratio(ours, figures["huey"]), 5)
    beside = f"bare statements, batches of {batch}: {median(figures['bare']):,.0f}/s"
    report.add(name, f"{median(ours):,.0f}/s", beside, median_ratio(ours, figures["bare"]), 0.5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        match sys.argv[1:]:
            case ["duetime"]:
                answer(**asyncio.run(duetime(folder)))
            case ["huey"]:
                answer(**huey(folder))
            case ["bare", size]:
                answer(**bare(folder, int(size)))
