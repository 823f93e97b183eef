"""What comes from outside may be anything: broken, wrong, hostile, endless or slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime import App
from duetime.api.shared import Limits
from tests.api.conftest import Client, new_app, served
from tests.servers.waiting import PATIENCE

JSON = {"Content-Type": "application/json"}
HOSTILE = (
    "'; drop table task; --",
    '" or ""="',
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "../../etc/passwd",
    "%s%n%x",
    "日本語 ☃ \N{PILE OF POO} e\N{COMBINING ACUTE ACCENT}",
)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"nonsense", 400),
        (b'{"handler": "greet"', 400),
        (b'{"handler": "\xff"}', 400),
        (b'{"handler": "\\ud800"}', 400),
        (b'{"handler": "anything", "payload": {"value": ' + b"[" * 100_000, 400),
        (b"\xef\xbb\xbf{}", 400),
        (b"null", 422),
        (b"[]", 422),
        (b"7", 422),
    ],
)
async def test_a_body_that_is_no_task_is_refused(http: Client, body: bytes, status: int) -> None:
    await http.problem("POST", "/v1/tasks", data=body, headers=JSON, status=status)
    answer = await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}}, status=201)
    assert answer.json["state"] == "pending"


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"handler": 7}, "/handler"),
        ({"handler": ""}, "/handler"),
        ({"handler": "x" * 201}, "/handler"),
        ({"handler": "a\u0000b"}, None),
        ({"payload": []}, "/payload"),
        ({"payload": {"name": 7}}, "/payload/name"),
        ({"payload": {"name": "x", "times": {"a": 1}}}, "/payload/times"),
        ({"payload": {"name": "x", "self": 1}}, "/payload/self"),
        ({"priority": 10}, "/priority"),
        ({"priority": "high"}, "/priority"),
        ({"priorty": 3}, "/priorty"),
        ({"delay": -1}, "/delay"),
        ({"delay": 2.6e11}, "/delay"),
        ({"due_at": "tomorrow"}, "/due_at"),
        ({"due_at": "2031-01-01T00:00:00"}, "/due_at"),
        ({"due_at": "9999-12-31T23:59:59.9Z"}, "/due_at"),
        ({"key": "a\nb"}, "/key"),
        ({"key": " "}, "/key"),
        ({"collection": "\u0000"}, "/collection"),
        ({"if_exists": "maybe"}, "/if_exists"),
        ({"timeout": 0}, "/timeout"),
        ({"retry": {"tries": 0}}, "/retry/tries"),
        ({"retry": {"trys": 1}}, "/retry/trys"),
        ({"expires": -1}, "/expires"),
        ({"meta": {"a": 1}}, "/meta"),
        ({"meta": {"a": "x" * 9_000}}, "/meta"),
        ({"delay": 1, "due_at": "2031-01-01T00:00:00Z"}, "/delay"),
    ],
)
async def test_a_field_that_does_not_fit_is_pointed_at(http: Client, fields: dict[str, Any], pointer: str | None) -> None:
    problem = await http.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}, **fields}, status=422)
    if pointer is not None:
        assert [fault.get("pointer") for fault in problem["errors"]] == [pointer]
    assert (await http("GET", "/v1/tasks")).json["items"] == []


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("state=done", "state"),
        ("due_after=yesterday", "due_after"),
        ("due_after=5", "due_after"),
        ("due_after=2031-01-01T00:00:00", "due_after"),
        ("retrying=perhaps", "retrying"),
        ("handler=", "handler"),
        ("handlr=x", "handlr"),
        ("handler=a&handler=b", "handler"),
        ("handler=a&handler=a", "handler"),
        ("error=%00", "error"),
        ("cursor=", "cursor"),
    ],
)
async def test_a_parameter_that_does_not_fit_is_named(http: Client, query: str, parameter: str) -> None:
    problem = await http.problem("GET", f"/v1/tasks?{query}", status=422)
    assert [fault["parameter"] for fault in problem["errors"]] == [parameter]


@pytest.mark.parametrize("query", ["", "?"])
async def test_a_parameter_that_is_missing_is_named(http: Client, query: str) -> None:
    problem = await http.problem("DELETE", f"/v1/gates{query}", status=422)
    assert [fault["parameter"] for fault in problem["errors"]] == ["handler"]


async def test_a_cursor_of_somebody_elses_making_is_refused(http: Client) -> None:
    for cursor in ("x", "W10", "WyJ4Il0", "____", "%C3%A9"):
        await http.problem("GET", f"/v1/tasks?cursor={cursor}", status=422)
    await http.problem("GET", "/v1/tasks?handler=%ff", status=400)


async def test_hostile_texts_are_data_in_every_field(http: Client) -> None:
    await hostile_texts_are_data(http)


async def test_hostile_texts_are_data_on_postgres_too(postgres_url: str) -> None:
    async with served(new_app(postgres_url)) as http:
        await hostile_texts_are_data(http)


async def hostile_texts_are_data(http: Client) -> None:
    for text in HOSTILE:
        task = await http.submit(
            "anything", payload={"value": {text: [text, "\0"]}}, key=text, collection=text, delay=60, meta={text: text + "\0"}
        )
        assert task["payload"] == {"value": {text: [text, "\0"]}}
        assert (task["key"], task["collection"], task["meta"]) == (text, text, {text: text + "\0"})
        found = (await http("GET", "/v1/tasks", key=text, collection=text)).json["items"]
        assert found == [task]
        for name in ("handler", "schedule", "error"):
            filters: dict[str, Any] = {name: text}
            assert (await http("GET", "/v1/tasks", **filters)).json["items"] == []
        gate = (await http("PUT", "/v1/gates/anything", {"action": "pause", "note": text}, collection=text)).json["gate"]
        assert (gate["collection"], gate["note"]) == (text, text)
        await http.problem("POST", "/v1/tasks", {"handler": text}, status=404)
        answer = await http("POST", "/v1/tasks/cancel", {"handler": "anything", "key": text})
        assert answer.json["answers"] == {"cancelled": 1}
        assert answer.headers["x-content-type-options"] == "nosniff"
    await http.problem("PUT", "/v1/gates/anything", {"action": "pause", "note": "\0"}, status=422)


async def test_numbers_beyond_every_machine_word_are_kept_or_refused(http: Client) -> None:
    big = 10**40
    assert (await http.submit("anything", payload={"value": big}))["payload"] == {"value": big}
    await http.problem("POST", "/v1/tasks", data=b'{"handler": "anything", "payload": {"value": 1e999}}', headers=JSON, status=422)
    await http.problem("POST", "/v1/tasks", data=b'{"handler": "anything", "payload": {"value": NaN}}', headers=JSON, status=400)


async def test_a_payload_over_the_limit_is_refused(http: Client) -> None:
    problem = await http.problem("POST", "/v1/tasks", {"handler": "anything", "payload": {"value": "x" * 1_000_001}}, status=413)
    assert problem["type"] == "urn:duetime:problem:payload-too-large"
    assert problem["errors"][0]["pointer"] == "/payload"


async def test_a_body_over_the_limit_is_refused_before_it_has_arrived(app: App) -> None:
    async with served(app, limits=Limits(body=1_000, batch=2_000)) as http:
        await http.problem("POST", "/v1/tasks", {"handler": "anything", "payload": {"value": "x" * 1_000}}, status=413)
        await http("POST", "/v1/tasks/batch", [{"handler": "anything", "payload": {"value": "x" * 1_000}}])
        await http.problem("POST", "/v1/tasks/batch", [{"handler": "anything", "payload": {"value": "x" * 2_000}}], status=413)
        reader, writer = await connected(http)
        writer.write(b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):  # without a length and without an end
            writer.write(b"64\r\n" + b" " * 100 + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data"])
async def test_another_content_type_is_refused(http: Client, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {"Content-Type": ""}
    for path in ("/v1/tasks", "/v1/tasks/batch", "/v1/tasks/cancel"):
        await http.problem("POST", path, data=b'{"handler": "greet"}', headers=headers, status=415)
    await http(
        "POST", "/v1/tasks", data=b'{"handler": "anything"}', headers={"Content-Type": "application/json; charset=utf-8"}, status=201
    )


@pytest.mark.parametrize("path", ["/v1", "/v1/task", "/v1/tasks/", "//v1/tasks", "/v1/tasks//why", "/v2/tasks", "/v1/gates/", "/%ff"])
async def test_an_unknown_address_is_not_found(http: Client, path: str) -> None:
    reader, writer = await connected(http)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert b"no-such-route" in await reader.read()
    writer.close()


async def test_an_address_that_is_not_text_is_refused(http: Client) -> None:
    reader, writer = await connected(http)
    writer.write(b"GET /v1/gates/%ff HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_an_unknown_method_is_told_which_there_are(http: Client) -> None:
    for path, allowed in (("/v1/tasks", "GET, HEAD, POST"), ("/v1/tasks/batch", "POST"), ("/v1/gates/greet", "DELETE, GET, HEAD, PUT")):
        answer = await http("OPTIONS", path, status=405)
        assert answer.headers["allow"] == allowed
        assert answer.json["type"] == "urn:duetime:problem:method-not-allowed"
    assert (await http("HEAD", "/v1/tasks")).data == b""


async def test_pages_of_other_sites_cannot_use_the_server(http: Client) -> None:
    task = await http.submit(delay=60)
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}, {"Host": "evil.example:8420"}):
        await http.problem("POST", f"/v1/tasks/{task['id']}/cancel", status=403, headers=headers)
    own = http.url.removeprefix("http://")
    await http("GET", "/v1/tasks", headers={"Origin": http.url, "Host": own})
    await http("GET", "/v1/tasks", headers={"Host": "localhost:1"})
    await http("GET", "/v1/tasks", headers={"Host": "[::1]:8420"})


# ---- on the wire ----


async def connected(http: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = http.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def test_what_is_not_http_is_refused(http: Client) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET / HTTP/1.1\r\nbroken header\r\n\r\n"):
        reader, writer = await connected(http)
        writer.write(nonsense)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    await http("GET", "/readyz")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /readyz HT",
        b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_a_request_that_does_not_arrive_is_ended(app: App, begun: bytes) -> None:
    async with served(app, arrive_within=0.3) as http:
        reader, writer = await connected(http)
        writer.write(begun)
        whole = await reader.read()
        assert whole.startswith(b"HTTP/1.1 408 ")
        assert b"request-timeout" in whole
        writer.close()
        await http("GET", "/readyz")


async def test_a_head_without_end_is_refused(http: Client) -> None:
    reader, writer = await connected(http)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    for number in range(2_000):
        writer.write(f"X-Header-{number}: {'x' * 100}\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_a_caller_that_goes_away_while_waiting_leaves_nothing_behind(http: Client) -> None:
    task = await http.submit(delay=60)
    _, writer = await connected(http)
    writer.write(f"GET /v1/tasks/{task['id']}?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    state = http.server.server_state
    await asyncio.wait_for(_until(lambda: len(state.tasks) == 1), PATIENCE)
    writer.close()
    await asyncio.wait_for(_until(lambda: not state.tasks), PATIENCE)


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110  # bounded by whoever waits
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_an_instant_that_utc_has_no_year_for_is_refused_everywhere(http: Client, when: str) -> None:
    task = {"handler": "greet", "payload": {"name": "x"}}
    stored = (await http("POST", "/v1/tasks", {**task, "delay": 3600}, status=201)).json["id"]
    for method, path, body in (
        ("POST", "/v1/tasks", {**task, "due_at": when}),
        ("PATCH", f"/v1/tasks/{stored}", {"due_at": when}),
        ("POST", "/v1/tasks/edit", {"handler": "greet", "set": {"due_at": when}}),
        ("PUT", "/v1/schedules/odd", {"handler": "greet", "payload": {"name": "x"}, "every": 60, "start": when}),
        ("PUT", "/v1/schedules/odd", {"handler": "greet", "payload": {"name": "x"}, "every": 60, "end": when}),
        ("POST", "/v1/rules/preview", {"every": 60, "after": when}),
    ):
        assert "9999" in (await http.problem(method, path, body, status=422))["detail"], path
    [item] = (await http("POST", "/v1/tasks/batch", [{**task, "due_at": when}])).json["items"]
    assert item["problem"]["status"] == 422
    assert len((await http("GET", "/v1/tasks")).json["items"]) == 1
    assert (await http("GET", "/v1/schedules")).json["items"] == []
