"""The OpenAPI 3.1 description, made from the table of routes and the types that the requests are checked with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import BYTES, NDJSON, Call
from duetime.wire.fields import NoQuery
from duetime.wire.problem import MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from duetime.api.route import Route

_REFERENCE = "#/components/schemas/{name}"
_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_PATH_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "id": {"type": "string", "format": "uuid", "pattern": _ID},
    "handler": {"type": "string", "minLength": 1, "maxLength": 200},
    "name": {"type": "string", "minLength": 1, "maxLength": 200},
    "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "upload": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "version": {"type": "string", "pattern": "^([1-9][0-9]{0,14}|newest)$"},
}
_TITLES = {
    200: "Done.", 201: "Stored.", 202: "It goes on.", 204: "Done; there is nothing to say.", 304: "Nothing has changed.",
    400: "The request is not well-formed.", 401: "A good token is needed.", 403: "The caller may not do this.",
    404: "There is no such thing.",
    405: "The address does not know this method.", 408: "The request did not arrive in time.", 409: "The state of things forbids it.",
    410: "The worker is not registered any more.",
    412: "It has changed meanwhile.", 413: "The request is too large.", 415: "The content type is not understood.",
    422: "Something in the request does not fit; `errors` points at it.",
    429: "The token makes more requests than it may, or more is submitted of a handler than its quota allows.",
    500: "Something went wrong in the server.",
    503: "The store cannot be reached, or the server is stopping; try again.",
}  # fmt: skip
_PROBLEM_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer."},
    429: {"Retry-After": "Seconds until the token may come again, or the quota allows it."},
    503: {"Retry-After": "Seconds to wait before trying again."},
}
_AT_ROOT = b'{"url":"/"}'
_BEARER = "bearer"
_SECURITY = "A token, as `duetime tokens create` makes it. A server on loopback whose store has no tokens asks for none."
_TAGGED = ("Task", "ScheduleView")
_SUCCESS_HEADERS: Mapping[str, str] = {"Duetime-Version": "The version of the server."}


async def document(call: Call) -> Response:
    call.query(NoQuery)
    description = await call.shared.description()
    if call.prefix:
        description = description.replace(_AT_ROOT, msgspec.json.encode({"url": call.prefix}), 1)
    return answer(None, encoded=description)


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """Describe all routes."""
    kinds = [Problem]
    for route in routes:
        kinds += [kind for kind in (route.body, route.answer) if kind is not None and kind is not bytes]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Duetime",
            "version": version("duetime"),
            "summary": "Runs work at the right time, at least once and never twice at once.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: _tidied(schema) for name, schema in components.items()},
            "securitySchemes": {_BEARER: {"type": "http", "scheme": "bearer", "description": _SECURITY}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.parts[1] if route.parts[0] == "v1" else "service"],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": _responses(route),
    }
    if route.body is not None:
        content = {"application/json": {"schema": _schema(route.body)}} if route.body is not bytes else {BYTES: {"schema": {}}}
        if route.lines:
            text = "One task as JSON per line."
            content[NDJSON] = {"schema": {"type": "string", "description": text}}
        operation["requestBody"] = {"required": not route.optional_body, "content": content}
    if route.scope is not None:
        operation["description"] = f"Needs the scope `{route.scope}`."
        operation["security"] = [{_BEARER: []}]
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]} for name in route.parameters]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([route.query], ref_template=_REFERENCE)
    found = []
    for name, schema in components[route.query.__name__]["properties"].items():
        inlined = _inlined(schema, components)
        found.append({"name": name, "in": "query", "required": False, "schema": _tidied(inlined)})
    return found


def _headers(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": header.name,
            "in": "header",
            "required": False,
            "description": header.text,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255} if header.checked else {"type": "string"},
        }
        for header in route.headers
    ]


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in (route.status, *route.also):
        response: dict[str, Any] = {"description": _TITLES[status], "headers": _answer_headers(route, status)}
        if route.answer is not None and status < 300:
            response["content"] = {route.media: {"schema": _schema(route.answer)}}
            if route.stream:
                response["content"]["text/event-stream"] = {"schema": {"description": route.stream}}
        responses[str(status)] = response
    for status in sorted(_problems(route)):
        responses[str(status)] = {
            "description": _TITLES[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
        }
        if status in _PROBLEM_HEADERS:
            responses[str(status)]["headers"] = {
                name: {"description": text, "schema": {"type": "string"}} for name, text in _PROBLEM_HEADERS[status].items()
            }
    return responses


def _answer_headers(route: Route, status: int) -> dict[str, Any]:
    texts = dict(_SUCCESS_HEADERS)
    if status == 201:
        texts["Location"] = "The address of what was made."
    if route.answer is not None and getattr(route.answer, "__name__", "") in _TAGGED:
        texts["ETag"] = "Changes with what is answered; for a schedule with what people change."
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()}


def _problems(route: Route) -> set[int]:
    statuses = {422, 500, 503, *route.problems}
    if route.scope is not None:
        statuses |= {401, 403, 429}
    if route.method != "GET":
        statuses |= {400, 408, 413}
    if route.body is not None and route.body is not bytes and not route.optional_body:
        statuses |= {415}
    if route.parameters or route.query is not NoQuery:
        statuses |= {400}
    return statuses


def _schema(kind: Any) -> dict[str, Any]:
    [schema], _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    tidied: dict[str, Any] = _tidied(schema)
    return tidied


def _inlined(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    found: dict[str, Any] = components[reference.rpartition("/")[2]] if reference else schema
    return found


def _tidied(part: Any) -> Any:
    """Remove noise: titles that repeat a name, and module paths in the names of generic types."""
    if isinstance(part, dict):
        return {name: _tidied(value) for name, value in part.items() if not (name == "title" and isinstance(value, str))}
    if isinstance(part, list):
        return [_tidied(each) for each in part]
    if isinstance(part, str):
        return re.sub(r"\s*\n\s*", " ", part)
    return part
