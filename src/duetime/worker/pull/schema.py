"""Check a JSON Schema that came from outside, before payloads are checked against it.

The schema of a Python handler is made by us. That of a pull worker may contain anything, and one that breaks the check of payloads would
break every submission to its handler. It is bounded, because it is read for every check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from duetime.errors import InvalidValue
from duetime.model.patterns import read_pattern

DEEPEST = 32
MOST_BYTES = 100_000  # as JSON
MOST_PARTS = 5_000  # schemas inside of a schema, and entries of its lists
TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_REFERENCE = "#/$defs/"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_type(value: object) -> bool:
    """Return whether it names known types only. With an unknown type nothing would be checked, and nobody would notice."""
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


# keyword → what its value must be, and whether it is
_PLAIN: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "type": (f"one of {', '.join(sorted(TYPES))}, or an array of these", _is_type),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("a number", _is_number)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), ("a whole number of at least 0", _is_size)),
    "pattern": ("a text", lambda value: isinstance(value, str)),
    "enum": ("an array", lambda value: isinstance(value, list)),
    "required": ("an array of names", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)),
    "format": ("a text", lambda value: isinstance(value, str)),
    "$ref": (f"a text that begins with {_REFERENCE}", lambda value: isinstance(value, str) and value.startswith(_REFERENCE)),
}

_UNKNOWN: tuple[str, Callable[[object], bool]] = ("anything", lambda value: True)  # a keyword that no check looks at


def fault_in(schema: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a schema; None if payloads can be checked against it."""
    size = len(msgspec.json.encode(schema))
    if size > MOST_BYTES:
        return f"it has {size:,} bytes and at most {MOST_BYTES:,} are allowed; leave out what need not be checked before the worker does"
    return next(_Reading().faults(schema, "", 0), None) or _circle(schema)


class _Reading:
    """One walk through a schema, which counts its parts."""

    def __init__(self) -> None:
        self._parts = 0

    def faults(self, schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        self._parts += 1 + sum(len(schema[name]) for name in ("enum", "required", "type") if isinstance(schema.get(name), list))
        if self._parts > MOST_PARTS:
            yield f"it has more than {MOST_PARTS:,} parts; leave out what need not be checked before the worker does"
            return
        if depth > DEEPEST:
            yield f"{path} lies more than {DEEPEST} levels deep"
            return
        for keyword in schema:
            expected, fits = _PLAIN.get(keyword, _UNKNOWN)
            if not fits(schema[keyword]):
                yield f"{path}{keyword} must be {expected}, got {schema[keyword]!r:.100}"
        if "pattern" in schema:
            try:
                read_pattern(schema["pattern"])
            except InvalidValue as error:
                yield f"{path}pattern: {error}"
        for keyword in ("properties", "$defs"):
            yield from self._each(schema.get(keyword, {}), dict, f"{path}{keyword}", depth)
        for keyword in ("anyOf", "prefixItems"):
            yield from self._each(schema.get(keyword, []), list, f"{path}{keyword}", depth)
        for keyword in ("items", "additionalProperties"):
            part = schema.get(keyword, True)
            if isinstance(part, dict):
                yield from self.faults(part, f"{path}{keyword}.", depth + 1)
            elif not isinstance(part, bool):
                yield f"{path}{keyword} must be an object, true or false, got {part!r:.100}"

    def _each(self, parts: Any, kind: type[dict[str, Any]] | type[list[Any]], path: str, depth: int) -> Iterator[str]:
        if not isinstance(parts, kind):
            yield f"{path} must be {'an object' if kind is dict else 'an array'}, got {parts!r:.100}"
            return
        for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            if isinstance(part, dict):
                yield from self.faults(part, f"{path}.{name}.", depth + 1)
            else:
                yield f"{path}.{name} must be an object, got {part!r:.100}"


def _circle(schema: Mapping[str, Any]) -> str | None:
    """Find a definition that leads to itself without a step into the value: checking against it would not end."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})

    def next_to(part: Mapping[str, Any]) -> set[str]:
        direct = {part["$ref"].rpartition("/")[2]} if "$ref" in part else set()
        return direct.union(*(next_to(each) for each in part.get("anyOf", [])))

    ended: set[str] = set()  # those from which no circle is reached; each definition is looked at once
    for name in definitions:
        under_way = {name: iter(next_to(definitions[name]) if name not in ended else ())}
        while under_way:
            last = next(reversed(under_way))
            each = next(under_way[last], None)
            if each is None:
                under_way.pop(last)
                ended.add(last)
            elif each in under_way:
                return f"$defs.{each} refers to itself"
            elif each in definitions and each not in ended:
                under_way[each] = iter(next_to(definitions[each]))
    return None
