"""Calls as JSON: binding, decoding, refusing, and the schema that is shown."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from duetime import App
from duetime.errors import InvalidHandler, InvalidPayload, PayloadTooLarge
from duetime.model.task import MAX_PAYLOAD
from duetime.targets.context import Context
from duetime.targets.payload import FunctionPayloads, encode_result
from duetime.targets.schema import misfit
from duetime.targets.signature import default_name, examine

if TYPE_CHECKING:
    from fractions import Fraction

    from duetime.targets.context import Context as Hidden


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Line(msgspec.Struct):
    start: Point
    end: Point | None = None


class Order(pydantic.BaseModel):
    number: int
    placed: date
    lines: list[OrderLine] = []


class OrderLine(pydantic.BaseModel):
    sku: str


class Opaque:
    pass


def payloads(function: Any) -> FunctionPayloads:
    return FunctionPayloads("handler", function, examine("handler", function).parameters)


def two(first: int, second: str = "x", *, third: list[int] | None = None) -> None: ...


def test_only_given_arguments_are_stored() -> None:
    assert payloads(two).bind((1,), {}) == b'{"first":1}'
    assert payloads(two).bind((), {"first": 1, "third": [2]}) == b'{"first":1,"third":[2]}'


def test_only_stored_arguments_are_given_to_the_handler() -> None:
    assert payloads(two).decode(b'{"first":1}') == {"first": 1}
    assert payloads(two).decode(b'{"third":null,"first":1}') == {"first": 1, "third": None}


def plain(first: int, second: str) -> None: ...


def after_context(ctx: Context, first: int, second: str) -> None: ...


class Shop:
    def sell(self, first: int, second: str) -> None: ...


def through_a_decorator() -> Any:
    @functools.wraps(plain)
    def only_names(**arguments: object) -> None: ...

    return only_names


@pytest.mark.parametrize("function", [plain, after_context, Shop().sell], ids=["function", "with context", "bound method"])
def test_arguments_of_a_plain_function_can_be_passed_by_position(function: Any) -> None:
    decode = payloads(function).positional_decoder()
    assert decode is not None
    assert decode('{"second":"x","first":1}') == (1, "x")
    for stored in ('{"first":1}', '{"first":"x","second":"x"}', '{"first":1,"second":"x","third":1}', "[]", "{"):
        with pytest.raises(InvalidPayload):
            decode(stored)


@pytest.mark.parametrize(
    "function", [two, through_a_decorator(), functools.partial(plain)], ids=["defaults and names only", "decorator", "partial"]
)
def test_arguments_are_passed_by_name_where_positions_may_mean_something_else(function: Any) -> None:
    assert payloads(function).positional_decoder() is None


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "field"),
    [
        ((), {}, "handler: first is missing: handler(first: int, second: str = 'x'", "first"),
        ((), {"first": "1"}, "handler: first does not fit: Expected `int`, got `str`", "first"),
        ((), {"first": True}, "handler: first does not fit: Expected `int`, got `bool`", "first"),
        ((), {"first": None}, "handler: first does not fit: Expected `int`, got `null`", "first"),
        ((), {"first": 1, "secnd": "x"}, "handler: secnd is not a parameter; did you mean second?", "secnd"),
        ((), {"first": 1, "zzz": "x"}, "handler: zzz is not a parameter: handler(first", "zzz"),
        ((), {"first": 1, "third": [1, "a"]}, "handler: third[1] does not fit", "third[1]"),
        ((1, "x", []), {}, "handler takes 2 arguments without a name, got 3", None),
        ((1,), {"first": 1}, "handler: first is given twice", "first"),
        ((), {"first": 1, "second": Opaque()}, "handler: second is not JSON: the type Opaque has no JSON form", "second"),
        ((), {"first": 1, "second": "\ud800"}, "handler: second is not JSON", "second"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_argument_named(
    args: tuple[object, ...], kwargs: dict[str, object], message: str, field: str | None
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        payloads(two).bind(args, kwargs)
    assert str(refused.value).startswith(message)
    assert refused.value.field == field


def test_a_cyclic_value_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(InvalidPayload, match="values is not JSON"):
        payloads(all_kinds_of_values).bind((), {"values": ring})


def all_kinds_of_values(values: list[Any]) -> None: ...


@pytest.mark.parametrize("stored", [b"", b"{", b"[1]", b'"x"', b'{"first":"x"}', b"{}", b'{"first":1,"gone":2}', b"\xff"])
def test_a_stored_payload_that_does_not_fit_is_refused(stored: bytes) -> None:
    with pytest.raises(InvalidPayload, match="handler: "):
        payloads(two).decode(stored)


def everything(  # type: ignore[no-untyped-def]
    moment: datetime,
    day: date,
    span: timedelta,
    identity: UUID,
    amount: Decimal,
    colour: Colour,
    point: Point,
    line: Line,
    order: Order,
    data: bytes,
    tags: set[str],
    pair: tuple[int, str],
    choice: Literal["a", "b"],
    small: Annotated[int, msgspec.Meta(le=10)],
    anything: Any,
    untyped=None,
) -> None: ...


EVERYTHING = {
    "moment": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "day": date(2030, 1, 2),
    "span": timedelta(hours=1, microseconds=5),
    "identity": UUID("01a1e112-c0d3-7403-88d7-6b1eec5cb647"),
    "amount": Decimal("1.10"),
    "colour": Colour.RED,
    "point": Point(1, 2),
    "line": Line(Point(1), Point(2)),
    "order": Order(number=1, placed=date(2030, 1, 2), lines=[OrderLine(sku="a")]),
    "data": b"\x00\xff",
    "tags": {"a"},
    "pair": (1, "a"),
    "choice": "b",
    "small": 10,
    "anything": {"deep": [1, None, "x"]},
    "untyped": [1],
}


def test_values_come_back_in_the_types_of_the_parameters() -> None:
    codec = payloads(everything)
    assert codec.decode(codec.bind((), dict(EVERYTHING))) == EVERYTHING


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", "blue"),
        ("choice", "c"),
        ("small", 11),
        ("point", {"x": "a"}),
        ("order", {"number": "x", "placed": "2030-01-02"}),
        ("day", "x"),
    ],
)
def test_wrong_values_of_rich_types_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidPayload, match=f"handler: {name}"):
        payloads(everything).bind((), {**EVERYTHING, name: value})


def test_the_schema_accepts_what_binding_makes() -> None:
    codec = payloads(everything)
    schema = msgspec.json.decode(codec.schema())
    payload = msgspec.json.decode(codec.bind((), dict(EVERYTHING)))
    assert schema["title"] == "handler"
    assert schema["type"] == "object"
    assert misfit(schema, payload) is None
    assert misfit(schema, {**payload, "order": {"number": 1, "placed": "2030-01-02", "lines": [{"sku": 5}]}}) is not None


def test_the_schema_shows_defaults_that_are_json() -> None:
    def function(first: int, text: str = "x", opaque: Any = Opaque(), many: list[int] = [1]) -> None: ...  # noqa: B006, B008

    schema = msgspec.json.decode(payloads(function).schema())
    assert schema["required"] == ["first"]
    assert {name: field.get("default", "none") for name, field in schema["properties"].items()} == {
        "first": "none",
        "text": "x",
        "opaque": "none",
        "many": [1],
    }


def test_a_payload_over_the_limit_is_refused() -> None:
    exact = MAX_PAYLOAD - len(b'{"values":[""]}')
    assert len(payloads(all_kinds_of_values).bind((), {"values": ["x" * exact]})) == MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge, match=r"1,000,001 bytes and at most 1,000,000"):
        payloads(all_kinds_of_values).bind((), {"values": ["x" * (exact + 1)]})


@pytest.mark.parametrize(
    ("value", "stored"),
    [(1, b"1"), ("x", b'"x"'), (Point(1), b'{"x":1,"y":0}'), (OrderLine(sku="a"), b'{"sku":"a"}'), ([date(2030, 1, 2)], b'["2030-01-02"]')],
)
def test_a_result_is_stored_as_json(value: object, stored: bytes) -> None:
    assert encode_result(value) == stored


@pytest.mark.parametrize(
    "value", [Opaque(), lambda: 1, {Opaque(): 1}, "\udc80", iter([]), math.nan, {"a": [None, (1.5, -math.inf)]}, [Point(1), math.inf]]
)
def test_a_result_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidPayload, match="is not JSON"):
        encode_result(value)


def test_a_result_may_hold_null() -> None:
    assert encode_result({"a": None, "b": [1.5, None]}) == b'{"a":null,"b":[1.5,null]}'


def test_a_result_over_the_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="the result has"):
        encode_result("x" * MAX_PAYLOAD)


def returns_point() -> Point:
    return Point(1)


async def returns_order() -> Order | None:
    return None


def returns_unknown() -> Fraction: ...  # type: ignore[empty-body]


def test_a_result_comes_back_in_the_type_of_the_function() -> None:
    assert payloads(returns_point).decode_result(b'{"x":3}') == Point(3)
    assert payloads(returns_order).decode_result(b'{"number":1,"placed":"2030-01-02"}') == Order(number=1, placed=date(2030, 1, 2))
    assert payloads(returns_order).decode_result(None) is None


def test_a_result_that_does_not_fit_its_annotation_is_still_shown() -> None:
    assert payloads(returns_point).decode_result(b'"other"') == "other"
    assert payloads(returns_unknown).decode_result(b'"1/2"') == "1/2"


def needs_fraction(value: Fraction) -> None: ...


def test_an_annotation_that_exists_only_for_type_checkers_is_refused_when_used_and_not_before() -> None:
    codec = payloads(needs_fraction)
    with pytest.raises(InvalidHandler, match=r"'Fraction' of value cannot be resolved: name 'Fraction' is not defined.*TYPE_CHECKING"):
        codec.bind((), {"value": 1})


def needs_opaque(item: list[Opaque]) -> None: ...


def test_a_parameter_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidHandler, match="item is a Opaque, which cannot be made from JSON; pass an id"):
        payloads(needs_opaque).bind((), {"item": []})
    with pytest.raises(InvalidHandler, match="item is a Opaque, which cannot be made from JSON; pass an id"):
        payloads(needs_opaque).schema()


def test_a_parameter_that_json_cannot_carry_is_refused_where_its_handler_is_declared() -> None:
    app = App("sqlite:///:memory:")
    with pytest.raises(InvalidHandler, match="needs_opaque: item is a Opaque, which cannot be made from JSON; pass an id"):
        app.task(needs_opaque)
    assert list(app.declared()) == []


# ---- which functions can be handlers ----


def with_context(ctx: Context, order_id: int) -> None: ...


def with_hidden_context(ctx: Hidden, order_id: int) -> None: ...


def with_positional_context(ctx: Context, /, order_id: int) -> None: ...


async def without_context(order_id: int) -> None: ...


class Machine:
    async def start(self, ctx: Context, speed: int) -> None: ...

    def __call__(self, speed: int) -> None: ...


def quietly(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "takes_context", "is_async", "names"),
    [
        (with_context, True, False, ["order_id"]),
        (with_positional_context, True, False, ["order_id"]),
        (without_context, False, True, ["order_id"]),
        (Machine().start, True, True, ["speed"]),
        (Machine(), False, False, ["speed"]),
        (functools.partial(two, 1), False, False, ["second", "third"]),
        (quietly(without_context), False, True, ["order_id"]),
        (quietly(with_context), True, False, ["order_id"]),
        (lambda: None, False, False, []),
    ],
)
def test_the_shape_of_a_function_is_seen(function: Any, takes_context: bool, is_async: bool, names: list[str]) -> None:
    shape = examine("handler", function)
    assert (shape.takes_context, shape.is_async, [each.name for each in shape.parameters]) == (takes_context, is_async, names)


def test_a_context_imported_for_type_checkers_only_is_known_by_its_name() -> None:
    # as if the module had imported Context under TYPE_CHECKING
    alone = FunctionType(with_context.__code__, {}, "alone")
    alone.__annotations__ = with_context.__annotations__
    assert examine("handler", alone).takes_context
    assert not examine("handler", with_hidden_context).takes_context


def unannotated(order_id):  # type: ignore[no-untyped-def]
    ...


def anything_first(order_id: Any) -> None: ...


def with_args(order_id: int, *items: int) -> None: ...


def with_kwargs(order_id: int, **items: int) -> None: ...


def only_args(*items: int) -> None: ...


def positional_only(order_id: int, /) -> None: ...


def context_second(order_id: int, ctx: Context) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unannotated, "annotate the first parameter, 'order_id': `order_id: Context` if it is the context"),
        (anything_first, "annotate the first parameter"),
        (Machine.start, "its first parameter is 'self'.*bound method"),
        (with_args, r"\*items cannot be stored by name; take a list"),
        (only_args, r"\*items cannot be stored by name"),
        (with_kwargs, r"\*\*items would accept any misspelling"),
        (positional_only, "order_id is positional-only"),
        (context_second, "the context 'ctx' must be the first parameter"),
        (Machine, "must be a function, a bound method or a callable object"),
        (7, "must be a function, a bound method or a callable object"),
    ],
)
def test_functions_that_cannot_be_handlers_are_refused(function: Any, message: str) -> None:
    with pytest.raises(InvalidHandler, match=message):
        examine("handler", function)


def test_handlers_are_named_after_their_function() -> None:
    assert default_name(two) == "two"
    assert default_name(Machine().start) == "start"
    assert default_name(Machine()) == "Machine"


@pytest.mark.parametrize("nameless", [lambda: None, functools.partial(two, 1)])
def test_what_has_no_name_needs_one(nameless: Any) -> None:
    with pytest.raises(InvalidHandler, match="has no name that could be stored"):
        default_name(nameless)
