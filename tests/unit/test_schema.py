"""Payloads against a declared schema, for callers without the handler's code."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from duetime.targets.payload import FunctionPayloads
from duetime.targets.schema import misfit
from duetime.targets.signature import examine


@dataclass
class Line:
    sku: str
    pieces: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1


def order(
    number: int,
    lines: list[Line],
    placed_at: Annotated[datetime, msgspec.Meta(tz=True)],
    customer: UUID | None = None,
    channel: Literal["web", "shop"] = "web",
    notes: dict[str, str] = {},  # noqa: B006
    point: tuple[float, float] | None = None,
    code: Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", max_length=3)] = "A",
) -> None: ...


SCHEMA = msgspec.json.decode(FunctionPayloads("order", order, examine("order", order).parameters).schema())
RIGHT: dict[str, Any] = {"number": 1, "lines": [{"sku": "a", "pieces": 2}], "placed_at": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"customer": None, "channel": "shop", "notes": {"a": "b"}, "point": [1, 2.5], "code": "ABC"},
        {"customer": "01a1e112-c0d3-7403-88d7-6b1eec5cb647"},
        {"lines": []},
    ],
)
def test_what_fits_is_accepted(more: dict[str, Any]) -> None:
    assert misfit(SCHEMA, {**RIGHT, **more}) is None


@pytest.mark.parametrize(
    ("more", "path", "problem"),
    [
        ({"number": "1"}, "number", "must be of type integer, got string"),
        ({"number": True}, "number", "must be of type integer, got boolean"),
        ({"number": None}, "number", "must be of type integer, got null"),
        ({"lines": {}}, "lines", "must be of type array, got object"),
        ({"lines": [{"sku": "a"}, {"pieces": 1}]}, "lines[1].sku", "is missing"),
        ({"lines": [{"sku": "a", "pieces": 0}]}, "lines[0].pieces", "must be at least 1"),
        ({"lines": [{"sku": "a", "pieces": 100}]}, "lines[0].pieces", "must be at most 99"),
        ({"placed_at": "today"}, "placed_at", "must be a date-time in its standard form, got 'today'"),
        ({"customer": "x"}, "customer", "must be a uuid in its standard form, got 'x'"),
        ({"channel": "phone"}, "channel", "must be one of 'shop', 'web', got 'phone'"),
        ({"notes": {"a": 1}}, "notes.a", "must be of type string, got integer"),
        ({"point": [1]}, "point", "must have at least 2 items"),
        ({"point": [1, "x"]}, "point[1]", "must be of type number, got string"),
        ({"code": "abc"}, "code", "must match ^[A-Z]+$"),
        ({"code": "ABCD"}, "code", "must have at most 3 characters"),
        ({"colour": 1}, "colour", "is not known; there are number, lines"),
    ],
)
def test_a_misfit_is_reported_with_its_path(more: dict[str, Any], path: str, problem: str) -> None:
    found = misfit(SCHEMA, {**RIGHT, **more})
    assert found is not None
    assert (found.path, found.problem[: len(problem)]) == (path, problem)


def test_a_missing_argument_is_reported() -> None:
    found = misfit(SCHEMA, {"number": 1})
    assert found is not None
    assert (found.path, found.problem) == ("lines", "is missing")


@pytest.mark.parametrize("schema", [{}, {"type": "unheard of"}, {"$ref": "#/$defs/gone"}, {"anyOf": []}, {"not": {"type": "object"}}])
def test_what_is_not_understood_is_let_through(schema: dict[str, Any]) -> None:
    assert misfit(schema, {"a": 1}) is None
