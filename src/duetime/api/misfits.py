"""Says in JSON's words what does not fit its type: msgspec's messages name types of Python, and leave out which values are allowed."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
    "datetime": "an instant such as 2030-01-31T07:00:00Z",
    "date": "a date such as 2030-01-31",
    "duration": "a duration in seconds",
    "any": "any value",
}
_EXPECTED = re.compile(r"\bExpected(?P<rest> `.*)", re.DOTALL)
_CALL = re.compile(r"(?P<what> is (?:missing|not a parameter)): [^;]*\(.*\)\Z", re.DOTALL)
_TYPES = re.compile(r"`(?P<types>\w+(?: \| \w+)*)`")


def in_json(message: str, kind: Any, pointer: str) -> str:
    """Return a message of msgspec in JSON's words. `kind` is the type of the whole value, and `pointer` where it does not fit."""
    if message.startswith(("Invalid enum value", "Invalid value")):
        values = sorted(_allowed(inspect.type_info(kind), [step for step in pointer.split("/") if step]))
        given = message.partition("value ")[2]
        return f"must be one of {', '.join(values)}, got {given}" if values else message
    return types_in_json(message)


def payload_in_json(message: str) -> str:
    """Return what is wrong with a payload, without the handler's signature in Python: it points to the schema instead."""
    return types_in_json(_CALL.sub(r"\g<what>; GET /v1/handlers shows the schema of the payload", message))


def types_in_json(message: str) -> str:
    """Return a message whose types are named as JSON does."""
    return _EXPECTED.sub(lambda match: "expected" + _TYPES.sub(_named, match["rest"]), message)


def _named(match: re.Match[str]) -> str:
    names = match["types"].split(" | ")
    return " or ".join(_NAMES[name] for name in names) if _NAMES.keys() >= set(names) else match[0]


def _allowed(kind: inspect.Type, steps: list[str]) -> set[str]:
    """Return the values that are allowed where these steps lead."""
    match kind:
        case inspect.UnionType(types=types):
            return {value for each in types for value in _allowed(each, steps)}
        case inspect.Metadata(type=inner):
            return _allowed(inner, steps)
        case inspect.EnumType(cls=cls) if not steps:
            return {str(member.value) for member in cls}
        case inspect.LiteralType(values=values) if not steps:
            return {str(value) for value in values}
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag) if steps:
            if steps == [tag_field]:
                return {str(tag)}
            return {value for field in fields if field.encode_name == steps[0] for value in _allowed(field.type, steps[1:])}
        case inspect.ListType(item_type=item) if steps:
            return _allowed(item, steps[1:])
        case inspect.DictType(value_type=value) if steps:
            return _allowed(value, steps[1:])
    return set()
