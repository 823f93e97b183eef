"""Check JSON against the JSON Schema that a handler's process declared, for callers that do not have the handler's code.

Only what declarations contain is understood; anything else is let through, because the handler's own check has the last word.

Schemas of pull workers come from outside, and so do payloads. A small schema can ask for more work than anybody can do (`anyOf` over
definitions doubles it with each level), so a check counts its steps, and ends with TooLong after as many as it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from duetime.errors import InvalidValue
from duetime.model.patterns import Steps, TooLong, read_pattern

__all__ = ["MOST_STEPS", "Misfit", "Steps", "TooLong", "misfit"]

# For one payload: each value of the largest one can be looked at four times. It takes a few seconds, and not on the event loop.
MOST_STEPS = 2_000_000
DEEPEST = 250  # schemas that are being checked inside each other: a third of what Python's stack allows
_MOST_NAMED = 20  # in a message
_LONGEST_SHOWN = 100

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
    "minItems": (lambda value, bound: len(value) >= bound, "must have at least {} items"),
    "maxItems": (lambda value, bound: len(value) <= bound, "must have at most {} items"),
}
_BOUNDED = {"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number"} | {
    "minLength": "string", "maxLength": "string", "minItems": "array", "maxItems": "array"
}  # fmt: skip


class Misfit(msgspec.Struct, frozen=True):
    """What is wrong, and where: the path of a field, empty for the whole."""

    path: str
    problem: str


def misfit(schema: Mapping[str, Any], value: object, steps: Steps | None = None) -> Misfit | None:
    """Return the first thing in a value that the schema does not allow; None if all is allowed. Raises TooLong after so many steps."""
    return _Checker(schema, Steps(MOST_STEPS) if steps is None else steps).check(schema, value)


class _Checker:
    def __init__(self, root: Mapping[str, Any], steps: Steps) -> None:
        self._definitions: Mapping[str, Any] = root.get("$defs", {})
        self._steps = steps
        self._enums: dict[int, tuple[frozenset[Any], list[Any]]] = {}
        self._path: list[str | int] = []  # joined only for a misfit: a name may have a megabyte, and a million values below it
        self._depth = 0

    def check(self, schema: Mapping[str, Any], value: Any) -> Misfit | None:
        self._steps.spend()
        if not schema:
            return None
        if self._depth >= DEEPEST:
            return self._misfit("lies too deep to be checked; send a flatter value")
        self._depth += 1
        try:
            return self._check(schema, value)
        finally:
            self._depth -= 1

    def _check(self, schema: Mapping[str, Any], value: Any) -> Misfit | None:
        if "$ref" in schema:
            return self.check(self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), value)
        if "anyOf" in schema:
            return self._any(schema["anyOf"], value)
        if "enum" in schema and not self._is_among(schema["enum"], value):
            return self._misfit(f"must be one of {_named(map(repr, schema['enum']))}, got {_shown(value)}")
        if "const" in schema and value != schema["const"]:
            return self._misfit(f"must be {_shown(schema['const'])}, got {_shown(value)}")
        if "type" in schema:
            named = schema["type"]
            kinds = [str(each) for each in (named if isinstance(named, list) else [named])]
            if kinds and all(kind in _KINDS and not _KINDS[kind](value) for kind in kinds):
                return self._misfit(f"must be of type {' or '.join(kinds)}, got {_kind(value)}")
        for name in schema:
            if name in _BOUNDS and _KINDS[_BOUNDED[name]](value):
                holds, text = _BOUNDS[name]
                if not holds(value, schema[name]):
                    return self._misfit(text.format(schema[name]))
        if isinstance(value, str):
            return self._text(schema, value)
        if isinstance(value, dict):
            return self._object(schema, value)
        if isinstance(value, list):
            return self._array(schema, value)
        return None

    def _is_among(self, allowed: list[Any], value: Any) -> bool:
        """Return whether a value is in an enum. Most are texts and numbers, which a set finds at once, however many there are."""
        known = self._enums.get(id(allowed))
        if known is None:
            self._steps.spend(len(allowed))
            plain = frozenset(each for each in allowed if not isinstance(each, list | dict))
            known = self._enums[id(allowed)] = plain, [each for each in allowed if isinstance(each, list | dict)]
        if not isinstance(value, list | dict):
            return value in known[0]
        for each in known[1]:
            self._steps.spend(1 + len(each))
            if each == value:
                return True
        return False

    def _text(self, schema: Mapping[str, Any], value: str) -> Misfit | None:
        if "pattern" in schema:
            try:
                pattern = read_pattern(schema["pattern"])
            except InvalidValue:  # of a Python handler, which matches it itself
                pass
            else:
                if not pattern.search(value, self._steps):
                    return self._misfit(f"must match {schema['pattern']}")
        if schema.get("format") in _FORMATS:
            try:
                msgspec.convert(value, _FORMATS[schema["format"]])
            except msgspec.ValidationError:
                return self._misfit(f"must be a {schema['format']} in its standard form, got {_shown(value)}")
        return None

    def _any(self, schemas: list[Mapping[str, Any]], value: object) -> Misfit | None:
        deepest: Misfit | None = None
        for schema in schemas:
            found = self.check(schema, value)
            if found is None:
                return None
            # the deepest misfit belongs to the alternative that was meant
            if deepest is None or len(found.path) > len(deepest.path):
                deepest = found
        return deepest

    def _object(self, schema: Mapping[str, Any], value: dict[str, Any]) -> Misfit | None:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", ())
        self._steps.spend(len(required))
        for name in required:
            if name not in value:
                return self._misfit("is missing", name)
        others = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name not in properties and others is False:
                return self._misfit(f"is not known; there are {_named(properties) or 'none'}", name)
            found = self._below(name, properties.get(name, others if isinstance(others, dict) else {}), each)
            if found is not None:
                return found
        return None

    def _array(self, schema: Mapping[str, Any], value: list[Any]) -> Misfit | None:
        first: list[Any] = schema.get("prefixItems", [])
        rest = schema.get("items", {})
        if not first and not rest:
            return None
        for index, each in enumerate(value):
            expected = first[index] if index < len(first) else rest
            if isinstance(expected, dict):
                found = self._below(index, expected, each)
                if found is not None:
                    return found
        return None

    def _below(self, step: str | int, schema: Mapping[str, Any], value: Any) -> Misfit | None:
        self._path.append(step)
        try:
            return self.check(schema, value)
        finally:
            self._path.pop()

    def _misfit(self, problem: str, *below: str) -> Misfit:
        path = ""
        for step in (*self._path, *below):
            path += f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST_SHOWN]}" if path else step[:_LONGEST_SHOWN]
        return Misfit(path, problem)


def _named(names: Iterable[str]) -> str:
    first = list(islice(names, _MOST_NAMED + 1))
    return ", ".join(name[:_LONGEST_SHOWN] for name in first[:_MOST_NAMED]) + (", …" if len(first) > _MOST_NAMED else "")


def _shown(value: object) -> str:
    return f"an {_kind(value)}" if isinstance(value, list | dict) else f"{value!r:.{_LONGEST_SHOWN}}"


def _kind(value: object) -> str:
    return next(kind for kind, is_one in _KINDS.items() if is_one(value))
