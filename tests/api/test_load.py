"""Under load, and over a bad network: what was answered is stored, what was stored is stored once, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from duetime import App
from duetime.api.server import Server
from tests.api.conftest import Client, new_app, served, until
from tests.chaos.connections import crowd
from tests.servers.fixtures import NewPostgres
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

TASK = {"handler": "greet", "payload": {"name": "Ada"}, "delay": 3600}
SLOW_ONES = 200


class Insistent:
    """A client that sends each request under a key of its own again and again until it is answered."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self.answered: list[str] = []
        self.tries = 0
        self.going_on = True

    async def run(self) -> None:
        while self.going_on:
            self.answered.append(await self._submit())

    async def _submit(self) -> str:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        async with asyncio.timeout(PATIENCE):
            while True:
                self.tries += 1
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with self._session.post(f"{self._url}/v1/tasks", json=TASK, headers=headers) as response:
                        if response.status == 201:
                            found: str = (await response.json())["id"]
                            return found
                        assert response.status == 503, await response.text()
                        assert response.headers["retry-after"]
                await asyncio.sleep(0.01)


async def stored(app: App) -> list[str]:
    return [task.id async for task in app.tasks()]


async def more_than(some: Insistent, number: int) -> None:
    async def more() -> bool:
        return len(some.answered) > number

    await until(more, f"more than {number} requests are answered")


# ---- the store goes away ----


async def test_requests_that_are_repeated_while_the_store_restarts_are_stored_once(new_postgres: NewPostgres) -> None:
    postgres = new_postgres()
    app = new_app(postgres.url())
    async with served(app) as http, asyncio.TaskGroup() as group:
        insistent = Insistent(http.url, http.session)
        for _ in range(8):
            group.create_task(insistent.run())
        for _ in range(2):
            await more_than(insistent, len(insistent.answered) + 20)
            await asyncio.to_thread(postgres.kill)
            await asyncio.to_thread(postgres.start)
        await more_than(insistent, len(insistent.answered) + 20)
        insistent.going_on = False
    async with app:
        assert sorted(await stored(app)) == sorted(insistent.answered)


# ---- a server goes away ----


async def test_a_stop_under_load_loses_nothing_that_was_answered(app: App) -> None:
    answered: list[str] = []

    async def submit(http: Client) -> None:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            while True:
                answered.append((await http("POST", "/v1/tasks", TASK, status=201)).json["id"])

    async def enough() -> bool:
        return len(answered) > 100

    async with aiohttp.ClientSession() as session:
        async with Server(app, port=0).running() as server:
            http = Client(session, server)
            submitting = [asyncio.create_task(submit(http)) for _ in range(16)]
            await until(enough, "a hundred requests are answered")
        await asyncio.gather(*submitting)
    async with app:
        # those whose answer met a closed connection may be there as well: nobody was told
        assert set(answered) <= set(await stored(app))


async def test_a_request_that_is_arriving_when_the_server_stops_is_answered(app: App) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(app, port=0).running())
        host, _, port = server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        _, silent = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /livez HTTP/1.1\r\nHo")

        def heads() -> list[int]:
            """Return how many bytes of a head have arrived, by connection."""
            return sorted(vars(connection).get("_outside", 0) for connection in server.server_state.connections)

        async def begun() -> bool:
            return [size > 0 for size in heads()] == [False, True]

        await until(begun, "the request has begun to arrive")
        stopping = asyncio.create_task(stack.aclose())

        async def is_stopping() -> bool:
            return server.should_exit and 0 not in heads()

        await until(is_stopping, "the connection without a request is closed")
        writer.write(b"st: 127.0.0.1\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        await stopping
        for each in (writer, silent):
            each.close()


@contextlib.asynccontextmanager
async def balanced(servers: list[Server]) -> AsyncIterator[str]:
    """Run a balancer that forwards each connection to the next server that accepts it; yield its address."""
    round_robin = cycle(servers)
    writers: set[asyncio.StreamWriter] = set()

    async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for server in (next(round_robin) for _ in servers):
            host, _, port = server.url.removeprefix("http://").partition(":")
            with contextlib.suppress(OSError):
                theirs, ours = await asyncio.open_connection(host, int(port))
                writers.update((writer, ours))
                await asyncio.gather(forward(reader, ours), forward(theirs, writer))
                return
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for writer in writers:
            writer.transport.abort()


async def test_servers_behind_a_balancer_answer_as_one(postgres_url: str) -> None:
    app = new_app(postgres_url)
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Server(new_app(postgres_url), port=0).running()) for _ in range(2)]
        url = await stack.enter_async_context(balanced(servers))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)))
        async with app.worker():
            headers = {"Idempotency-Key": "order-7"}
            answers = []
            for _ in range(4):  # each comes to the other server
                async with session.post(f"{url}/v1/tasks", json={**TASK, "delay": 0}, headers=headers) as response:
                    answers.append((response.status, (await response.json())["id"], response.headers.get("Idempotency-Replayed")))
            [first, *others] = answers
            assert first == (201, first[1], None)
            assert others == [(201, first[1], "true")] * 3
            for _ in range(2):
                async with session.get(f"{url}/v1/tasks/{first[1]}?wait=30") as response:
                    assert (await response.json())["result"] == "hello Ada"


