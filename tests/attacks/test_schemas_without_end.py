"""A pull worker declares a schema that takes for ever to check: the server goes on, and the payload is refused."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.targets.schema import MOST_STEPS, Steps, misfit
from duetime.worker.pull.schema import MOST_BYTES, MOST_PARTS, fault_in
from tests.api.conftest import Client
from tests.attacks.meanwhile import SMALL, largest_share


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of so many definitions, each of which asks for the next one twice."""
    parts: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**parts, f"d{levels}": {"type": "string"}}, "properties": {"value": {"$ref": "#/$defs/d0"}}}


async def declare(http: Client, schema: dict[str, Any], status: int = 201) -> Any:
    return (await http("POST", "/v1/workers", {"handlers": {"resize": {"schema": schema}}}, status=status)).json


async def submit(http: Client, value: Any, status: int) -> Any:
    return (await http("POST", "/v1/tasks", {"handler": "resize", "payload": {"value": value}}, status=status)).json


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "^(a|aa)+$", "a*a*a*a*b", "([a-z]+)*!$"])
async def test_a_pattern_that_python_would_try_in_2_to_the_50_ways_is_matched_at_once(http: Client, pattern: str) -> None:
    await declare(http, {"properties": {"value": {"type": "string", "pattern": pattern}}})
    problem = await submit(http, "a" * 50 + "?", 422)
    assert problem["errors"][0] == {"detail": f"resize: value must match {pattern}", "pointer": "/payload/value"}


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(?<!a)b", r"\bword", "(?i)a", "(?>a+)b", "(a{1000}){1000}", "a" * 1_001, "("])
async def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused_with_the_reason(http: Client, pattern: str) -> None:
    problem = await declare(http, {"properties": {"value": {"pattern": pattern}}}, 422)
    assert problem["errors"][0]["pointer"] == "/handlers/resize/schema"
    assert "pattern" in problem["errors"][0]["detail"]


@pytest.mark.slow
async def test_alternatives_that_double_with_each_level_end_after_so_many_steps_and_others_are_served_meanwhile(http: Client) -> None:
    await declare(http, doubling(30))
    body = {"handler": "resize", "payload": {"value": 1}}
    answer, share = await largest_share(http("POST", "/v1/tasks", body, status=422))
    assert share < SMALL
    detail = answer.json["detail"]
    assert f"cannot be checked within {MOST_STEPS:,} steps against the schema that its pull workers declare" in detail
    assert detail.startswith("resize: ")


@pytest.mark.slow
async def test_a_batch_of_such_payloads_is_bounded_as_a_whole(http: Client) -> None:
    await declare(http, doubling(30))
    await http.submit()
    items = [{"handler": "resize", "payload": {"value": 1}}] * 50 + [{"handler": "greet", "payload": {"name": "Ada"}}]
    answer, share = await largest_share(http("POST", "/v1/tasks/batch", items))
    assert share < SMALL
    assert answer.json["counts"] == {"refused": 50, "added": 1}
    assert "send fewer of them at a time" in answer.json["items"][49]["problem"]["detail"]


async def test_a_large_payload_is_checked_beside_the_loop_and_accepted(http: Client) -> None:
    await declare(http, {"properties": {"value": {"items": {"type": "integer"}}}})
    await submit(http, [1] * 50_000, 201)
    problem = await submit(http, [*[1] * 50_000, "x"], 422)
    assert problem["detail"] == "resize: value[50000] must be of type integer, got string"


@pytest.mark.parametrize("levels", [300, 900])
async def test_a_payload_that_is_as_deep_as_the_stack_is_refused(http: Client, levels: int) -> None:
    await declare(http, {"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}, "properties": {"value": {"$ref": "#/$defs/tree"}}})
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    assert "lies too deep" in (await submit(http, value, 422))["detail"]


async def test_a_chain_of_definitions_as_long_as_the_stack_ends(http: Client) -> None:
    parts: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1_000)}
    await declare(http, {"$defs": {**parts, "d1000": {}}, "properties": {"value": {"$ref": "#/$defs/d0"}}})
    assert "lies too deep" in (await submit(http, 1, 422))["detail"]


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"enum": ["x" * 1_000] * 101}, f"at most {MOST_BYTES:,} are allowed"),
        ({"enum": [1] * (MOST_PARTS + 1)}, f"more than {MOST_PARTS:,} parts"),
        ({"properties": {f"p{n}": {} for n in range(MOST_PARTS)}}, f"more than {MOST_PARTS:,} parts"),
        ({"required": ["a"] * (MOST_PARTS + 1)}, f"more than {MOST_PARTS:,} parts"),
        ({"$defs": {"a": {"anyOf": [{}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}, "refers to itself"),
    ],
)
async def test_a_schema_has_a_bounded_size(http: Client, schema: dict[str, Any], fault: str) -> None:
    assert fault in (await declare(http, schema, 422))["detail"]


def test_a_long_chain_of_definitions_is_walked_once() -> None:
    parts: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2_000)}
    assert fault_in({"$defs": parts}) is None
    assert fault_in({"$defs": {**parts, "d2000": {"$ref": "#/$defs/d0"}}}) is not None


def steps_for(schema: dict[str, Any], value: Any) -> int:
    steps = Steps(MOST_STEPS)
    misfit(schema, value, steps)
    return MOST_STEPS - steps.left


def test_an_enum_is_not_searched_for_each_item() -> None:
    items = [f"e{n}" for n in range(1_000)]
    assert steps_for({"items": {"enum": items}}, items * 100) < 110_000


def test_a_long_name_is_not_copied_for_each_value_below_it() -> None:
    found = misfit({"additionalProperties": {"items": {"type": "integer"}}}, {"n" * 500_000: [*[1] * 200_000, None]})
    assert found is not None
    assert found.path == "n" * 100 + "[200000]"


def test_a_message_does_not_repeat_what_it_is_about() -> None:
    names = [f"name-{n}" for n in range(1_000)]
    found = misfit({"enum": names}, "x" * 500_000)
    assert found is not None
    assert len(found.problem) < 1_000
    assert misfit({"enum": names}, ["x"] * 500_000) == type(found)("", found.problem.partition(", got ")[0] + ", got an array")


def test_a_pattern_of_a_python_handler_that_cannot_be_matched_here_is_left_to_the_handler() -> None:
    schema = {"properties": {"value": {"pattern": r"(a)\1"}}}
    assert misfit(schema, {"value": "b"}) is None
