"""A form from the JSON schema of a handler's payload: a field for each property, and JSON where a field cannot say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from duetime.errors import InvalidValue

Kind: TypeAlias = Literal["text", "integer", "number", "yes or no", "choice", "json"]

PREFIX = "field:"  # of the names of fields in the form
MOST_FIELDS = 60
MOST_CHOICES = 100
_PLAIN: dict[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "yes or no"}
NULL = "null"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One property of a payload. `choices` are JSON texts; `usual` is the default as JSON, None if there is none.

    `title` says what is expected, and `given` is what stands in the field.
    """

    name: str
    kind: Kind
    required: bool
    title: str = ""
    choices: Sequence[str] = ()
    usual: str | None = None
    given: str = ""

    @property
    def input(self) -> str:
        return PREFIX + self.name


def fields_of(schema: Mapping[str, Any], given: Mapping[str, str] | None = None) -> list[Field]:
    """Return the fields of a schema, those that must be filled in first; none if it does not say which properties there are."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) > MOST_FIELDS:
        return []
    required = schema.get("required") or ()
    written = given or {}
    found = [
        _field(name, each, schema, required=name in required, given=written.get(PREFIX + name, "")) for name, each in properties.items()
    ]
    return sorted(found, key=lambda field: not field.required)


def _field(name: str, part: Any, schema: Mapping[str, Any], *, required: bool, given: str) -> Field:
    described = part if isinstance(part, dict) else {}
    meant = _meant(described, schema)
    usual = None if "default" not in described else _json(described["default"])
    choices: list[str] = []
    kind: Kind = "json"
    if "enum" in meant and 0 < len(meant["enum"]) <= MOST_CHOICES:
        kind, choices = "choice", [_json(each) for each in meant["enum"]]
    elif isinstance(meant.get("type"), str):
        kind = _PLAIN.get(meant["type"], "json")
    title = str(described.get("description") or meant.get("description") or "")
    return Field(name=name, kind=kind, required=required, title=title, choices=choices, usual=usual, given=given)


def _meant(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a property is: a reference is followed once, and of "this or null" the first is taken."""
    options = [each for each in part.get("anyOf", ()) if isinstance(each, dict) and each.get("type") != NULL]
    if len(options) == 1:
        part = options[0]
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        found = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        return found if isinstance(found, dict) else {}
    return part


def read_payload(fields: Sequence[Field], form: Mapping[str, str]) -> dict[str, Any]:
    """Read the payload from the form. Fields that are left empty are left out, so that their defaults hold."""
    payload: dict[str, Any] = {}
    for field in fields:
        text = form.get(field.input, "")
        if not text.strip():
            if field.required and field.kind != "text":
                raise InvalidValue(f"{field.name} must be filled in")
            if not field.required:
                continue
        payload[field.name] = _value(field, text)
    return payload


def _value(field: Field, text: str) -> Any:
    try:
        match field.kind:
            case "text":
                return text
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "yes or no" | "choice" | "json":
                value = msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's error is a ValueError
        wanted = {"integer": "a whole number", "number": "a number"}.get(field.kind, "JSON, with quotes around text")
        raise InvalidValue(f"{field.name} must be {wanted}, got {text[:80]!r}") from None
    if field.kind == "choice" and _json(value) not in field.choices:
        raise InvalidValue(f"{field.name} must be one of {', '.join(field.choices)}, got {text[:80]!r}")
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