async def test_one_of_two_servers_can_be_stopped_under_load(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stopped = Server(new_app(postgres_url), port=0)
        going = await stack.enter_async_context(contextlib.AsyncExitStack())
        servers = [
            await going.enter_async_context(stopped.running()),
            await stack.enter_async_context(Server(new_app(postgres_url), port=0).running()),
        ]
        url = await stack.enter_async_context(balanced(servers))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        insistent = Insistent(url, session)
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(insistent.run())
            await more_than(insistent, 50)
            await going.aclose()
            await more_than(insistent, len(insistent.answered) + 50)
            insistent.going_on = False
    app = new_app(postgres_url)
    async with app:
        assert sorted(await stored(app)) == sorted(insistent.answered)


# ---- connections that are no good ----


async def test_hundreds_of_slow_requests_keep_nobody_else_waiting(app: App) -> None:
    async with served(app, arrive_within=2.0) as http:
        host, _, port = http.url.removeprefix("http://").partition(":")
        begun = 0

        async def dribble() -> bytes:
            nonlocal begun
            reader, writer = await asyncio.open_connection(host, int(port))
            begun += 1
            answered = asyncio.create_task(reader.read())
            for byte in b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 1_000:
                if answered.done() or writer.is_closing():
                    break
                writer.write(bytes([byte]))
                await asyncio.wait([answered], timeout=0.05)
            try:
                return await answered
            except ConnectionResetError:  # a byte that came after the end swept the answer away
                return b""
            finally:
                writer.close()

        async def all_begun() -> bool:
            return begun == SLOW_ONES

        slow = [asyncio.create_task(dribble()) for _ in range(SLOW_ONES)]
        await until(all_begun, "all slow requests have begun")
        for _ in range(20):
            await http.submit(delay=60)
        assert {answer[:12] for answer in await asyncio.gather(*slow)} - {b""} == {b"HTTP/1.1 408"}


HEAD = b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD[:30],
        HEAD + b"Content-Length: 1000\r\n\r\n" + b'{"handler": "greet", "payload": {"name": "Ada"}}',
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n30\r\n{"handler": "greet", "payload": {"name": "Ada"}}',
    ],
    ids=["in the head", "in the body", "in a chunk"],
)
@pytest.mark.parametrize("cut", ["ended", "reset"])
async def test_a_request_that_is_cut_off_stores_nothing(http: Client, sent: bytes, cut: str) -> None:
    host, _, port = http.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    await writer.drain()
    state = http.server.server_state

    async def alone() -> bool:
        return not state.connections and not state.tasks

    if cut == "ended":
        writer.close()
    else:
        writer.transport.abort()
    await until(alone, "the server has let go of the connection")
    assert (await http("GET", "/v1/tasks")).json["items"] == []


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 10\r\nContent-Length: 20\r\n",
        b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: gzip, chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nX-Header : value\r\n",
    ],
)
async def test_a_request_whose_end_can_be_read_in_two_ways_is_refused(http: Client, headers: bytes) -> None:
    host, _, port = http.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD + headers + b"\r\n" + b"0\r\n\r\nGET /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    writer.close()


async def test_requests_one_after_the_other_without_waiting_are_answered_in_order(http: Client) -> None:
    host, _, port = http.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    asked = [f"GET /v1/gates/unknown-{number} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for number in range(50)]
    writer.write(b"".join(asked[:-1]) + asked[-1].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with asyncio.timeout(PATIENCE):
        answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
    assert [f"unknown-{number}".encode() in answer for number, answer in enumerate(answers)] == [True] * 50
    writer.close()


async def test_five_hundred_connections_are_kept_and_served(tmp_path: Path) -> None:
    met: Any = await crowd(tmp_path, 480, 20, seconds=1.0)
    assert (met.opened, met.answered) == (500, 500)
    assert met.submitted > 0


@pytest.mark.covers("REQ.6")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_thousand_tasks_a_second_are_accepted_beside_many_that_are_stored(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The floor: 100 million a day are 1,158 a second. A quiet machine stores ten times as many, so the best of the batches counts."""
    url = f"sqlite:///{tmp_path}/many.db" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    app, most, batch = new_app(url), 20_000, 2_500
    rates = []
    async with served(app) as http:
        tasks = [TASK] * batch
        for _ in range(most // batch):
            began = time.monotonic()
            done = (await http("POST", "/v1/tasks/batch", tasks)).json
            rates.append(batch / (time.monotonic() - began))
            assert done["counts"] == {"added": batch}
        assert max(rates) > 100_000_000 / 86_400, f"{max(rates):,.0f} tasks a second"
        counted = (await http("GET", "/v1/tasks/count", state="pending", limit=most)).json
        assert counted == {"count": most, "more": False}
        due = await http.submit(delay=0)
        assert due["state"] == "pending"
        [first] = (await http("GET", "/v1/handlers/greet/upcoming", limit=1)).json["items"]
        assert first["id"] == due["id"], "the one that is due is found among all"
