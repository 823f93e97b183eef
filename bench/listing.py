"""A page of `GET /v1/tasks` in a store of a million tasks (ten million with --full), beside the same page in one of ten thousand.

Both stores have the same shape, so both pages have the same number of tasks: half of them wait, half have ended, one in ten of those as
failed; one in ten is of another handler than the rest. Rows are multiplied inside the store from real ones, because submitting and
running ten million tasks would take hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from bench.http import serving
from bench.postgres.server import Server, running_server
from bench.rounds import ROUNDS, Report, console, median, median_ratio
from duetime import App, Fatal, TaskFailed

SMALL, LARGE, FULL = 10_000, 1_000_000, 10_000_000
REQUESTS = 40  # of one kind in a round; their median counts
CHUNK = 500_000
AT_MOST = 1.5
HANDLERS = ("common", "other")
STATES = ("waiting", "succeeded", "failed")
PER_SECOND = 100_000  # tasks that were submitted in a second, by their ids


def share(handler: str, state: str) -> str:
    """Return the condition on the number of a row that makes it one of this handler and state."""
    # by twenties, so that both handlers have tasks in all states
    of_handler = f"(n / 20) % 10 {'=' if handler == 'other' else '<>'} 3"
    of_state = {"waiting": "n % 2 = 0", "succeeded": "n % 2 = 1 and n % 20 <> 1", "failed": "n % 20 = 1"}
    return f"({of_handler}) and ({of_state[state]})"


async def seed(url: str) -> None:
    """Store one real task of each handler in each state, named by its key."""
    app = App(url)

    async def perform(state: str) -> None:
        if state == "failed":
            raise Fatal("the bank is away")

    handlers = [app.task(perform, name=name) for name in HANDLERS]
    async with app.worker():
        for handler in handlers:
            for state in STATES:
                task = await handler.options(key=state).after(365 * 86_400 if state == "waiting" else 0, state=state)
                if state != "waiting":
                    with contextlib.suppress(TaskFailed):
                        await app.result(task, timeout=60)


# ---- PostgreSQL ----

COLUMNS = (
    "select column_name from information_schema.columns where table_schema = 'duetime' and table_name = '{}' order by ordinal_position"
)
POSTGRES = {
    "id": "(lpad(to_hex({first} + n / 100), 12, '0') || '7' || left(md5(n::text), 3) || '8' || right(md5(n::text), 15))::uuid",
    "key": "'key-' || n",
    "submitted_at": "({first} + n / 100) * 1000",
    "due_at": "one.due_at + n * 1000",
    "pos": "one.pos + n * 1000",
    "finished_at": "one.finished_at - ({number} - n) * (3600000000 / {number})",
}
WHOLE = "n % 4 = 2"  # of those that wait every second one has no row of its own, as short tasks without a key have none
POSTGRES_DUE = {
    "payload": f"case when {WHOLE} then '{{}}' end",
    "submitted_at": f"case when {WHOLE} then ({{first}} + n / 100) * 1000 end",
    "submitted_by": f"case when {WHOLE} then 'bench' end",
}


def fill_postgres(server: Server, number: int, now: float) -> str:
    database = f"listing_{number}"
    server.fresh(database)
    url = server.url(database)
    asyncio.run(seed(url))
    first = str(int(now * 1e3) - 60_000 - number // 100)
    with server.connect(database) as connection:
        connection.execute("set synchronous_commit = off")
        for table, condition in (("task", "key = '{}'"), ("due", "true"), ("history", "key = '{}'")):
            names = [name for (name,) in connection.execute(COLUMNS.format(table).encode()).fetchall()]
            columns = ", ".join(names)
            values = POSTGRES | (POSTGRES_DUE if table == "due" else {})
            texts = ", ".join(values.get(name, f"one.{name}") for name in names).replace("{first}", first).replace("{number}", str(number))
            for handler in HANDLERS:
                for state in STATES[1:] if table == "history" else STATES[:1]:
                    lane = f"lane = (select id from duetime.lane where handler = '{handler}')"
                    one = f"(select * from duetime.{table} where {lane} and {condition.format(state)} limit 1) as one"
                    for start in range(0, number, CHUNK):
                        which = share(handler, state) + (f" and not ({WHOLE})" if table == "task" else "")
                        rows = f"generate_series({start}::bigint, {min(start + CHUNK, number) - 1}) as n where {which}"
                        connection.execute(f"insert into duetime.{table} ({columns}) select {texts} from {one}, {rows}".encode())
        for table, state in (("due", "'live'"), ("history", "state")):
            connection.execute(
                f"insert into duetime.tally (lane, state, n) select lane, {state}, count(*) from duetime.{table} group by 1, 2"
            )
    server.execute(database, "vacuum analyze", "checkpoint")
    return url


# ---- SQLite ----

SQLITE = {
    "seq": "1000 + n",
    "id": "printf('%08x-%04x-7%03x-8000-%012x', ({first} + n / 100) >> 16, ({first} + n / 100) & 65535, n % 4096, n)",
    "key": "'key-' || n",
    "submitted_at": "({first} + n / 100) * 1000",
    "due_at": "one.due_at + n * 1000",
    "pos": "one.pos + n * 1000",
    "task": "1000 + n",
    "finished_at": "one.finished_at - ({number} - n) * (3600000000 / {number})",
}


def fill_sqlite(folder: Path, number: int, now: float) -> str:
    path = folder / f"listing-{number}.db"
    url = f"sqlite:///{path}"
    asyncio.run(seed(url))
    first = str(int(now * 1e3) - 60_000 - number // 100)
    values = {name: text.replace("{first}", first).replace("{number}", str(number)) for name, text in SQLITE.items()}
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        connection.execute("pragma cache_size = -200000")
        for table in ("task", "due"):
            names = [row[1] for row in connection.execute(f"pragma table_info(duetime_{table})")]
            columns = ", ".join(names)
            texts = ", ".join(values.get(name, f"one.{name}") for name in names)
            for start in range(0, number, CHUNK):
                stop = min(start + CHUNK, number)
                series = f"with recursive series (n) as (select {start} union all select n + 1 from series where n < {stop - 1})"
                for handler in HANDLERS:
                    for state in STATES if table == "task" else STATES[:1]:
                        which = f"t.key = '{state}' and l.handler = '{handler}'"
                        task = f"select t.seq from duetime_task as t join duetime_lane as l on l.id = t.lane where {which}"
                        one = f"(select * from duetime_{table} where {'seq' if table == 'task' else 'task'} = ({task})) as one"
                        rows = f"{one}, series where {share(handler, state)}"
                        connection.execute(f"insert into duetime_{table} ({columns}) {series} select {texts} from {rows}")
        # the real ones were submitted last and are numbered first, as if the clock had been set back
        connection.execute(f"update duetime_task set submitted_at = {first} * 1000 where seq < 1000")
        connection.execute("pragma wal_checkpoint(truncate)")
    return url


# ---- measuring ----


def filters(number: int, now: float) -> dict[str, tuple[dict[str, str], float]]:
    """Return the queries with their goals, by what the report calls them. `now` is when the store was filled."""

    def instant(seconds: float) -> str:
        return datetime.fromtimestamp(now - seconds, UTC).isoformat().replace("+00:00", "Z")

    middle = 60 + number / PER_SECOND / 2
    return {
        "no filter": ({}, AT_MOST),
        "state=pending": ({"state": "pending"}, AT_MOST),
        "state=succeeded": ({"state": "succeeded"}, AT_MOST),
        "state=failed": ({"state": "failed"}, AT_MOST),
        "handler": ({"handler": "other"}, AT_MOST),
        "state=pending, handler": ({"state": "pending", "handler": "other"}, AT_MOST),
        "state=failed, handler": ({"state": "failed", "handler": "other"}, AT_MOST),
        "key": ({"key": f"key-{number // 2}"}, AT_MOST),
        "state=pending, handler, key": ({"state": "pending", "handler": "common", "key": f"key-{number // 2}"}, AT_MOST),
        "state=succeeded, finished_before": ({"state": "succeeded", "finished_before": instant(1_800)}, AT_MOST),
        "submitted_after": ({"submitted_after": instant(middle)}, AT_MOST),
        "submitted_before": ({"submitted_before": instant(middle)}, AT_MOST),
        "submitted_after, submitted_before": ({"submitted_after": instant(middle + 0.01), "submitted_before": instant(middle)}, AT_MOST),
        "state=pending, submitted_before": ({"state": "pending", "submitted_before": instant(middle)}, AT_MOST),
    }


def timed(connection: http.client.HTTPConnection, query: dict[str, str]) -> float:
    """Return the milliseconds of one page."""
    path = f"/v1/tasks?{urlencode({'limit': '50', **query})}"
    began = time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    took = time.perf_counter() - began
    if response.status != 200 or b'"handler"' not in body:
        raise RuntimeError(f"{path} was answered {response.status}: {body[:300]!r}")
    return took * 1e3


def alternating(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return each case's median of a round. Requests alternate: a page is so short that even neighbours in time differ by half."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        waits: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(REQUESTS):
            for name, case in cases.items():
                waits[name].append(case())
        for name, some in waits.items():
            figures[name].append(median(some))
    return figures


@contextlib.contextmanager
def connected(url: str) -> Iterator[http.client.HTTPConnection]:
    with serving("duetime", url) as (host, port):
        connection = http.client.HTTPConnection(host, int(port), timeout=300)
        with contextlib.closing(connection):
            yield connection


def measure(report: Report, store: str, fill: Callable[[int, float], str], large: int, rounds: int) -> None:
    urls, filled_at = {}, {}
    for number in (SMALL, large):
        began, filled_at[number] = time.perf_counter(), time.time()
        with console.status(f"filling {store} with {number:,} tasks"):
            urls[number] = fill(number, filled_at[number])
        console.print(f"{store}: {number:,} tasks in {time.perf_counter() - began:.0f} s")
    with connected(urls[SMALL]) as small, connected(urls[large]) as big:
        queries = {number: filters(number, filled_at[number]) for number in urls}
        for name, (query, goal) in queries[SMALL].items():
            cases: dict[str, Callable[[], float]] = {
                "small": partial(timed, small, query),
                "large": partial(timed, big, queries[large][name][0]),
            }
            figures = alternating(cases, rounds)
            beside = f"{SMALL:,}: {median(figures['small']):.2f} ms"
            ratio = median_ratio(figures["large"], figures["small"])
            report.add(f"{store}, {large:,}: {name}", f"{median(figures['large']):.2f} ms", beside, ratio, goal, at_most=True)


def run(report: Report, *, full: bool = False, rounds: int = ROUNDS) -> None:
    """Take the figures."""
    large = FULL if full else LARGE
    console.print(f"A page of 50 tasks over HTTP, with {large:,} tasks in the store beside {SMALL:,}.")
    with tempfile.TemporaryDirectory(prefix="duetime-bench-") as folder:
        measure(report, "SQLite", partial(fill_sqlite, Path(folder)), large, rounds)
    with running_server() as server:
        measure(report, "PostgreSQL", partial(fill_postgres, server), large, rounds)
