"""Events over HTTP: pages, a stream that is resumed, filters, and tokens that see only what is of their handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from duetime import App
from duetime.model.event import TaskEvent
from duetime.remote.output import read_blocks
from tests.api.conftest import Client, served, until
from tests.servers.waiting import PATIENCE


@contextlib.asynccontextmanager
async def followed(http: Client, after: str | None = None, **query: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Follow events; the block begins when they are written."""
    headers = {} if after is None else {"last-event-id": after}
    if http.token is not None:
        headers["authorization"] = f"Bearer {http.token}"
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with http.session.get(f"{http.url}/v1/events", headers=headers, params={"follow": "true", **query}, timeout=timeout) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield _events(response)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for fields in read_blocks(response.content.iter_any()):
        if "data" in fields:
            data = msgspec.json.decode(fields["data"])
            assert (fields["id"], fields["event"]) == (data["cursor"], data["name"])
            yield data


async def streams(app: App, number: int = 1) -> None:
    async def all_here() -> bool:
        return len([each for each in await app.store.followers() if each.name.startswith("stream")]) >= number

    await until(all_here, "the stream follows")


async def test_events_are_followed_and_resumed(app: App, http: Client) -> None:
    async with followed(http, names="task.submitted,task.cancelled") as events:
        await streams(app)
        first, second = [(await http.submit(delay=60))["id"] for _ in range(2)]
        heard = [await anext(events), await anext(events)]
    assert [(each["name"], each["task"], each["handler"]) for each in heard] == [
        ("task.submitted", first, "greet"),
        ("task.submitted", second, "greet"),
    ]
    await http("POST", f"/v1/tasks/{second}/cancel")
    async with followed(http, after=heard[0]["cursor"]) as events:
        assert (await anext(events))["task"] == second
        assert (await anext(events))["name"] == "task.cancelled"


async def test_events_are_read_page_by_page(http: Client) -> None:
    empty = (await http("GET", "/v1/events")).json
    assert empty["items"] == []
    task = (await http.submit(delay=60))["id"]
    page = (await http("GET", "/v1/events", cursor=empty["next"])).json
    [event] = page["items"]
    assert (event["name"], event["task"], event["handler"], event["attempt"]) == ("task.submitted", task, "greet", 0)
    assert (await http("GET", "/v1/events", cursor=page["next"])).json["items"] == []
    assert (await http("GET", "/v1/events", names="gate.*")).json["items"] == []
    assert (await http("GET", "/v1/events", handler="gr*", task=task)).json["items"] == [event]
    assert (await http("GET", "/v1/events", handler="other")).json["items"] == []


async def test_what_is_not_understood_is_refused(http: Client) -> None:
    assert "there is no event 'task.fail'" in (await http.problem("GET", "/v1/events", status=422, names="task.fail"))["detail"]
    assert "is not a cursor" in (await http.problem("GET", "/v1/events", status=422, cursor="x"))["detail"]
    assert "is not a cursor" in (await http.problem("GET", "/v1/events", status=422, cursor="x", follow="true"))["detail"]
    await http.problem("GET", "/v1/events", status=422, handler="a*b")


async def test_a_restricted_token_sees_events_of_its_handlers_only(app: App) -> None:
    made = await app.tokens.create("mine", scopes=["submit"], handlers=["anything"])
    async with served(app) as http:
        mine = http.bearing(made.token)
        await mine("GET", "/v1/events")
        await app.handler("greet").after(60, name="Ada")
        await app.gates.pause("greet")
        task = (await mine.submit("anything", delay=60))["id"]
        items = (await mine("GET", "/v1/events")).json["items"]
        assert [(each["name"], each.get("task")) for each in items] == [("task.submitted", task)]
        assert (await mine("GET", "/v1/events", names="worker.*,gate.*")).json["items"] == []
        async with followed(mine, after=items[0]["cursor"]) as events:
            await streams(app)
            await app.handler("greet").after(60, name="Ada")
            last = (await mine.submit("anything", delay=60))["id"]
            assert (await anext(events))["task"] == last


async def test_a_remote_app_follows_events(app: App, http: Client) -> None:
    remote = App(http.url)
    async with remote, asyncio.timeout(PATIENCE):
        stream = remote.events("task.*")
        first = asyncio.ensure_future(anext(stream))
        await streams(app)
        task = (await http.submit(delay=60))["id"]
        event = await first
        assert isinstance(event, TaskEvent)
        assert (event.name, event.task, event.handler) == ("task.submitted", task, "greet")
        await stream.aclose()
