"""Output over HTTP: read, followed as it comes, resumed after a lost connection, and searched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from duetime import App, Context, RetryPolicy
from duetime.client.output import LocalOutputs
from duetime.ids import new_id
from duetime.model.access import Scope
from duetime.store.output import OutputChunk
from tests.api.conftest import Client, served, until
from tests.servers.waiting import PATIENCE

NOBODY = "01a1e114-c422-747f-88ba-d8ab7298e491"


class Event(msgspec.Struct):
    """A server-sent event."""

    id: str
    kind: str
    data: dict[str, Any]


class Talk:
    """A handler that prints what the test says."""

    def __init__(self, app: App) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        app.task(name="talk", retry=RetryPolicy(tries=2, base=0.0))(self.talk)

    async def talk(self, ctx: Context) -> None:
        while (word := await self.words.get()) is not None:
            if word == "fail":
                raise ValueError("as was asked")
            print(word)

    def say(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


@pytest.fixture
def talk(app: App) -> Talk:
    return Talk(app)


@contextlib.asynccontextmanager
async def followed(http: Client, task_id: str, after: str | None = None, **query: Any) -> AsyncIterator[AsyncIterator[Event]]:
    """Follow a task's output."""
    headers = {} if after is None else {"last-event-id": after}
    parameters = {"follow": "true", **{name: str(value) for name, value in query.items()}}
    timeout = aiohttp.ClientTimeout(total=30)
    async with http.session.get(f"{http.url}/v1/tasks/{task_id}/logs", headers=headers, params=parameters, timeout=timeout) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert response.headers["Duetime-Version"]
        yield _events(response)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text.startswith(":"):
            continue
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif fields:
            yield Event(fields["id"], fields["event"], msgspec.json.decode(fields["data"]))
            fields = {}


async def next_text(events: AsyncIterator[Event]) -> Event:
    while (event := await anext(events)).kind != "output":
        assert event.kind != "end"
    return event


# ---- reading ----


async def test_output_of_attempts_is_read_page_by_page(app: App, http: Client) -> None:
    task_id = (await http.submit(delay=60))["id"]
    await app.store.keep_output([OutputChunk(task_id, number, 0, f"attempt {number}\n", number < 5) for number in range(1, 6)])
    path = f"/v1/tasks/{task_id}/logs"
    first = (await http("GET", path, limit=3)).json
    assert [each["attempt"] for each in first["items"]] == [1, 2, 3]
    second = (await http("GET", path, limit=3, cursor=first["next"])).json
    assert second == {
        "items": [
            {"attempt": 4, "text": "attempt 4\n", "whole": True, "error": None},
            {"attempt": 5, "text": "attempt 5\n", "whole": False, "error": None},
        ],
        "next": None,
    }
    assert (await http("GET", path, attempt=2)).json["items"] == [{"attempt": 2, "text": "attempt 2\n", "whole": True, "error": None}]
    assert (await http("GET", path, attempt=9)).json == {"items": [], "next": None}
    await http.problem("GET", f"/v1/tasks/{new_id()}/logs", status=404)
    await http.problem("GET", path, status=422, attempt=0)


async def test_output_is_read_from_any_server_of_the_store(postgres_url: str) -> None:
    app = App(postgres_url, user="test")
    talk = Talk(app)
    talk.say("<script>alert(1)</script> ☃", None)
    async with served(App(postgres_url, user="other", output="off")) as http:
        async with app.worker():
            task = await app.handler("talk").now()
            await app.result(task, timeout=PATIENCE)
        items = (await http("GET", f"/v1/tasks/{task.id}/logs")).json["items"]
        assert items == [{"attempt": 1, "text": "<script>alert(1)</script> ☃\n", "whole": True, "error": None}]
        [hit] = (await http("GET", "/v1/logs", q="alert")).json["items"]
        assert (hit["task"], hit["handler"], hit["state"], hit["attempt"]) == (task.id, "talk", "succeeded", 1)


# ---- following ----


