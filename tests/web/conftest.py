"""Fixtures: the dashboard on a real server, with people who are signed in, and a real browser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from playwright.async_api import Browser, Page, async_playwright

from duetime import App
from duetime.api.app import Api
from duetime.api.server import Server
from duetime.web.web import Web
from tests.browsers import chromium
from tools.showcase import fill, showcase

SAME = {"Sec-Fetch-Site": "same-origin"}


class Reader:
    """A person at the dashboard without a browser: keeps cookies, and sends forms as a browser would."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def __call__(
        self, path: str, *, status: int = 200, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> str:
        """Return the text at an address below /ui, or the answer to a form sent to it."""
        return (await self.whole(path, status=status, form=form, headers=headers))[1]

    async def whole(
        self, path: str, *, status: int = 200, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[Any, str]:
        method = "GET" if form is None else "POST"
        sent = dict(headers if headers is not None else ({} if form is None else SAME))
        data = None
        if form is not None:
            data = urlencode(form)
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        async with self.session.request(method, f"{self.url}/ui{path}", data=data, headers=sent, allow_redirects=False) as response:
            text = await response.text()
            assert response.status == status, f"{method} {path}: {response.status} {text[:2_000]}"
            return response.headers, text

    async def sign_in(self, token: str) -> None:
        await self.whole("/sign-in", form={"token": token}, status=303)


@contextlib.asynccontextmanager
async def dashboard(app: App, **options: Any) -> AsyncIterator[Reader]:
    """Serve the dashboard of an App."""
    async with (
        Server(app, api=Api(app, extension=Web()), port=0, **options).running() as server,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        yield Reader(session, server.url)


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
def app(url: str) -> App:
    return showcase(url)


@pytest.fixture
async def ui(app: App) -> AsyncIterator[Reader]:
    """The dashboard of a server without tokens."""
    async with dashboard(app) as reader:
        yield reader


@pytest.fixture
async def signed(app: App) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that signs somebody in with the given scopes, each a reader of its own, on a server with tokens."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        await app.tokens.create("keeper", scopes=["admin"])
        first = await stack.enter_async_context(dashboard(app))

        async def sign(name: str, *, scopes: Iterable[str] = ("operate",), handlers: Iterable[str] = ()) -> Reader:
            made = await app.tokens.create(name, scopes=scopes, handlers=handlers)
            session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)))
            reader = Reader(session, first.url)
            await reader.sign_in(made.token)
            return reader

        yield sign


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium())
        yield browser
        await browser.close()


class Watched:
    """What a page has complained about."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))


def ids_in(page: str) -> list[str]:
    """Return the ids of the tasks that a page links to."""
    return list(dict.fromkeys(re.findall(r'href="[^"]*/ui/tasks/([0-9a-f-]{36})"', page)))


__all__ = ["SAME", "Reader", "Watched", "dashboard", "fill", "ids_in", "showcase"]
