"""A sample payload for a handler, made from its schema and checked, so that the commands which `duetime dev` prints work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duetime.errors import DuetimeError

if TYPE_CHECKING:
    from duetime.app.app import App

MAX_DEPTH = 5
_BY_TYPE: dict[str, Any] = {"integer": 7, "number": 1.5, "boolean": True, "null": None, "array": [], "string": "example"}
# likely values of strings, by the last word of the field's name; the schema of a function only says that they are strings
_BY_NAME = {"name": "Ada", "email": "ada@example.com", "url": "https://example.com/", "at": "2030-01-01T00:00:00Z"}


class Sample(NamedTuple):
    """A handler, and a payload that it takes."""

    handler: str
    payload: dict[str, Any]


def sample_of(app: App) -> Sample | None:
    """Return the first handler for which a payload can be made up, with it; None if there is none."""
    for spec in {spec.name: spec for spec in app.specs.values()}.values():
        try:
            payload = made_up(msgspec.json.decode(spec.payloads.schema()))
            app.handler(spec.name).new(**payload)
        except (DuetimeError, ValueError, LookupError):  # the latter two: nothing could be made up
            continue
        return Sample(spec.name, payload)
    return None


def made_up(schema: dict[str, Any]) -> dict[str, Any]:
    """Make up an object that fits a schema: its required fields only."""
    made = _value("", schema, schema.get("$defs", {}), MAX_DEPTH)
    if not isinstance(made, dict):
        raise ValueError("the schema is not that of an object")
    return made


def _value(name: str, schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> Any:
    if depth < 0:
        raise ValueError("too deep")
    if "$ref" in schema:
        return _value(name, definitions[schema["$ref"].rpartition("/")[2]], definitions, depth - 1)
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return _value(name, schema["anyOf"][0], definitions, depth - 1)
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        return {field: _value(field, fields[field], definitions, depth - 1) for field in schema.get("required", ()) if field in fields}
    if kind == "string":
        return _BY_NAME.get(name.rpartition("_")[2], _BY_TYPE["string"])
    return _BY_TYPE.get(kind or "", _BY_TYPE["string"])