@pytest.mark.covers("XXL.9")
async def test_output_is_followed_attempt_by_attempt_until_the_task_is_final(app: App, talk: Talk, http: Client) -> None:
    async with app.worker():
        task_id = (await http.submit("talk"))["id"]
        async with followed(http, task_id) as events:
            talk.say("one")
            assert (await next_text(events)).data == {"attempt": 1, "text": "one\n"}
            talk.say("zwei ☃")
            assert (await next_text(events)).data == {"attempt": 1, "text": "zwei ☃\n"}
            talk.say("fail", "three", None)
            rest = [(event.kind, event.data) async for event in events]
    error = rest[0][1].pop("error")
    assert (error["type"], error["location"].endswith(" in talk"), "raise " in error["traceback"]) == ("ValueError", True, True)
    assert rest == [
        ("attempt", {"attempt": 1, "outcome": "failed"}),
        ("attempt", {"attempt": 2, "outcome": None}),
        ("output", {"attempt": 2, "text": "three\n"}),
        ("attempt", {"attempt": 2, "outcome": "succeeded"}),
        ("end", {"attempt": 2, "state": "succeeded"}),
    ]


async def test_a_follower_that_lost_its_connection_goes_on_behind_the_last_event(app: App, talk: Talk, http: Client) -> None:
    async with app.worker():
        task_id = (await http.submit("talk"))["id"]
        talk.say("one")
        async with followed(http, task_id) as events:
            last = await next_text(events)
        talk.say("two", None)
        texts = []
        async with followed(http, task_id, after=last.id) as events:
            texts = [event.data["text"] async for event in events if event.kind == "output"]
        assert "".join(texts) == "two\n"
        async with followed(http, task_id, attempt=1) as events:
            whole = [event.data["text"] async for event in events if event.kind == "output"]
        assert "".join(whole) == "one\ntwo\n"
    for wrong in ("x", "1-", "-1", "1-2-3", "9999999999-1", "1-²"):
        headers = {"last-event-id": wrong.encode("utf-8").decode("latin-1")}
        await http.problem("GET", f"/v1/tasks/{task_id}/logs", status=422, follow="true", headers=headers)


async def test_output_from_another_machine_is_followed_through_the_store(app: App, http: Client) -> None:
    task_id = (await http.submit(delay=60))["id"]
    worker = App(app.config.url, user="elsewhere", output="off")
    async with worker, followed(http, task_id) as events:
        await http("PATCH", f"/v1/tasks/{task_id}", {"delay": 0})
        async with app.worker():
            texts = [event.data["text"] async for event in events if event.kind == "output"]
    assert "".join(texts) == "hello Ada\n"


async def test_following_ends_when_the_task_is_cancelled_before_it_ran(http: Client) -> None:
    task_id = (await http.submit(delay=60))["id"]
    async with followed(http, task_id) as events:
        await http("POST", f"/v1/tasks/{task_id}/cancel")
        assert [(event.kind, event.data["state"]) async for event in events] == [("end", "cancelled")]


async def test_a_follower_does_not_hold_up_the_servers_stop(app: App) -> None:
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(served(app, grace=60.0))
        task_id = (await http.submit(delay=60))["id"]
        events = await stack.enter_async_context(followed(http, task_id))
        http.server.api.stop()
        assert [event async for event in events] == [], "no `end`: the client asks another server"


async def test_a_follower_that_has_gone_is_noticed(http: Client) -> None:
    task_id = (await http.submit(delay=60))["id"]
    async with followed(http, task_id):
        await until(lambda: _under_way(http, 1), "the server follows")
    await until(lambda: _under_way(http, 0), "the server has noticed")


async def _under_way(http: Client, count: int) -> bool:
    return len(http.server.server_state.tasks) == count


async def test_what_cannot_be_followed_is_refused_with_a_status(http: Client) -> None:
    await http.problem("GET", f"/v1/tasks/{NOBODY}/logs", status=404, follow="true")
    await http.problem("GET", f"/v1/tasks/{NOBODY}/logs", status=422, follow="perhaps")
    task_id = (await http.submit(delay=60))["id"]
    head = await http("HEAD", f"/v1/tasks/{task_id}/logs", follow="true")
    assert (head.headers["content-type"], head.data) == ("text/event-stream; charset=utf-8", b"")


