"""Submitting on SQLite, against the bare inserts of the same rows with the same durability."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from functools import partial
from typing import Any

from bench.rounds import Report, answer, in_process, interleave, median, median_ratio
from duetime import App
from duetime.ids import new_id
from duetime.store.sqlite.connection import connect
from duetime.store.sqlite.statements import SQL

BULK, BATCH, SINGLE = 40_000, 1_000, 1_000


def make_app(folder: str) -> App:
    app = App(f"sqlite:///{folder}/bench.db")

    @app.task
    async def expire_order(order_id: int, note: str) -> None: ...

    return app


async def bulk(folder: str) -> float:
    app = make_app(folder)
    handler = app.handler("expire_order")
    async with app:
        began = time.perf_counter()
        for start in range(0, BULK, BATCH):
            await app.submit_many([handler.new(order_id=number, note="unpaid") for number in range(start, start + BATCH)])
        return BULK / (time.perf_counter() - began)


async def single(folder: str) -> float:
    app = make_app(folder)
    handler = app.handler("expire_order")
    async with app:
        began = time.perf_counter()
        for number in range(SINGLE):
            await handler.after(60, order_id=number, note="unpaid")
        return SINGLE / (time.perf_counter() - began)


Row = tuple[Any, ...]


def rows(first: int, count: int, lane: int) -> tuple[list[Row], list[Row]]:
    now = time.time_ns() // 1000
    payload = b'{"order_id":12345,"note":"unpaid"}'
    numbers = range(first, first + count)
    tasks: list[Row] = [(seq, new_id(), lane, None, payload, now, now, "someone@host", *(None,) * 6) for seq in numbers]
    return tasks, [(lane, now, seq, now, 0, 0, 0) for seq in numbers]


def raw(folder: str, total: int, batch: int) -> float:
    """The bare statements: rows are made beforehand, each batch is one durable transaction."""
    asyncio.run(_migrated(folder))
    with contextlib.closing(connect(f"{folder}/bench.db", synchronous="full", writes=True)) as connection:
        ((lane, _),) = connection.execute(SQL.add_lane, ("expire_order", "", 5)).fetchall()
        batches = [rows(start + 1, batch, lane) for start in range(0, total, batch)]
        began = time.perf_counter()
        for tasks, due in batches:
            connection.execute("begin immediate")
            connection.executemany(SQL.insert_task, tasks)
            connection.executemany(SQL.insert_due, due)
            connection.execute("commit")
        return total / (time.perf_counter() - began)


async def _migrated(folder: str) -> None:
    async with make_app(folder):
        pass


CASES = {
    "bulk": lambda folder: asyncio.run(bulk(folder)),
    "single": lambda folder: asyncio.run(single(folder)),
    "raw bulk": lambda folder: raw(folder, BULK, BATCH),
    "raw single": lambda folder: raw(folder, SINGLE, 1),
}


def _measure(case: str) -> float:
    return in_process("bench.submitting", case)["rate"]


def run(report: Report) -> None:
    figures = interleave({name: partial(_measure, name) for name in CASES})
    for case, goal in (("bulk", 0.5), ("single", 0.5)):
        measured, beside = figures[case], figures[f"raw {case}"]
        name = f"submit_many, {BATCH:,} a call" if case == "bulk" else "submitting one by one"
        report.add(name, f"{median(measured):,.0f}/s", f"bare inserts {median(beside):,.0f}/s", median_ratio(measured, beside), goal)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        answer(rate=CASES[sys.argv[1]](folder))
