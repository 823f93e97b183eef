"""Claims among many collections, beside the same claims among ten: a tenant more must not make the others wait.

Each case is one process that claims from a store with the same number of due tasks, and as many in the future, spread over its
collections. Beside the time of a claim stands the CPU time of the process and of the server, which a busy machine does not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg

from bench.costs.cpu import family_microseconds
from bench.rounds import ROUNDS, Report, answer, in_process, interleave, median, median_ratio
from duetime.clock import SECOND
from duetime.ids import new_id
from duetime.model.task import NewTask
from duetime.store.open import store_from_url
from duetime.store.values import Declaration, NewWorker

FEW, MANY = 10, 10_000
DUE, CLAIMS, SIZE = 20_000, 24, 500
GOAL = 1.2


def _task(collection: int, due_at: int | None) -> NewTask[object]:
    return NewTask(id=new_id(), handler="noop", payload=b"{}", collection=f"c{collection:05}", due_at=due_at, submitted_by="bench")


def server_of(url: str) -> int | None:
    """Return the process that all connections of a PostgreSQL server come from."""
    if not url.startswith("postgres"):
        return None
    with psycopg.connect(url.partition("?")[0]) as connection:
        (pid,) = connection.execute("select pg_backend_pid()").fetchone() or (0,)
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def measure(url: str, collections: int, *, fair: bool = False) -> dict[str, float]:
    store = store_from_url(url)
    await store.open()
    await store.declare([Declaration(name="noop", fair=fair)])
    later = int(time.time() * SECOND) + 3_600 * SECOND
    for due_at in (later, None):
        tasks = [_task(number % collections, due_at) for number in range(DUE)]
        for first in range(0, DUE, 5_000):
            await store.add(tasks[first : first + 5_000])
    await store.register(NewWorker(id="bench", host="here", pid=os.getpid(), slots={"noop": SIZE}, lease=600.0))
    server = server_of(url)
    waits = []
    cpu = 0.0
    for number in range(CLAIMS):
        before = time.process_time() * 1e6 + (family_microseconds(server) if server else 0.0)
        began = time.perf_counter()
        claim = await store.claim("bench", number + 1, {"noop": SIZE}, SIZE)
        waits.append(time.perf_counter() - began)
        cpu += time.process_time() * 1e6 + (family_microseconds(server) if server else 0.0) - before if number >= 4 else 0.0
        assert len(claim.tasks) == SIZE
    await store.close()
    return {"wait": median(waits[4:]) * 1e3, "cpu": cpu / (CLAIMS - 4) / 1e3}


def compare(report: Report, new_store: Callable[[str], str], *, rounds: int = ROUNDS) -> None:
    """Measure with few and with many collections in each round, each in a new store."""
    found: dict[int, list[dict[str, float]]] = {FEW: [], MANY: []}

    def case(collections: int) -> float:
        found[collections].append(in_process("bench.lanes", new_store("lanes"), str(collections)))
        return found[collections][-1]["wait"]

    interleave({f"{collections:,} collections": partial(case, collections) for collections in found}, rounds)
    for name, what in (("cpu", "CPU time"), ("wait", "time")):
        many, few = ([figures[name] for figures in found[collections]] for collections in (MANY, FEW))
        beside = f"{FEW} collections {median(few):.2f} ms"
        figure = f"{what} of a claim of {SIZE} among {DUE:,} due in {MANY:,} collections"
        report.add(figure, f"{median(many):.2f} ms", beside, median_ratio(many, few), GOAL, at_most=True)


def run(report: Report) -> None:
    """Take the figures on SQLite."""
    with contextlib.ExitStack() as folders:
        compare(report, lambda name: f"sqlite:///{folders.enter_context(tempfile.TemporaryDirectory(prefix=name))}/bench.db")


if __name__ == "__main__":
    answer(**asyncio.run(measure(sys.argv[1], int(sys.argv[2]))))
