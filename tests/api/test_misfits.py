"""Errors over HTTP speak of JSON: no type of Python is named in any, and allowed values are listed."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

import msgspec
import pytest

from duetime.api.app import ROUTES
from duetime.api.route import Route
from tests.api.conftest import Client

WRONG: tuple[Any, ...] = (None, True, 7, 1.5, "x", [], [[]], {}, {"x": None})
PYTHON = re.compile(r"`(str|int|float|bool|null|object|array|datetime)\b|\b(str|dict|NoneType|tuple|bool|None|True|False)\b|<class")
WITH_BODY = [route for route in ROUTES if route.body not in (None, bytes)]


def bodies(route: Route) -> list[Any]:
    """Return wrong bodies: of each wrong type, and with each wrong type in each field."""
    kind = get_args(route.body)[0] if get_origin(route.body) is list else route.body
    given = {"handler": "greet", "action": "pause", "url": "https://example.com", "argv": ["true"]}
    wrong = []
    for each in get_args(kind) or (kind,):  # a body of several kinds says which in a field of its own
        tag = {} if each.__struct_config__.tag is None else {each.__struct_config__.tag_field: each.__struct_config__.tag}
        fields: tuple[str, ...] = each.__struct_fields__
        usual = tag | {name: given[name] for name in fields if name in given}
        wrong += [{**usual, name: value} for name in fields for value in WRONG]
    return [*WRONG, *([each] for each in wrong)] if get_origin(route.body) is list else [*WRONG, *wrong]


def details(document: Any) -> list[str]:
    """Return all details of a problem document, or of the problems in the answer to a batch."""
    if isinstance(document, list):
        return [text for each in document for text in details(each)]
    if not isinstance(document, dict):
        return []
    own = [document["detail"]] if isinstance(document.get("detail"), str) else []
    return own + [text for name in ("errors", "items", "problem") for text in details(document.get(name))]


async def refused(http: Client, route: Route, body: Any = None, **query: Any) -> list[str]:
    path = re.sub(r"\{id\}", "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46", re.sub(r"\{(handler|name)\}", "greet", route.path))
    data = None if body is None else msgspec.json.encode(body[0])
    headers = {"content-type": "application/json"}
    answer = await http(route.method, path, data=data, headers=headers, status=None, **query)
    assert answer.status < 500, answer
    return details(answer.json) if answer.data and "json" in answer.headers.get("content-type", "") else []


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: route.name)
async def test_no_wrong_body_is_answered_in_words_of_python(http: Client, route: Route) -> None:
    said = [text for body in bodies(route) for text in await refused(http, route, (body,))]
    assert said
    assert [text for text in said if PYTHON.search(text)] == []


async def test_no_wrong_parameter_is_answered_in_words_of_python(http: Client) -> None:
    said = []
    for route in ROUTES:
        if route.method == "GET":
            for name in route.query.__struct_fields__:
                for value in ("", "x", "-1"):
                    said += await refused(http, route, **{name: value})
    assert said
    assert [text for text in said if PYTHON.search(text)] == []


async def test_an_error_names_jsons_types_and_the_allowed_values(http: Client) -> None:
    problem = await http.problem("POST", "/v1/tasks", {"handler": []}, status=422)
    assert problem["errors"] == [{"detail": "expected a string, got an array", "pointer": "/handler"}]
    problem = await http.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": 7}}, status=422)
    assert problem["detail"] == "greet: name does not fit: expected a string, got an integer"
    problem = await http.problem("GET", "/v1/tasks", status=422, state="asleep")
    for state in ("pending", "running", "succeeded", "failed"):
        assert state in problem["detail"]
    problem = await http.problem("PUT", "/v1/gates/greet", {"action": "close"}, status=422)
    assert problem["errors"] == [{"detail": "must be one of drop, pause, got 'close'", "pointer": "/action"}]
