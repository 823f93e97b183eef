"""The life of a server: starting, losing its store and getting it back, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest

from duetime import App
from duetime.api.server import Server
from duetime.client.batching import Batching
from duetime.errors import CannotListen, InvalidValue, StoreUnavailable
from duetime.model.task import NewTask
from duetime.store.requests import Requested
from duetime.store.values import Added
from tests.api.conftest import Client, new_app, served, until
from tests.servers.fixtures import NewPostgres


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
async def test_it_does_not_listen_where_others_could_reach_it(app: App, host: str) -> None:
    with pytest.raises(InvalidValue, match=r"no tokens.*duetime tokens create.*listen on 127\.0\.0\.1"):
        async with Server(app, host=host, port=0).running():
            pass


async def test_a_port_that_is_taken_is_said_to_be(http: Client, app: App) -> None:
    port = int(http.url.rpartition(":")[2])
    with pytest.raises(CannotListen, match="another server listens there"):
        async with Server(app, port=port).running():
            pass


async def test_it_listens_on_ipv6_too(app: App) -> None:
    async with Server(app, host="::1", port=0).running() as server, aiohttp.ClientSession() as session:
        assert server.url.startswith("http://[::1]:")
        async with session.get(f"{server.url}/v1/tasks") as response:
            assert response.status == 200


async def test_a_stop_finishes_requests_and_lets_nobody_wait(app: App) -> None:
    async with aiohttp.ClientSession() as session:
        async with Server(app, port=0).running() as server:
            http = Client(session, server)
            task = await http.submit(delay=60)
            waiting = asyncio.create_task(http("GET", f"/v1/tasks/{task['id']}", wait=60))
            state = server.server_state

            async def under_way() -> bool:
                return len(state.tasks) == 1

            await until(under_way, "the request is under way")
        assert (await waiting).json == task
        with pytest.raises(aiohttp.ClientConnectionError):
            await http("GET", "/readyz")


@pytest.mark.slow
async def test_a_store_that_restarts_loses_nothing_that_was_acknowledged(new_postgres: NewPostgres) -> None:
    postgres = new_postgres()
    app = new_app(postgres.url())
    async with served(app) as http:
        await http.submit(delay=3600)
        acknowledged: list[str] = []
        refused: list[int] = []
        going_on = True

        async def submit() -> None:
            while going_on:
                answer = await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}, "delay": 3600}, status=None)
                if answer.status == 201:
                    acknowledged.append(answer.json["id"])
                else:
                    assert answer.status == 503
                    assert answer.headers["retry-after"] == "1"
                    assert answer.json["type"] == "urn:duetime:problem:store-unavailable"
                    refused.append(answer.status)
                    await asyncio.sleep(0.01)

        async def acknowledged_more() -> bool:
            return len(acknowledged) > before

        async def not_ready() -> bool:
            return (await http("GET", "/readyz", status=None)).status == 503

        async def is_refused() -> bool:
            return bool(refused)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(submit())
            before = 0
            await until(acknowledged_more, "some tasks are stored")
            await asyncio.to_thread(postgres.kill)
            await until(not_ready, "the server is not ready")
            assert (await http("GET", "/livez")).json["status"] == "ok"
            await http.problem("GET", "/v1/stats", status=503)
            await until(is_refused, "a task is refused")
            await asyncio.to_thread(postgres.start)
            before = len(acknowledged)
            await until(acknowledged_more, "tasks are stored again")
            going_on = False
        await http("GET", "/readyz", status=None)
        stored = {record.id for record in await app.client.records(acknowledged) if record is not None}
        assert stored == set(acknowledged)


async def test_the_server_tries_again_for_a_while_before_it_refuses() -> None:
    tries = 0
    new_task: NewTask[object] = NewTask(id="x", handler="greet", payload=b"{}")

    async def add(new_tasks: object) -> list[Added]:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("gone")

    gathering = Batching(add, patience=0.2)
    with pytest.raises(StoreUnavailable, match="gone"):
        await gathering.add(new_task)
    assert tries > 1
    assert gathering.stuck_for(1e9) == 0


async def test_requests_beyond_what_can_wait_are_refused_at_once() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    new_task: NewTask[object] = NewTask(id="x", handler="greet", payload=b"{}")

    async def add(new_tasks: object) -> list[Added]:
        begun.set()
        await go.wait()
        raise InvalidValue("refused")

    gathering = Batching(add, at_most=1, most_waiting=3)
    waiting = [asyncio.create_task(gathering.add(new_task))]
    await begun.wait()
    waiting += [asyncio.create_task(gathering.add(new_task)) for _ in range(3)]

    async def full() -> bool:
        return len(gathering) == 3

    await until(full, "one is being stored and three wait")
    with pytest.raises(StoreUnavailable, match="3 requests wait"):
        await gathering.add(new_task)
    go.set()
    assert [str(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == ["refused"] * 4


async def test_what_the_store_refuses_of_one_is_not_refused_to_others() -> None:
    new_tasks: list[NewTask[object]] = [NewTask(id=str(number), handler="greet", payload=b"{}") for number in range(20)]
    answers: dict[str, Added] = {}

    async def add(some: Sequence[Requested]) -> list[Added]:
        if any(task.id in ("3", "17") for task, _ in some):
            raise InvalidValue("not this one")
        return [answers.setdefault(task.id, object()) for task, _ in some]  # type: ignore[arg-type]  # only passed on

    gathering = Batching(add)
    done = await asyncio.gather(*(gathering.add(task) for task in new_tasks), return_exceptions=True)
    assert [index for index, answer in enumerate(done) if isinstance(answer, InvalidValue)] == [3, 17]
    assert [answer for index, answer in enumerate(done) if index not in (3, 17)] == [
        answers[task.id] for task in new_tasks if task.id in answers
    ]