async def test_a_silent_stream_shows_that_it_lives(http: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.api.streams.STILL_HERE", 0.1)
    task_id = (await http.submit(delay=60))["id"]
    async with http.session.get(f"{http.url}/v1/tasks/{task_id}/logs?follow=true") as response:
        while await response.content.readline() != b": still here\n":
            pass


# ---- searching ----


async def test_output_is_searched_with_filters_and_pages(app: App, http: Client) -> None:
    ids = [(await http.submit(delay=60, collection="eu" if number % 2 else None))["id"] for number in range(5)]
    other = (await http.submit("anything", delay=60))["id"]
    for number, task_id in enumerate((*ids, other)):
        await app.store.keep_output([OutputChunk(task_id, 1, 0, f"charging card {number}\n")])
    found = (await http("GET", "/v1/logs", q="card charging")).json
    assert [hit["task"] for hit in found["items"]] == [other, *reversed(ids)]
    assert found["items"][0] == {
        "task": other,
        "handler": "anything",
        "collection": None,
        "state": "pending",
        "attempt": 1,
        "passage": "charging card 5",
        "at": found["items"][0]["at"],
    }
    assert [hit["task"] for hit in (await http("GET", "/v1/logs", q="card", handler="greet", collection="eu")).json["items"]] == [
        ids[3],
        ids[1],
    ]
    visited: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = (await http("GET", "/v1/logs", q="card", limit=2, **cursor)).json
        visited += [hit["task"] for hit in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert visited == [other, *reversed(ids)]
    assert (await http("GET", "/v1/logs", q="card", before="2020-01-01T00:00:00Z")).json["items"] == []
    assert len((await http("GET", "/v1/logs", q="card", after="2020-01-01T00:00:00Z")).json["items"]) == 6
    listed = (await http("GET", "/v1/tasks", logs='"card 3"')).json["items"]
    assert [task["id"] for task in listed] == [ids[3]]
    counted = (await http("POST", "/v1/tasks/cancel", {"logs": "card", "handler": "anything", "dry_run": True})).json
    assert counted["matched"] == 1


@pytest.mark.parametrize("query", [{}, {"q": ""}, {"q": "*"}, {"q": "a", "cursor": "x"}, {"q": "a", "limit": 0}, {"q": "a", "after": "1"}])
async def test_a_search_that_makes_no_sense_is_refused(http: Client, query: dict[str, Any]) -> None:
    problem = await http.problem("GET", "/v1/logs", status=422, **query)
    assert problem["errors"][0]["parameter"] in ("q", "cursor", "limit", "after")


@pytest.mark.parametrize("words", ["' or 1=1 --", '"; drop table x', "a NEAR b", "<script>alert(1)</script>", "%_\\", "NOT *a"])
async def test_hostile_words_find_what_has_them_and_nothing_else(app: App, http: Client, words: str) -> None:
    task_id, silent = (await http.submit(delay=60))["id"], (await http.submit(delay=60))["id"]
    await app.store.keep_output([OutputChunk(task_id, 1, 0, f"they typed {words} x\n"), OutputChunk(silent, 1, 0, "nothing\n")])
    answer = await http("GET", "/v1/logs", q=words, status=None)
    if answer.status == 422:
        assert not any(letter.isalnum() for letter in words)
    else:
        assert [hit["task"] for hit in answer.json["items"]] == [task_id]


async def test_a_token_for_one_handler_reads_and_finds_only_its_output(app: App) -> None:
    async with app:
        made = await app.tokens.create("reader", scopes=[Scope.READ], handlers=["greet"])
        own = await app.handler("greet").after(60, name="Ada")
        other = await app.handler("anything").after(60)
        await app.store.keep_output([OutputChunk(task.id, 1, 0, "secret word\n") for task in (own, other)])
        async with served(app) as http:
            reader = http.bearing(made.token)
            await reader("GET", f"/v1/tasks/{own.id}/logs")
            for query in ({}, {"follow": "true"}):
                await reader.problem("GET", f"/v1/tasks/{other.id}/logs", status=404, **query)
            await reader.problem("GET", "/v1/logs", status=403, q="secret")
            await reader.problem("GET", "/v1/logs", status=403, q="secret", handler="anything")
            found = (await reader("GET", "/v1/logs", q="secret", handler="greet")).json["items"]
            assert [hit["task"] for hit in found] == [own.id]
            await http.problem("GET", "/v1/logs", status=401, q="secret")


async def test_text_from_elsewhere_is_appended_up_to_the_cap(app: App, http: Client) -> None:
    assert isinstance(app.output, LocalOutputs)
    app.output._cap = 50
    task_id = (await http.submit(delay=60))["id"]
    for text in ("one\n", "nul \0 and \udcff\n", "", "ü" * 40, "too late"):
        await app.output.keep(task_id, 1, text)
    [output] = await app.output.read(task_id)
    assert output.text.startswith("one\nnul ? and \\udcff\nüüü")
    assert output.text.endswith("the rest of the output was cut: an attempt may write 50 bytes\n")
    await asyncio.gather(*(app.output.keep(task_id, 2, f"{n}\n") for n in range(5)))
    [_, second] = await app.output.read(task_id)
    assert sorted(second.text.split()) == ["0", "1", "2", "3", "4"]
