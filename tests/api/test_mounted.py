"""`duetime.asgi`: the API inside of another application, below a prefix, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import duetime
from duetime import App, InvalidValue
from duetime.api.app import divided
from duetime.api.server import listen, url_of
from duetime.model.access import Scope
from tests.api.conftest import Requests, new_app, until
from tests.servers.waiting import PATIENCE


class Outer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(application: Any, prefix: str = "", token: str | None = None) -> AsyncIterator[Requests]:
    """Serve any ASGI application with uvicorn; the client's addresses begin with the prefix."""
    listener = await listen("127.0.0.1", 0)
    server = Outer(uvicorn.Config(application, log_config=None, access_log=False, ws="none"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: _value(server.started or running.done()), "the outer server has started")
        async with aiohttp.ClientSession() as session:
            yield Requests(session, f"{url_of(listener)}{prefix}", token)
    finally:
        server.should_exit = True
        await running
        listener.close()


async def _value(value: bool) -> bool:
    return value


async def hello(request: Request) -> Response:
    return PlainTextResponse("the outer application")


def outer(api: Any, **options: Any) -> Starlette:
    return Starlette(routes=[Route("/", hello), Mount("/shop", routes=[Mount("/duetime", app=api)])], **options)


async def token_of(app: App, *scopes: Scope) -> str:
    """Make a token in a process of its own, as it were: the App itself is left closed."""
    other = App(app.config.url)
    async with other:
        return (await other.tokens.create("shop", scopes=scopes or list(Scope))).token


def running_services() -> set[str]:
    """Name the asyncio tasks of this event loop that run code of ours."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return {coroutine.__qualname__ for coroutine in coroutines if "/src/duetime/" in coroutine.cr_code.co_filename}


async def test_addresses_in_answers_begin_with_the_prefix(app: App) -> None:
    token = await token_of(app)
    async with serving(outer(duetime.asgi(app)), "/shop/duetime", token) as http:
        answer = await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}}, status=201)
        assert answer.headers["location"] == f"/shop/duetime/v1/tasks/{answer.json['id']}"
        calendar = await http("PUT", "/v1/calendars/a%2Fb", {"dates": ["2030-01-01"]}, status=201)
        assert calendar.headers["location"] == "/shop/duetime/v1/calendars/a%2Fb"
        schedule = {"handler": "greet", "payload": {"name": "Ada"}, "cron": "0 7 * * *"}
        stored = await http("PUT", "/v1/schedules/morning", schedule, status=201)
        assert stored.headers["location"] == "/shop/duetime/v1/schedules/morning"
        triggered = await http("POST", "/v1/schedules/morning/trigger", status=201)
        for made in (answer, calendar, stored, triggered):
            async with http.session.get(
                http.url.removesuffix("/shop/duetime") + made.headers["location"], headers={"authorization": f"Bearer {token}"}
            ) as found:
                assert found.status == 200
        assert (await http("GET", "/openapi.json")).json["servers"] == [{"url": "/shop/duetime"}]
        assert b"duetime_tasks{" in (await http("GET", "/metrics")).data
        page = (await http("GET", "/")).data.decode()
        assert '<a href="/shop/duetime/openapi.json">' in page
        assert f"{http.url}/v1/tasks" in page
        problem = await http.problem("GET", "/v1/nothing", status=404)
        assert "/shop/duetime/openapi.json lists" in problem["detail"]
        async with http.session.get(http.url.removesuffix("/shop/duetime")) as root:
            assert await root.text() == "the outer application"
    await app.close()


async def test_a_client_and_the_command_line_reach_it_by_its_prefix(app: App) -> None:
    token = await token_of(app)
    async with app.worker(), serving(outer(duetime.asgi(app)), "/shop/duetime") as http, App(http.url, token=token) as remote:
        task = await remote.handler("greet").now(name="Ada")
        assert await remote.result(task, timeout=PATIENCE) == "hello Ada"


async def test_it_needs_a_token_also_on_loopback_and_in_a_store_without_any(app: App) -> None:
    async with serving(outer(duetime.asgi(app)), "/shop/duetime") as http:
        problem = await http.problem("GET", "/v1/tasks", status=401)
        assert "duetime tokens create" in problem["detail"]
        token = await token_of(app, Scope.READ)
        await until(lambda: _is(http.bearing(token)("GET", "/v1/tasks", status=None), 200), "the new token is known")
        await http.bearing(token).problem("POST", "/v1/tasks", {"handler": "greet"}, status=403)
        for open_to_all in ("/", "/livez", "/readyz", "/openapi.json"):
            await http("GET", open_to_all)
    await app.close()


async def _is(sent: Any, status: int) -> bool:
    return bool((await sent).status == status)


async def test_it_starts_with_its_first_request_and_stops_when_the_app_is_closed(app: App) -> None:
    token = await token_of(app)
    async with serving(outer(duetime.asgi(app)), "/shop/duetime", token) as http:
        assert not running_services()
        await http("GET", "/v1/tasks")
        assert running_services()
        await app.close()
        assert not running_services()
    async with App(app.config.url) as other:
        [info] = await other.tokens.list()
        assert info.last_used_at is not None


async def test_a_request_after_that_starts_it_again(app: App) -> None:
    token = await token_of(app)
    async with serving(outer(duetime.asgi(app)), "/shop/duetime", token) as http:
        for _ in range(2):
            await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}}, status=201)
            assert running_services()
            await app.close()
            assert not running_services()


async def test_closing_ends_requests_that_wait(app: App) -> None:
    token = await token_of(app)
    api = duetime.asgi(app)
    async with serving(outer(api), "/shop/duetime", token) as http:
        task = await http.submit()
        waiting = asyncio.create_task(http("GET", f"/v1/tasks/{task['id']}", wait=60))
        waiters = api._current().api.shared.waiters
        await until(lambda: _value(bool(waiters._waiting)), "the request waits")
        await app.close()
        assert (await waiting).json["state"] == "pending"


async def test_within_the_lifespan_of_the_outer_application_it_starts_at_once_and_is_closed_with_it(app: App) -> None:
    token = await token_of(app)
    api = duetime.asgi(app)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with api, app.worker():
            yield

    async with serving(outer(api, lifespan=lifespan), "/shop/duetime", token) as http:
        assert running_services()
        answer = await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}}, status=201, wait=30)
        assert answer.json["result"] == "hello Ada"
    assert not running_services()


async def test_served_alone_it_follows_the_lifespan_of_its_server(app: App) -> None:
    token = await token_of(app)
    async with serving(duetime.asgi(app), token=token) as http:
        assert running_services()
        task = await http.submit()
        assert (await http("GET", f"/v1/tasks/{task['id']}")).json["state"] == "pending"
    assert not running_services()


@pytest.mark.slow
async def test_schedules_fire_where_only_it_runs(app: App) -> None:
    token = await token_of(app)
    async with serving(outer(duetime.asgi(app)), "/shop/duetime", token) as http:
        await http("PUT", "/v1/schedules/often", {"handler": "greet", "payload": {"name": "Ada"}, "every": 1}, status=201)

        async def fired() -> bool:
            return bool((await http("GET", "/v1/tasks", handler="greet")).json["items"])

        await until(fired, "the schedule has fired")
    await app.close()


async def test_a_store_that_is_down_at_the_first_request_is_tried_again_at_the_next(tmp_path: Path) -> None:
    path = tmp_path / "later" / "store.db"
    path.parent.write_text("in the way")
    app = new_app(f"sqlite:///{path}")
    async with serving(outer(duetime.asgi(app)), "/shop/duetime", "dt_0123456789abcdef_" + "0" * 64) as http:
        await http.problem("GET", "/v1/tasks", status=503)
        await http.problem("GET", "/readyz", status=503)
        await http("GET", "/livez")
        path.parent.unlink()
        path.parent.mkdir()
        await until(lambda: _is(http("GET", "/readyz", status=None), 200), "it is ready")
        await http.bearing(await token_of(app))("GET", "/v1/tasks")
    await app.close()


def test_another_event_loop_starts_it_anew(app: App) -> None:
    token = asyncio.run(token_of(app))
    api = duetime.asgi(app)

    async def once() -> None:
        async with serving(outer(api), "/shop/duetime", token) as http:
            await http.submit()
            assert running_services()

    asyncio.run(once())  # ends without closing the App, as programs do that know no end
    asyncio.run(once())
    asyncio.run(app.close())


async def test_two_event_loops_at_once_are_refused_and_the_first_goes_on(app: App) -> None:
    token = await token_of(app)
    api = duetime.asgi(app)

    async def elsewhere() -> None:
        async with serving(outer(api), "/shop/duetime", token) as http:
            for path in ("/v1/tasks", "/livez"):
                async with http.session.get(f"{http.url}{path}", headers={"authorization": f"Bearer {token}"}) as answer:
                    assert answer.status == 500
        with pytest.raises(RuntimeError, match="served by another event loop already; make one App, and one API, for each"):
            await api({"type": "http", "method": "GET", "path": "/livez", "headers": []}, _nothing, _nothing)

    async with serving(outer(api), "/shop/duetime", token) as http:
        await http.submit()
        await asyncio.to_thread(asyncio.run, elsewhere())
        await http.submit()
    await app.close()


async def _nothing(*arguments: Any) -> Any:
    raise AssertionError("neither read nor answered")


def test_an_app_that_uses_a_server_has_no_api_of_its_own() -> None:
    with pytest.raises(InvalidValue, match="needs a store"):
        duetime.asgi(App("http://127.0.0.1:8420"))


def test_a_size_that_cannot_be_read_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="body_limit must be a size"):
        duetime.asgi(app, body_limit="large")


async def test_a_web_socket_is_closed(app: App) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await duetime.asgi(app)({"type": "websocket", "path": "/"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("scope", "divided_into"),
    [
        ({"path": "/v1/tasks", "raw_path": b"/v1/tasks"}, ("", "/v1/tasks")),
        ({"path": "/a/v1/tasks", "raw_path": b"/a/v1/tasks", "root_path": "/a"}, ("/a", "/v1/tasks")),
        ({"path": "/a/v1/x/y", "raw_path": b"/a/v1/x%2Fy", "root_path": "/a/"}, ("/a", "/v1/x%2Fy")),
        ({"path": "/ä b/c", "raw_path": b"/%C3%A4%20b/c", "root_path": "/ä b"}, ("/%C3%A4%20b", "/c")),
        ({"path": "/a", "raw_path": b"/a", "root_path": "/a"}, ("/a", "/")),
        ({"path": "/ab/c", "raw_path": b"/ab/c", "root_path": "/a"}, ("/a", "/ab/c")),
        ({"path": "/v1/tasks", "raw_path": b"/v1/tasks", "root_path": "/cut/off"}, ("/cut/off", "/v1/tasks")),
        ({"path": "/a/v1/ä%", "root_path": "/a"}, ("/a", "/v1/%C3%A4%25")),
        ({"path": "/a/v1", "raw_path": None, "root_path": '/"><b>'}, ("/%22%3E%3Cb%3E", "/a/v1")),
    ],
)
def test_prefix_and_address_are_told_apart(scope: Any, divided_into: tuple[str, str]) -> None:
    assert divided(scope) == divided_into
