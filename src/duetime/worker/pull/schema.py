"""Check a JSON Schema that came from outside, before payloads are checked against it.

The schema of a Python handler is made by us. That of a pull worker may contain anything, and one that breaks the check of payloads would
break every submission to its handler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

DEEPEST = 32
TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_REFERENCE = "#/$defs/"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, RecursionError, OverflowError):
        return False


def _is_type(value: object) -> bool:
    """Return whether it names known types only. With an unknown type nothing would be checked, and nobody would notice."""
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


# keyword → what its value must be, and whether it is
_PLAIN: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "type": (f"one of {', '.join(sorted(TYPES))}, or an array of these", _is_type),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("a number", _is_number)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), ("a whole number of at least 0", _is_size)),
    "pattern": ("a regular expression that Python understands", _is_pattern),
    "enum": ("an array", lambda value: isinstance(value, list)),
    "required": ("an array of names", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)),
    "format": ("a text", lambda value: isinstance(value, str)),
    "$ref": (f"a text that begins with {_REFERENCE}", lambda value: isinstance(value, str) and value.startswith(_REFERENCE)),
}


def fault_in(schema: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a schema; None if payloads can be checked against it."""
    return next(_faults(schema, "", 0), None) or _circle(schema)


def _faults(schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        yield f"{path} lies more than {DEEPEST} levels deep"
        return
    for keyword, (expected, fits) in _PLAIN.items():
        if keyword in schema and not fits(schema[keyword]):
            yield f"{path}{keyword} must be {expected}, got {schema[keyword]!r:.100}"
    for keyword in ("properties", "$defs"):
        yield from _each(schema.get(keyword, {}), dict, f"{path}{keyword}", depth)
    for keyword in ("anyOf", "prefixItems"):
        yield from _each(schema.get(keyword, []), list, f"{path}{keyword}", depth)
    for keyword in ("items", "additionalProperties"):
        part = schema.get(keyword, True)
        if isinstance(part, dict):
            yield from _faults(part, f"{path}{keyword}.", depth + 1)
        elif not isinstance(part, bool):
            yield f"{path}{keyword} must be an object, true or false, got {part!r:.100}"


def _each(parts: Any, kind: type[dict[str, Any]] | type[list[Any]], path: str, depth: int) -> Iterator[str]:
    if not isinstance(parts, kind):
        yield f"{path} must be {'an object' if kind is dict else 'an array'}, got {parts!r:.100}"
        return
    for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        if isinstance(part, dict):
            yield from _faults(part, f"{path}.{name}.", depth + 1)
        else:
            yield f"{path}.{name} must be an object, got {part!r:.100}"


def _circle(schema: Mapping[str, Any]) -> str | None:
    """Find a definition that leads to itself without a step into the value: checking against it would not end."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})

    def next_to(part: Mapping[str, Any]) -> set[str]:
        direct = {part["$ref"].rpartition("/")[2]} if "$ref" in part else set()
        return direct.union(*(next_to(each) for each in part.get("anyOf", [])))

    for name in definitions:
        reached, left = set[str](), next_to(definitions[name])
        while left:
            each = left.pop()
            if each == name:
                return f"$defs.{name} refers to itself"
            if each not in reached and each in definitions:
                reached.add(each)
                left |= next_to(definitions[each])
    return None
