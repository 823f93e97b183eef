"""Schemas from outside: whatever is let through, checking a payload against it ends with an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.targets.schema import Misfit, misfit
from duetime.worker.pull.schema import DEEPEST, TYPES, fault_in

KEYWORDS = (
    *(
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "anyOf",
        "enum",
        "const",
        "format",
        "$ref",
        "$defs",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern", "minItems", "maxItems"),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["a", "b", "object", "array", "string", "uuid", "#/$defs/a", "#/$defs/b", "("])
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2), max_leaves=8
)
schemas = st.recursive(
    st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS),
        values | inner | st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner),
        max_size=4,
    ),
    max_leaves=6,
)


@given(schema=schemas, value=st.dictionaries(st.sampled_from(["a", "b"]), values))
def test_a_schema_without_a_fault_can_be_checked_against(schema: dict[str, Any], value: dict[str, Any]) -> None:
    if fault_in(schema) is None:
        misfit(schema, value)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({}, None),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}, None),
        ({"properties": {"a": {"maximum": True}}}, "properties.a.maximum must be a number, got True"),
        ({"type": ["string", "null"]}, None),
        ({"type": 5}, f"type must be one of {', '.join(sorted(TYPES))}, or an array of these, got 5"),
        ({"items": {"type": "text"}}, f"items.type must be one of {', '.join(sorted(TYPES))}, or an array of these, got 'text'"),
        ({"type": []}, f"type must be one of {', '.join(sorted(TYPES))}, or an array of these, got []"),
        ({"anyOf": [{}, {"required": [1]}]}, "anyOf.1.required must be an array of names, got [1]"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, "$defs.a refers to itself"),
    ],
)
def test_a_fault_is_reported_with_its_path(schema: dict[str, Any], fault: str | None) -> None:
    assert fault_in(schema) == fault


def test_each_of_several_types_is_let_through_and_no_other() -> None:
    schema = {"properties": {"a": {"type": ["string", "null"]}}}
    assert fault_in(schema) is None
    assert misfit(schema, {"a": "x"}) is None
    assert misfit(schema, {"a": None}) is None
    assert misfit(schema, {"a": 5}) == Misfit("a", "must be of type string or null, got integer")


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(DEEPEST + 2):
        schema = {"items": schema}
    fault = fault_in(schema)
    assert fault is not None
    assert "levels deep" in fault
