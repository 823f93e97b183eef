"""Texts that mean something to SQL, HTML or a shell are only data, in every field of every route: taken from the table of routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp

from duetime import App
from duetime.api.app import ROUTES
from duetime.api.openapi import describe
from tests.api.conftest import Client, new_app, served

TEXTS = (
    "'; drop table duetime_task; drop schema duetime cascade; --",
    "\" or ''=' </script><img src=x onerror=alert(1)> ${jndi:ldap://x} %s%n \\'; ../../etc/passwd \N{SNOWMAN}",
)
IN_HEADERS = "'; drop table duetime_task; -- \"<script>alert(1)</script>"
DEEPEST = 4
PATIENCE = aiohttp.ClientTimeout(total=20)


class Sent(NamedTuple):
    """A request with a hostile text somewhere."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None


class Document:
    """The description of the API, read as an attacker would read it."""

    def __init__(self) -> None:
        self._document = describe(ROUTES)

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            found: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def plain(self, schema: dict[str, Any], depth: int = DEEPEST) -> Any:
        """Return a value that roughly fits a schema. If it does not, it is refused, which is an answer too."""
        schema = self.resolved(schema)
        for known in ("const", "default"):
            if known in schema:
                return schema[known]
        if schema.get("enum"):
            return schema["enum"][0]
        if schema.get("anyOf"):
            return self.plain(schema["anyOf"][0], depth - 1)
        match schema.get("type"):
            case "object" if depth > 0:
                fields = schema.get("properties", {})
                return {name: self.plain(fields[name], depth - 1) for name in schema.get("required", ())}
            case "array" if depth > 0:
                return [self.plain(schema.get("items") or {}, depth - 1)]
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case "string":
                return "greet"
        return None

    def hostile(self, schema: dict[str, Any], text: str, depth: int = DEEPEST) -> Iterator[Any]:
        """Yield values that contain the text once each: as a string, as the name of a field, or as a key of a mapping."""
        schema = self.resolved(schema)
        if depth == 0:
            return
        for variant in schema.get("anyOf", ()):
            yield from self.hostile(variant, text, depth)
        match schema.get("type"):
            case "object":
                whole = self.plain(schema, depth)
                for name, field in schema.get("properties", {}).items():
                    for value in self.hostile(field, text, depth - 1):
                        yield {**whole, name: value}
                yield {**whole, text: text}
            case "array":
                for value in self.hostile(schema.get("items") or {}, text, depth - 1):
                    yield [value]
            case _:
                yield text


def requests(document: Document, task: str) -> Iterator[tuple[Sent, dict[str, Any]]]:
    """Yield every request that the description allows, each with a hostile text at one point."""
    for method, path, operation in document.operations():
        parameters = [document.resolved(each) for each in operation.get("parameters", ())]
        paths = {each["name"]: task if each["name"] == "id" else "greet" for each in parameters if each["in"] == "path"}
        queries = {each["name"]: "0" for each in parameters if each["in"] == "query" and each["name"] == "wait"}
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        body = None if schema is None else _brief(document.plain(schema))
        sent = Sent(method, _filled(path, paths), queries, {}, body)
        for text in TEXTS:
            for name in paths:
                yield sent._replace(path=_filled(path, {**paths, name: text})), operation
            for each in parameters:
                if each["in"] == "query":
                    yield sent._replace(query={**queries, each["name"]: text}), operation
            yield sent._replace(query={**queries, text: text}), operation
            if schema is not None:
                for value in document.hostile(schema, text):
                    yield sent._replace(body=_brief(value)), operation
        for each in parameters:
            if each["in"] == "header":
                yield sent._replace(headers={each["name"]: IN_HEADERS}), operation


def _filled(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path


def _brief(body: Any) -> Any:
    """Replace waits by none, so that the request is answered at once."""
    return {**body, "wait": 0} if isinstance(body, dict) and "wait" in body else body


async def every_field_is_data(app: App) -> int:
    count = 0
    async with served(app) as http:
        task = await http.submit(delay=86_400, key="canary")
        for sent, operation in requests(Document(), task["id"]):
            await ask(http, sent, operation)
            count += 1
        kept = (await http("GET", f"/v1/tasks/{task['id']}")).json
        assert (kept["payload"], kept["key"]) == ({"name": "Ada"}, "canary")
        await http.submit(delay=60)
        assert (await http("GET", "/readyz")).json["status"] == "ok"
    return count


async def ask(http: Client, sent: Sent, operation: dict[str, Any]) -> None:
    async with http.session.request(
        sent.method, f"{http.url}{sent.path}", params=sent.query, headers=sent.headers, json=sent.body, timeout=PATIENCE
    ) as response:
        kind = response.content_type
        text = "" if kind == "text/event-stream" else await response.text()
    assert response.status < 500, f"{sent} was answered {response.status}: {text[:2000]}"
    assert str(response.status) in operation["responses"], f"{sent} was answered {response.status}, which is not described: {text[:500]}"
    assert response.headers.get("x-content-type-options") == "nosniff" or not text, sent
    if kind == "text/html":
        assert "onerror" not in text, sent
        assert "default-src 'none'" in response.headers["content-security-policy"]
    else:
        assert not text or kind in ("application/json", "application/problem+json", "text/plain", "application/x-ndjson"), f"{sent}: {kind}"


async def test_every_field_of_every_route_is_data(app: App) -> None:
    assert await every_field_is_data(app) > 200


async def test_every_field_of_every_route_is_data_on_postgres(postgres_url: str) -> None:
    assert await every_field_is_data(new_app(postgres_url)) > 200
