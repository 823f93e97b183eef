"""What a task of a flow takes from nodes before it: marks in its payload, which are replaced when its node is free.

`{"$value": "paths"}` stands for what the node `paths` returned, `{"$value": ["paths", "first", 0]}` for a part of that, and
`{"$values": "sizes"}` for the results of a group in the order of its members, without those that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from duetime.errors import InvalidPayload
from duetime.model.task import MAX_PAYLOAD

VALUE, VALUES = "$value", "$values"


class Value:
    """A value that is known only when the flow runs. Items and attributes are paths into it; anything else raises."""

    __slots__ = ("_kind", "_path")

    def __init__(self, kind: str, path: tuple[str | int, ...]) -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_path", path)

    def __getitem__(self, step: str | int) -> Value:
        if not isinstance(step, str | int) or isinstance(step, bool):
            raise _unknown()
        return self._step(step)

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._step(name)

    def _step(self, step: str | int) -> Value:
        if object.__getattribute__(self, "_kind") == VALUES:
            raise _unknown()
        return Value(VALUE, (*object.__getattribute__(self, "_path"), step))

    def __repr__(self) -> str:
        return f"<value of {'.'.join(map(str, path_of(self)))}>"

    def __bool__(self) -> bool:
        raise _unknown()

    def __len__(self) -> int:
        raise _unknown()

    def __iter__(self) -> Iterator[Any]:
        raise _unknown()

    def __eq__(self, other: object) -> bool:
        raise _unknown()

    def __hash__(self) -> int:
        raise _unknown()

    def __str__(self) -> str:
        raise _unknown()

    def __format__(self, spec: str) -> str:
        raise _unknown()


def _unknown() -> TypeError:
    return TypeError("this value is known only when the flow runs: compute with it inside of a handler, or need node.returned(…)")


def path_of(value: Value) -> tuple[str | int, ...]:
    return cast(tuple[str | int, ...], object.__getattribute__(value, "_path"))


def marked(value: object) -> object:
    """Return a value as a mark; for `enc_hook`."""
    if not isinstance(value, Value):
        raise TypeError(f"the type {type(value).__name__} has no JSON form")
    path = path_of(value)
    return {object.__getattribute__(value, "_kind"): path[0] if len(path) == 1 else list(path)}


def holds_values(arguments: object) -> bool:
    """Return whether there is a value among arguments, inside of lists and mappings too."""
    if isinstance(arguments, Value):
        return True
    if isinstance(arguments, Mapping):
        return any(map(holds_values, arguments.values()))
    return isinstance(arguments, list | tuple) and any(map(holds_values, arguments))


def sources(payload: bytes) -> dict[str, str]:
    """Return the nodes that a payload takes values from, each with how: VALUE or VALUES."""
    if b'"$value' not in payload:
        return {}
    found: dict[str, str] = {}
    _walk(msgspec.json.decode(payload), lambda kind, path: found.setdefault(path[0], kind))
    return found


def unmarked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with values in place of their marks, as a plan has them."""
    return cast(dict[str, Any], {name: _walk(each, lambda kind, path: Value(kind, tuple(path))) for name, each in arguments.items()})


def filled(payload: bytes, values: Mapping[str, Sequence[bytes]]) -> bytes:
    """Return a payload with values in place of their marks. Raises InvalidPayload if one is not there, or all are too long."""

    def look_up(kind: str, path: Sequence[Any]) -> Any:
        results = values.get(path[0], ())
        if kind == VALUES:
            return [msgspec.json.decode(each) for each in results]
        if not results:
            raise InvalidPayload(f"node {path[0]!r} has returned nothing that could be taken")
        value = msgspec.json.decode(results[0])
        for number, step in enumerate(path[1:], 1):
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                shown = ".".join(map(str, path[:number]))
                raise InvalidPayload(f"what {shown} returned has no {step!r}") from None
        return value

    data = msgspec.json.encode(_walk(msgspec.json.decode(payload), look_up))
    if len(data) > MAX_PAYLOAD:
        raise InvalidPayload(f"with the values of other nodes the payload has {len(data):,} bytes, and at most {MAX_PAYLOAD:,} are allowed")
    return data


def _walk(value: Any, replace: Callable[[str, Sequence[Any]], Any]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((kind, path),) = value.items()
            if kind in (VALUE, VALUES) and (isinstance(path, str) or (isinstance(path, list) and path and isinstance(path[0], str))):
                return replace(kind, [path] if isinstance(path, str) else path)
        return {name: _walk(each, replace) for name, each in value.items()}
    return [_walk(each, replace) for each in value] if isinstance(value, list) else value
