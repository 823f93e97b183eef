"""The HTTP API beside a bare handler of the same framework that does one INSERT per request, and beside `submit_many`.

One server process each, on PostgreSQL; 32 connections that each send the next request when the last was answered, from a process of
their own that speaks HTTP over raw sockets, so that the load costs as little as possible and the same for both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.postgres.contestant import DUETIME
from bench.postgres.server import Server, fsync_milliseconds, running_server
from bench.rounds import ROOT, ROUNDS, Report, answer, console, import_path, in_process, interleave, median, median_ratio

CONNECTIONS = 32
# The bare handler's connections to the database: its best of 4, 8, 10, 16 and 32 in three rounds on two cores. With 32 it did
# 4, 19 and 19% less, which would have flattered us.
POOL = 16
SECONDS = 4.0
BATCHES, BATCH = 10, 10_000
BODY = json.dumps({"handler": "noop", "payload": {"reference": 1.5}}).encode()
PATIENCE = 60.0


# ---- the two servers ----


def serve_duetime(url: str) -> None:
    """Serve the API with the handler's code, as `duetime server APP` does."""
    from duetime import App
    from duetime.api.server import Server as ApiServer
    from duetime.api.server import loop_factory

    app = App(url)

    @app.task
    async def noop(reference: float) -> None: ...

    async def serve() -> None:
        await ApiServer(app, port=0).run_until_stopped(lambda server: print(server.url, flush=True))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


def serve_bare(url: str) -> None:
    """Serve what people write themselves: check the body, one INSERT in its own commit, answer with the id."""
    import asyncpg
    import msgspec
    import uvicorn
    import uvloop
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from duetime.api.server import listen, url_of

    class Body(msgspec.Struct):
        handler: str
        payload: dict[str, object]

    decode = msgspec.json.Decoder(Body).decode
    insert = "insert into bare (handler, payload) values ($1, $2) returning id, due_at"

    async def serve() -> None:
        pool = await asyncpg.create_pool(url, min_size=POOL, max_size=POOL)

        async def submit(request: Request) -> Response:
            body = decode(await request.body())
            row = await pool.fetchrow(insert, body.handler, msgspec.json.encode(body.payload).decode())
            document = {"id": row["id"], "handler": body.handler, "payload": body.payload, "due_at": row["due_at"], "state": "pending"}
            location = {"location": f"/v1/tasks/{row['id']}"}
            return Response(msgspec.json.encode(document), 201, location, media_type="application/json")

        listener = await listen("127.0.0.1", 0)
        application = Starlette(routes=[Route("/v1/tasks", submit, methods=["POST"])])
        config = uvicorn.Config(application, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
        print(url_of(listener), flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])

    uvloop.run(serve())


BARE_TABLE = (
    "create table bare (id bigint generated always as identity primary key, handler text, payload text, due_at timestamptz default now())"
)


# ---- the load ----


async def _connection(host: str, port: int, request: bytes, until: float, waits: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        while (began := time.perf_counter()) < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith((b"HTTP/1.1 201", b"HTTP/1.1 200")):
                raise RuntimeError(f"answered {head[:300]!r}")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            waits.append(time.perf_counter() - began)
    finally:
        writer.close()


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(host: str, port: int) -> None:
    """Send single tasks for some seconds after a short start that does not count; print rate and waits."""
    request = _request("/v1/tasks", BODY)
    for seconds in (1.0, SECONDS):
        waits: list[float] = []
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(_connection(host, port, request, began + seconds, waits))
        took = time.perf_counter() - began
    waits.sort()
    answer(rate=len(waits) / took, p50=waits[len(waits) // 2] * 1e3, p99=waits[int(len(waits) * 0.99)] * 1e3)


async def load_batches(host: str, port: int) -> None:
    request = _request("/v1/tasks/batch", b"[" + b",".join([BODY] * BATCH) + b"]")
    reader, writer = await asyncio.open_connection(host, port)
    began = time.perf_counter()
    for _ in range(BATCHES):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        counts = json.loads(body)["counts"]
        if counts != {"added": BATCH}:
            raise RuntimeError(f"answered {counts}")
    answer(rate=BATCH * BATCHES / (time.perf_counter() - began))
    writer.close()


# ---- measuring ----


@contextlib.contextmanager
def serving(kind: str, url: str, checkout: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Start one of the servers; return its host and port."""
    environment = {**os.environ, **import_path(checkout)}
    command = [sys.executable, "-m", "bench.http", kind, url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the server {kind} did not start")
        host, _, port = address.removeprefix("http://").partition(":")
        yield host, port
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


def singles(server: Server, kind: str, checkout: Path = ROOT) -> dict[str, float]:
    server.fresh("http")
    if kind == "bare":
        server.execute("http", BARE_TABLE)
    with serving(kind, server.url("http"), checkout) as (host, port):
        server.execute("http", "checkpoint")
        return in_process("bench.http", "load", host, port)


def batches(server: Server, checkout: Path = ROOT) -> float:
    server.fresh("http")
    with serving("duetime", server.url("http"), checkout) as (host, port):
        server.execute("http", "checkpoint")
        return in_process("bench.http", "batches", host, port)["rate"]


def submit_many(server: Server) -> float:
    server.fresh("http")
    DUETIME.do(server.url("http"), "setup")
    server.execute("http", "checkpoint")
    return float(DUETIME.do(server.url("http"), "submit", BATCH * BATCHES)["rate"])


def run(report: Report, *, rounds: int = ROUNDS) -> None:
    """Take the figures."""
    with running_server() as server:
        console.print(
            f"HTTP: one server process, uvicorn with httptools and uvloop, {CONNECTIONS} connections, PostgreSQL {server.version} "
            f"with fsync ({fsync_milliseconds():.2f} ms here). Beside it Starlette with one INSERT and commit per request over "
            f"{POOL} connections to the database, the number that suits it best."
        )
        waits: dict[str, list[dict[str, float]]] = {"duetime": [], "bare": []}

        def note(kind: str) -> float:
            waits[kind].append(singles(server, kind))
            return waits[kind][-1]["rate"]

        cases: dict[str, Callable[[], float]] = {kind: partial(note, kind) for kind in waits}
        rates = interleave({**cases, "batches": partial(batches, server), "submit_many": partial(submit_many, server)}, rounds)
        ours, bare = rates["duetime"], rates["bare"]
        report.add("POST /v1/tasks", f"{median(ours):,.0f}/s", f"bare handler {median(bare):,.0f}/s", median_ratio(ours, bare), 1.2)
        for share, goal in (("p50", None), ("p99", 1.0)):
            mine, others = ([wait[share] for wait in waits[kind]] for kind in ("duetime", "bare"))
            beside = f"bare handler {median(others):.2f} ms"
            report.add(f"POST /v1/tasks, {share}", f"{median(mine):.2f} ms", beside, median_ratio(mine, others), goal, at_most=True)
        many, direct = rates["batches"], rates["submit_many"]
        report.add(
            "POST /v1/tasks/batch, 10,000 a request", f"{median(many):,.0f}/s", f"submit_many {median(direct):,.0f}/s",
            median_ratio(many, direct), 0.5,
        )  # fmt: skip


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "duetime":
        serve_duetime(*arguments)
    elif verb == "bare":
        serve_bare(*arguments)
    else:
        asyncio.run({"load": load, "batches": load_batches}[verb](arguments[0], int(arguments[1])))
