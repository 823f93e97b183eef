"""Check JSON against the JSON Schema that a handler's process declared, for callers that do not have the handler's code.

Only what declarations contain is understood; anything else is let through, because the handler's own check has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec

_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_FORMATS: Mapping[str, Any] = {"date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID}
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "must be at least {}"),
    "maximum": (lambda value, bound: value <= bound, "must be at most {}"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "must be greater than {}"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "must be less than {}"),
    "minLength": (lambda value, bound: len(value) >= bound, "must have at least {} characters"),
    "maxLength": (lambda value, bound: len(value) <= bound, "must have at most {} characters"),
    "pattern": (lambda value, bound: re.search(bound, value) is not None, "must match {}"),
    "minItems": (lambda value, bound: len(value) >= bound, "must have at least {} items"),
    "maxItems": (lambda value, bound: len(value) <= bound, "must have at most {} items"),
}
_BOUNDED = {"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number"} | {
    "minLength": "string", "maxLength": "string", "pattern": "string", "minItems": "array", "maxItems": "array"
}  # fmt: skip


class Misfit(msgspec.Struct, frozen=True):
    """What is wrong, and where: the path of a field, empty for the whole."""

    path: str
    problem: str


def misfit(schema: Mapping[str, Any], value: object) -> Misfit | None:
    """Return the first thing in a value that the schema does not allow; None if all is allowed."""
    return _Checker(schema).check(schema, value, "")


class _Checker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = root.get("$defs", {})

    def check(self, schema: Mapping[str, Any], value: Any, path: str) -> Misfit | None:
        if "$ref" in schema:
            return self.check(self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), value, path)
        if "anyOf" in schema:
            return self._any(schema["anyOf"], value, path)
        if "enum" in schema and value not in schema["enum"]:
            return Misfit(path, f"must be one of {', '.join(map(repr, schema['enum']))}, got {value!r}")
        if "const" in schema and value != schema["const"]:
            return Misfit(path, f"must be {schema['const']!r}, got {value!r}")
        named = schema.get("type")
        kinds = [str(each) for each in (named if isinstance(named, list) else [named])]
        if kinds and all(kind in _KINDS and not _KINDS[kind](value) for kind in kinds):
            return Misfit(path, f"must be of type {' or '.join(kinds)}, got {_kind(value)}")
        for name, (holds, text) in _BOUNDS.items():
            if name in schema and _KINDS[_BOUNDED[name]](value) and not holds(value, schema[name]):
                return Misfit(path, text.format(schema[name]))
        if isinstance(value, str) and schema.get("format") in _FORMATS:
            try:
                msgspec.convert(value, _FORMATS[schema["format"]])
            except msgspec.ValidationError:
                return Misfit(path, f"must be a {schema['format']} in its standard form, got {value!r}")
        if isinstance(value, dict):
            return self._object(schema, value, path)
        if isinstance(value, list):
            return self._array(schema, value, path)
        return None

    def _any(self, schemas: list[Mapping[str, Any]], value: object, path: str) -> Misfit | None:
        found = [self.check(schema, value, path) for schema in schemas]
        if not found or None in found:
            return None
        # the deepest misfit belongs to the alternative that was meant
        return max((each for each in found if each is not None), key=lambda each: len(each.path))

    def _object(self, schema: Mapping[str, Any], value: dict[str, Any], path: str) -> Misfit | None:
        properties: Mapping[str, Any] = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return Misfit(_join(path, name), "is missing")
        others = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name not in properties and others is False:
                return Misfit(_join(path, name), f"is not known; there are {', '.join(properties) or 'none'}")
            found = self.check(properties.get(name, others if isinstance(others, dict) else {}), each, _join(path, name))
            if found is not None:
                return found
        return None

    def _array(self, schema: Mapping[str, Any], value: list[Any], path: str) -> Misfit | None:
        first: list[Any] = schema.get("prefixItems", [])
        rest = schema.get("items", {})
        for index, each in enumerate(value):
            expected = first[index] if index < len(first) else rest
            if expected is not False:
                found = self.check(expected if isinstance(expected, dict) else {}, each, f"{path}[{index}]")
                if found is not None:
                    return found
        return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kind(value: object) -> str:
    return next(kind for kind, is_one in _KINDS.items() if is_one(value))
