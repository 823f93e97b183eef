"""Fixtures: a real server on a free loopback port in the test's own event loop, and a small client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from duetime import App, Context, Fatal
from duetime.api.app import Api
from duetime.api.server import Server
from duetime.api.shared import Limits
from tests.servers.waiting import PATIENCE


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: Any, data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)

    def __repr__(self) -> str:
        return f"<{self.status} {self.data[:2000]!r}>"


class Requests:
    """Sends requests, and fails if the status is not the expected one."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str | None = None) -> None:
        self.session = session
        self.token = token
        self.url = url

    def bearing(self, token: str | None) -> Requests:
        """Return the same, but with this token."""
        return Requests(self.session, self.url, token)

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        status: int | None = 200,
        data: Any = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        headers = dict(headers or {})
        if self.token is not None:
            headers.setdefault("authorization", f"Bearer {self.token}")
        if body is not None:
            data = msgspec.json.encode(body)
            headers.setdefault("content-type", "application/json")
        parameters = {name: str(value) for name, value in query.items()}
        async with self.session.request(method, f"{self.url}{path}", data=data, headers=headers, params=parameters) as response:
            answer = Answer(response.status, response.headers, await response.read())
        assert status is None or answer.status == status, f"{method} {path}: {answer}"
        assert response.headers["Duetime-Version"]
        return answer

    async def problem(self, method: str, path: str, body: Any = None, *, status: int, **more: Any) -> Any:
        """Send a request that is refused; return the problem document."""
        answer = await self(method, path, body, status=status, **more)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["type"].startswith("urn:duetime:problem:")
        assert answer.json["status"] == status
        return answer.json

    async def submit(self, handler: str = "greet", status: int = 201, **fields: Any) -> Any:
        body = {"handler": handler, "payload": {"name": "Ada"}, **fields} if handler == "greet" else {"handler": handler, **fields}
        return (await self("POST", "/v1/tasks", body, status=status)).json


class Client(Requests):
    """Sends requests to a server of ours."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, token: str | None = None) -> None:
        super().__init__(session, server.url, token)
        self.server = server

    def bearing(self, token: str | None) -> Client:
        return Client(self.session, self.server, token)


def new_app(url: str) -> App:
    app = App(url, user="anna@shop")

    @app.task
    async def greet(ctx: Context, name: str, times: int = 1) -> str:
        """Say hello."""
        print(f"hello {name}")
        return f"hello {name}"

    @app.task
    async def fail(text: str) -> None:
        raise Fatal(text)

    @app.task(priority=8)
    async def anything(ctx: Context, value: Any = None) -> Any:
        return value

    return app


@contextlib.asynccontextmanager
async def served(app: App, **options: Any) -> AsyncIterator[Client]:
    """Serve an App; `options` are of Server, and `limits` of its API."""
    api = Api(app, limits=options.pop("limits", Limits()))
    async with Server(app, api=api, port=0, **options).running() as server, aiohttp.ClientSession() as session:
        yield Client(session, server)


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until something holds; fail with its description after a long time."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await holds():  # noqa: ASYNC110  # what is looked at cannot call back
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE:g} s in vain until {what}") from None


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
def app(url: str) -> App:
    return new_app(url)


@pytest.fixture
async def http(app: App) -> AsyncIterator[Client]:
    async with served(app) as client:
        yield client


@pytest.fixture
async def foreign(app: App, url: str) -> AsyncIterator[Client]:
    """A server that knows the handlers only from what the store says of them."""
    async with app, served(App(url, user="anna@shop")) as client:
        yield client
