"""App over a server: what is sent, what is repeated and what never is, and what an App without a store cannot do."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from duetime import (
    App,
    Conflict,
    Context,
    DuplicateKeys,
    InvalidPayload,
    InvalidValue,
    NotAllowed,
    PayloadTooLarge,
    State,
    StoreUnavailable,
    Task,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
)
from duetime.api.server import Server
from duetime.api.shared import Limits
from duetime.client.gates import LocalGates
from duetime.client.insight import LocalInsight
from duetime.client.local import LocalClient
from duetime.client.output import LocalOutputs
from duetime.client.schedules.calendars import LocalCalendars
from duetime.client.schedules.local import LocalSchedules
from duetime.ids import new_id
from duetime.remote import client as remote_client
from duetime.remote import transport
from duetime.remote.calendars import RemoteCalendars
from duetime.remote.client import RemoteClient
from duetime.remote.gates import RemoteGates
from duetime.remote.output import RemoteOutputs
from duetime.remote.overview import RemoteInsight
from duetime.remote.schedules import RemoteSchedules
from tests.api.conftest import Client, new_app, served, until
from tests.servers.ports import free_port
from tests.servers.proxy import Proxy, Side
from tests.servers.waiting import PATIENCE

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def remote(app: App) -> AsyncIterator[App]:
    """An App that has the code of the handlers, and nothing but the address of a server."""
    async with served(app) as http, new_app(http.url) as remote:
        yield remote


@asynccontextmanager
async def answering(page: Page) -> AsyncIterator[str]:
    """Serve a site on loopback that answers every request by a function and is no Duetime server; yield its address."""
    site = web.Application()
    site.router.add_route("*", "/{tail:.*}", page)
    runner = web.AppRunner(site)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def stored(app: App, **filters: Any) -> list[Task[Any]]:
    return [task async for task in app.tasks(**filters)]


# ---- the same as on a store ----


@pytest.mark.covers("ATF.1", "ATF.5", "DBS.7")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_tasks_are_submitted_awaited_listed_and_cancelled_without_a_store(
    kind: str, url: str, request: pytest.FixtureRequest
) -> None:
    home = new_app(url if kind == "sqlite" else request.getfixturevalue("postgres_url"))
    async with served(home) as http, home.worker(), new_app(http.url) as app:
        greet: Any = app.handler("greet")
        assert await app.result(await greet.now(name="Ada"), timeout=PATIENCE) == "hello Ada"
        with pytest.raises(TaskFailed, match="ended failed: Fatal: no"):
            await app.result(await app.handler("fail").now(text="no"), timeout=PATIENCE)
        later = await app.submit_many([greet.options(key=key).new(name=key).after(3600) for key in "abc"])
        assert [(task.key, task.state, task.submitted_by) for task in later] == [(key, State.PENDING, "anna@shop") for key in "abc"]
        assert [await app.get(task) for task in later] == list(later)
        assert (await app.cancel_many(handler="greet", state="pending")).answers == {"cancelled": 3}
        assert {task.id for task in await stored(app, state="cancelled")} == {task.id for task in later}
        assert (await app.workers())[0].slots["greet"] > 0


async def test_a_task_of_a_batch_is_shown_as_it_is_stored(remote: App) -> None:
    anything: Any = remote.handler("anything")
    new_tasks = [
        anything.new(value=1).after(60),
        anything.options(priority=2, collection="eu", timeout=5, expires=30, meta={"a": "b"}).new().at(datetime(2100, 1, 1, tzinfo=UTC)),
        App(remote.config.url).handler("anything").new(value={"x": [1.5, None]}),
    ]
    tasks = await remote.submit_many(new_tasks)
    assert [await remote.get(task) for task in tasks] == list(tasks)
    assert [task.priority for task in tasks] == [8, 2, 8]


async def test_kept_and_replaced_tasks_of_a_batch_are_those_that_were_there(remote: App) -> None:
    greet: Any = remote.handler("greet")
    first, second = await remote.submit_many([greet.options(key=key).new(name=key).after(60) for key in "ab"])
    again = await remote.submit_many(
        [
            greet.options(key="a", if_exists="keep").new(name="x").after(90),
            greet.options(key="b", if_exists="replace").new(name="y").after(90),
        ]
    )
    assert [task.id for task in again] == [first.id, second.id]
    assert [task.payload["name"] for task in again] == ["a", "y"]


@pytest.mark.parametrize(
    ("local", "other"),
    [
        (LocalClient, RemoteClient),
        (LocalInsight, RemoteInsight),
        (LocalGates, RemoteGates),
        (LocalSchedules, RemoteSchedules),
        (LocalCalendars, RemoteCalendars),
        (LocalOutputs, RemoteOutputs),
    ],
)
def test_every_verb_has_a_counterpart_with_the_same_parameters(local: type, other: type) -> None:
    """Both forms define the same verbs; those that are made of others stand in their protocol."""
    verbs = {name: verb for name, verb in vars(local).items() if not name.startswith("_") and inspect.isfunction(verb)}
    assert verbs.keys() == {name for name, verb in vars(other).items() if not name.startswith("_") and inspect.isfunction(verb)}
    assert local.__bases__ == other.__bases__
    for name in verbs.keys() - {"on_behalf_of"}:
        assert inspect.signature(vars(other)[name]) == inspect.signature(verbs[name]), name


async def test_a_program_without_event_loop_uses_it_too(remote: App) -> None:
    def work() -> str:
        app = new_app(remote.config.url)
        task = app.sync(app.handler("greet").after(60, name="Ada"))
        return app.sync(app.cancel(task))

    assert await asyncio.to_thread(work) == "cancelled"


async def test_one_app_serves_one_event_loop_after_the_other_and_forgotten_ones_free_what_they_hold(remote: App) -> None:
    app = new_app(remote.config.url)

    def work() -> int:
        return asyncio.run(_count(app)) + asyncio.run(_count(app))

    await remote.handler("greet").after(60, name="Ada")
    assert await asyncio.to_thread(work) == 2


async def _count(app: App) -> int:
    return len(await stored(app))


# ---- many ----


async def test_many_tasks_go_in_several_batches_and_stay_in_order(remote: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_client, "MOST_ITEMS", 100)
    greet: Any = remote.handler("greet")
    taken = await greet.options(key="150").after(60, name="taken")
    with pytest.raises(DuplicateKeys, match="1 of 250 tasks were not stored") as refused:
        await remote.submit_many([greet.options(key=str(number)).new(name=str(number)).after(60) for number in range(250)])
    assert refused.value.duplicates == {150: taken.id}
    assert [number for number, task in enumerate(refused.value.tasks) if task is None] == [150]
    assert [task.key for task in refused.value.tasks if task] == [str(number) for number in range(250) if number != 150]


async def test_a_server_that_takes_smaller_bodies_gets_smaller_batches(app: App) -> None:
    async with served(app, limits=Limits(batch=3_000)) as http, new_app(http.url) as remote:
        greet: Any = remote.handler("greet")
        tasks = await remote.submit_many([greet.new(name=f"{number:050}").after(60) for number in range(100)])
        assert [int(task.payload["name"]) for task in tasks] == list(range(100))
        with pytest.raises(PayloadTooLarge, match="more than 3,000 bytes"):
            await remote.submit_many([greet.new(name="x" * 5_000)])
        assert len(await stored(remote)) == 100


async def test_an_error_says_how_many_of_many_were_stored(foreign: Client, url: str) -> None:
    async with App(foreign.url) as stranger:
        new_tasks = [stranger.handler("greet").new(name="x").after(60), stranger.handler("anything").new(value=1).after(60)]
        await stranger.submit_many(new_tasks)
        async with App(url) as other:

            @other.task(name="greet")
            async def changed(number: int) -> None: ...

            await other.open()
        await App(foreign.url).handler("greet").now(number=1)  # so the server learns what greet takes by now; this App does not
        with pytest.raises(InvalidPayload, match="1 of 2 tasks were refused, 1 stored; the first: greet: number is missing") as refused:
            await stranger.submit_many(new_tasks)
        assert refused.value.field == "number"


# ---- cut connections, servers that go and come ----


@asynccontextmanager
async def through_proxy(app: App) -> AsyncIterator[tuple[App, Proxy]]:
    async with served(app) as http:
        with Proxy(int(http.url.rpartition(":")[2])) as proxy:
            async with new_app(f"http://127.0.0.1:{proxy.port}") as remote:
                yield remote, proxy


async def test_a_submit_whose_answer_is_lost_is_sent_again_and_stored_once(app: App) -> None:
    async with through_proxy(app) as (remote, proxy):
        await remote.stats()
        lost = proxy.cut_after(1, Side.SERVER)
        task = await remote.handler("greet").after(60, name="Ada")
        assert lost.is_set()
        assert [each.id for each in await stored(app)] == [task.id]


async def test_a_batch_whose_answer_is_lost_is_not_sent_again(app: App) -> None:
    async with through_proxy(app) as (remote, proxy):
        greet: Any = remote.handler("greet")
        await remote.submit_many([greet.new(name="first").after(60)])
        lost = proxy.cut_after(1, Side.SERVER)
        with pytest.raises(StoreUnavailable, match="may or may not have been carried out"):
            await remote.submit_many([greet.new(name="second").after(60)])
        assert lost.is_set()
        assert sorted(task.payload["name"] for task in await stored(app)) == ["first", "second"]


async def test_a_wait_outlasts_cut_connections(app: App) -> None:
    async with through_proxy(app) as (remote, proxy):
        task = await remote.handler("greet").now(name="Ada")
        waiting = asyncio.create_task(remote.result(task, timeout=PATIENCE))
        for _ in range(3):
            before = proxy.accepted

            async def connected_anew(before: int = before) -> bool:
                return proxy.live > 0 and proxy.accepted >= before

            await until(connected_anew, "the wait has a connection")
            proxy.cut()
            await until(_more_than(proxy, before), "the wait has connected anew")
        async with app.worker():
            assert await waiting == "hello Ada"


def _more_than(proxy: Proxy, before: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return proxy.accepted > before

    return holds


async def test_a_wait_and_a_submit_outlast_a_server_that_is_started_anew(app: App) -> None:
    port = free_port()
    async with app, AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(Server(app, port=port).running())
        remote = await stack.enter_async_context(new_app(f"http://127.0.0.1:{port}"))
        greet: Any = remote.handler("greet")
        waiting = asyncio.create_task(remote.result(await greet.now(name="Ada"), timeout=PATIENCE))
        await remote.stats()
        await first.aclose()
        submitting = asyncio.create_task(greet.now(name="Eva"))
        cancelling = asyncio.create_task(remote.cancel(await app.handler("greet").after(60, name="x")))
        await asyncio.sleep(0)
        assert not submitting.done()
        await stack.enter_async_context(Server(app, port=port).running())
        second = await submitting
        assert await cancelling == "cancelled"  # it never reached the first one
        await stack.enter_async_context(app.worker())
        assert await waiting == "hello Ada"
        assert await remote.result(second, timeout=PATIENCE) == "hello Eva"


async def test_a_server_that_is_not_there_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PATIENCE", 0.1)
    async with new_app(f"http://127.0.0.1:{free_port()}") as app:
        with pytest.raises(StoreUnavailable, match=r"the server at http://127\.0\.0\.1:\d+ cannot be reached: .*; is it running\?"):
            await app.stats()
        with pytest.raises(StoreUnavailable):
            await app.handler("greet").now(name="Ada")


async def test_a_server_that_does_not_speak_tls_is_told_at_once(remote: App) -> None:
    async with App(remote.config.url.replace("http://", "https://")) as app:
        with pytest.raises(StoreUnavailable, match=r"there is no encrypted connection to https://.*; does it speak http:// only"):
            await app.stats()


async def test_requests_that_may_be_repeated_are_when_something_on_the_way_is_out_of_order() -> None:
    seen: list[str] = []

    async def page(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        if len(seen) < 4:
            return web.Response(status=[502, 503, 504][len(seen) - 1], text="<h1>Bad Gateway</h1>")
        return web.json_response({"items": []})

    async with answering(page) as url, App(url) as app:
        assert await app.gates.list() == []
        assert seen == ["GET"] * 4
        del seen[:]
        with pytest.raises(StoreUnavailable, match=r"POST /v1/tasks/.*/retry was answered 502"):
            await app.retry(new_id())
        assert seen == ["POST"]


# ---- output ----


async def test_output_is_read_followed_across_cuts_and_searched(app: App) -> None:
    async with through_proxy(app) as (remote, proxy):

        @app.task
        async def talk(ctx: Context) -> None:
            for number in range(3):
                print(f"line {number}")
                await said[number].wait()

        said = [asyncio.Event() for _ in range(3)]
        async with app.worker():
            task = await remote.handler("talk").now()
            heard, ended = "", None
            async with asyncio.timeout(PATIENCE):
                async for event in remote.output.follow(task):
                    heard += event.text
                    lines = heard.count("\n")
                    if event.kind == "output" and lines:
                        proxy.cut()
                        said[lines - 1].set()
                    ended = event
        assert heard == "line 0\nline 1\nline 2\n"
        assert ended is not None
        assert (ended.kind, ended.state) == ("end", State.SUCCEEDED)
        assert [(each.attempt, each.text) for each in await remote.output.read(task)] == [(1, heard)]
        assert await remote.output.read(task, attempt=7) == []

        async def found() -> bool:
            return [hit.task for hit in (await remote.output.search('"line 1"', handler="talk")).items] == [task.id]

        await until(found, "the output can be searched")
        with pytest.raises(TaskNotFound):
            await anext(aiter(remote.output.follow("01a1e112-c0d3-7403-88d7-6b1eec5cb647")))


# ---- tokens ----


@pytest.fixture
async def guarded(app: App) -> AsyncIterator[str]:
    async with app:
        await app.tokens.create("first", scopes=["admin"])
        async with served(app) as http:
            yield http.url


async def test_a_token_is_sent_and_names_who_submitted(app: App, guarded: str) -> None:
    token = (await app.tokens.create("shop", scopes=["submit"])).token
    async with App(guarded, token=token) as remote:
        assert (await remote.handler("greet").after(60, name="Ada")).submitted_by == "shop"
        [task] = await remote.submit_many([remote.handler("greet").new(name="Eva")])
        assert task.submitted_by == "shop"
        with pytest.raises(NotAllowed, match="operate"):
            await remote.cancel(task)
        assert token not in repr(remote) + repr(remote.config) + repr(remote.client) + repr(vars(remote))
    with pytest.raises(NotAllowed) as refused:
        await App(guarded, token=token[:-1] + ("1" if token.endswith("0") else "0")).stats()
    assert token[:-1] not in str(refused.value)


async def test_a_missing_token_is_told_with_where_to_give_it(guarded: str) -> None:
    async with App(guarded) as remote:
        with pytest.raises(NotAllowed, match=r"give one as token=… or in DUETIME_TOKEN"):
            await remote.stats()


async def test_a_token_for_some_handlers_is_refused_for_others(app: App, guarded: str) -> None:
    token = (await app.tokens.create("shop", scopes=["operate"], handlers=["greet"])).token
    async with App(guarded, token=token) as remote:
        with pytest.raises(NotAllowed):
            await remote.handler("anything").now()
        with pytest.raises(UnknownHandler, match="that may be used here"):
            await remote.submit_many([remote.handler("greet").new(name="x"), remote.handler("anything").new()])
        with pytest.raises(NotAllowed):
            await stored(remote)
        assert await stored(remote, handler="greet") == []


async def test_a_token_that_comes_too_often_waits_as_it_is_told_or_gives_up(app: App, guarded: str) -> None:
    patient = (await app.tokens.create("patient", scopes=["read"], rate=5)).token
    async with App(guarded, token=patient) as remote:
        await asyncio.gather(*(remote.gates.list() for _ in range(12)))  # the burst is 10
    slow = (await app.tokens.create("slow", scopes=["read"], rate=0.01)).token
    async with App(guarded, token=slow) as remote:
        await remote.gates.list()
        with pytest.raises(NotAllowed, match=r"may make 0\.01 requests a second here; come again in"):
            await remote.gates.list()


async def test_a_redirect_is_not_followed_with_the_token() -> None:
    elsewhere: list[web.Request] = []

    async def listen(request: web.Request) -> web.StreamResponse:
        elsewhere.append(request)
        return web.json_response({"items": []})

    async with answering(listen) as other:

        async def lead_away(request: web.Request) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(f"{other}/v1/gates")

        async with answering(lead_away) as url, App(url, token="dt_secret") as app:
            with pytest.raises(InvalidValue, match=f"leads to {other}/v1/gates"):
                await app.gates.list()
    assert not elsewhere


def test_a_token_that_travels_in_the_clear_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "duetime"):
        for url in ("http://example.com", "http://example.com/", "https://example.com", "http://localhost:1", "http://[::1]:1"):
            App(url, token="dt_secret")
        App("http://other.example.com")
    assert [record.getMessage() for record in caplog.records] == [
        "the token for http://example.com travels unencrypted, and whoever reads it on its way can use it; use https://"
    ]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://anna:hush@example.com", "must not hold a user or password"),
        ("https://hush@example.com/x", "https://example.com and give the token"),
        ("https://example.com?token=x", "takes no options"),
        ("https://example.com#x", "takes no options"),
        ("https://", "names no host"),
        ("https://example.com:port", "cannot be read"),
    ],
)
def test_wrong_addresses_are_refused_without_showing_secrets(url: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said) as refused:
        App(url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "  ", "two words", "tökén", "line\nbreak"])
def test_wrong_tokens_are_refused_without_showing_them(token: str) -> None:
    with pytest.raises(InvalidValue, match="token must be a token as `duetime tokens create` prints it") as refused:
        App("https://example.com", token=token)
    assert not token.strip() or token not in str(refused.value)


# ---- others than a Duetime server ----


async def test_what_is_no_duetime_server_is_told() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="<h1>Not Found</h1>")

    async with answering(page) as url, App(url) as app:
        with pytest.raises(InvalidValue, match="answered 404, but not by a Duetime server; check the URL"):
            await app.stats()


async def test_what_a_newer_server_adds_is_left_out_and_what_it_changes_is_told() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/gates":
            return web.json_response({"items": [], "colour": "green"})
        return web.json_response({"items": 7}, headers={"Duetime-Version": "9.9"})

    async with answering(page) as url, App(f"{url}/", token="dt_x") as app:
        assert await app.gates.list() == []
        with pytest.raises(Exception, match=r"\(version 9\.9\) is not what version .* understands"):
            await app.workers()


async def test_a_server_below_a_path_is_reached_and_names_are_written_whole() -> None:
    seen: list[str] = []

    async def page(request: web.Request) -> web.StreamResponse:
        seen.append(f"{request.method} {request.raw_path}")
        return web.Response(status=204)

    async with answering(page) as url, App(f"{url}/jobs") as app:
        for name in ("shop/ü?", "..", "100%"):
            assert await app.gates.open(name, collection="a&b")
    assert seen == [f"DELETE /jobs/v1/gates/{name}?collection=a%26b" for name in ("shop%2F%C3%BC%3F", "%2E%2E", "100%25")]


async def test_now_is_the_time_of_the_server_where_the_clocks_differ() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []}, headers={"Date": "Tue, 01 Jan 2030 00:00:00 GMT"})

    async with answering(page) as url, App(url) as app:
        await app.gates.list()
        told = datetime.fromtimestamp(app.client.now() / 1e6, UTC)
        assert timedelta() <= told - datetime(2030, 1, 1, tzinfo=UTC) < timedelta(minutes=1)


# ---- what needs a store ----


async def test_what_needs_a_store_says_so(remote: App) -> None:
    said = r"needs a store, and http://127\.0\.0\.1:\d+ is a server; run it where the store is reached"
    greet: Any = remote.handler("greet")
    with pytest.raises(InvalidValue, match=f"a worker {said}"):
        async with remote.worker():
            pass
    with pytest.raises(InvalidValue, match=f"connection=.* {said}"):
        await greet.options(connection=object()).now(name="x")
    with pytest.raises(InvalidValue, match=f"connection=.* {said}"):
        await remote.submit_many([greet.new(name="x")], connection=object())
    with pytest.raises(InvalidValue, match=said):
        await remote.around(datetime(2100, 1, 1, tzinfo=UTC), key="k", offsets=[-60]).submit(greet.new(name="x"))
    with pytest.raises(Conflict, match="is pending and cannot be retried"):  # what does not need one works on
        await remote.retry(await greet.after(60, name="x"))


def test_the_package_that_is_missing_is_named() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; from duetime import App; App('https://example.com')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "a server is reached with the package aiohttp: pip install 'duetime[http]'" in ended.stderr


async def test_a_failure_is_located_over_http_as_in_the_store(app: App, remote: App) -> None:
    async with app.worker():
        task = await app.handler("fail").now(text="no")
        await app.client.wait(task, timeout=PATIENCE)
    [attempt] = await app.attempts(task)
    assert attempt.error is not None
    assert attempt.error.location.endswith(" in fail")
    assert (await remote.get(task.id)).error == attempt.error
    assert [each.error for each in await remote.attempts(task.id)] == [attempt.error]
    assert [output.error for output in await remote.output.read(task.id)] == [attempt.error]
    assert attempt.error in [event.error async for event in remote.output.follow(task.id)]
    [reason] = await remote.why(task.id)
    assert f"at {attempt.error.location})" in reason.text
