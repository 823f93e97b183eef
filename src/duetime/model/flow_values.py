"""What a task of a flow takes from nodes before it: marks in its payload, which are replaced when its node is free.

`{"$value": "paths"}` stands for what the node `paths` returned, `{"$value": ["paths", "first", 0]}` for a part of that, and
 `{"$values": "sizes"}` for the results of a group in the order of its members, without those that failed. In a map `{"$item": []}` stands
for the item that a member is made for, and `{"$item": ["id"]}` for a part of that. `{"$stream": "sizes"}` becomes `{"$results": …}`, which
says where the results are: the attempt reads them in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from duetime.errors import InvalidPayload
from duetime.model.flow import MAX_MAPPED
from duetime.model.task import MAX_PAYLOAD

VALUE, VALUES, ITEM, STREAM, RESULTS = "$value", "$values", "$item", "$stream", "$results"
_TAKEN = (VALUE, VALUES, STREAM)


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a stream of results is: those of a node's members in a round, or with `group` false the items of the list of its one member."""

    node: str
    number: int
    round: int = 1
    group: bool = False


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
        kind = object.__getattribute__(self, "_kind")
        if kind in (VALUES, STREAM):
            raise _unknown()
        return Value(kind, (*object.__getattribute__(self, "_path"), step))

    def __repr__(self) -> str:
        return f"<{'.'.join(map(str, ('item' if object.__getattribute__(self, '_kind') == ITEM else 'value of', *path_of(self))))}>"

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


def kind_of(value: Value) -> str:
    return cast(str, object.__getattribute__(value, "_kind"))


def is_stream(value: object) -> bool:
    return isinstance(value, Value) and kind_of(value) == STREAM


def marked(value: object) -> object:
    """Return a value as a mark; for `enc_hook`."""
    if not isinstance(value, Value):
        raise TypeError(f"the type {type(value).__name__} has no JSON form")
    path = path_of(value)
    kind = kind_of(value)
    return {kind: path[0] if len(path) == 1 and kind != ITEM else list(path)}


def holds_values(arguments: object) -> bool:
    """Return whether there is a value among arguments, inside of lists and mappings too."""
    if isinstance(arguments, Value):
        return True
    if isinstance(arguments, Mapping):
        return any(map(holds_values, arguments.values()))
    return isinstance(arguments, list | tuple) and any(map(holds_values, arguments))


def sources(payload: bytes) -> list[str]:
    """Return the nodes that a payload takes results from, each once."""
    return list(dict.fromkeys(name for _, name in _taken(payload)))


def read_whole(payload: bytes) -> list[str]:
    """Return the nodes whose results become parts of a payload: all that it takes but streams."""
    return list(dict.fromkeys(name for kind, name in _taken(payload) if kind != STREAM))


def _taken(payload: bytes) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if b'"$value' in payload or b'"$stream"' in payload:
        _walk(msgspec.json.decode(payload), lambda kind, path: None if kind == ITEM else found.append((kind, path[0])))
    return found


def takes_item(payload: bytes) -> bool:
    """Return whether a payload has a position for an item, as only that of a map may have."""
    found: list[str] = []
    if b'"$item"' in payload:
        _walk(msgspec.json.decode(payload), lambda kind, path: found.append(kind))
    return ITEM in found


def unmarked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with values in place of their marks, as a plan has them."""
    return cast(dict[str, Any], {name: _walk(each, lambda kind, path: Value(kind, tuple(path))) for name, each in arguments.items()})


def filled(payload: bytes, values: Mapping[str, Sequence[bytes]], item: Any = None, streams: Mapping[str, Source] | None = None) -> bytes:
    """Return a payload with values, sources of streams and the item of a map in place of their marks.

    Raises InvalidPayload if one is not there, or all are too long.
    """

    def look_up(kind: str, path: Sequence[Any]) -> Any:
        if kind == ITEM:
            return part_of(item, path, "the item")
        if kind == STREAM:
            return {RESULTS: (streams or {})[path[0]]}
        results = values.get(path[0], ())
        if kind == VALUES:
            return [msgspec.json.decode(each) for each in results]
        if not results:
            raise InvalidPayload(f"node {path[0]!r} has returned nothing that could be taken")
        return part_of(msgspec.json.decode(results[0]), path[1:], f"what {path[0]} returned")

    data = msgspec.json.encode(_walk(msgspec.json.decode(payload), look_up))
    if len(data) > MAX_PAYLOAD:
        raise InvalidPayload(
            f"with the values of other nodes the payload has {len(data):,} bytes, and at most {MAX_PAYLOAD:,} are allowed; "
            "take them as a stream: a parameter of type Results[…], and group.stream in the plan"
        )
    return data


def too_long_as_argument(node: str) -> InvalidPayload:
    return InvalidPayload(
        f"what {node} has yielded is longer than the {MAX_PAYLOAD:,} bytes of a payload; take it as a stream: a parameter of type "
        "Results[…], and node.stream in the plan"
    )


def part_of(value: Any, path: Sequence[str | int], whole: str) -> Any:
    """Return a part of a value; InvalidPayload if there is none."""
    for number, step in enumerate(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            at = "".join(f".{each}" for each in path[:number])
            raise InvalidPayload(f"{whole}{at} has no {step!r}") from None
    return value


def items_of(value: bytes, path: Sequence[str | int], node: str) -> list[Any]:
    """Return the list that a map is made over; InvalidPayload if that is none, or too long."""
    found = part_of(msgspec.json.decode(value), path, f"what {node} returned")
    shown = ".".join(map(str, (node, *path)))
    if not isinstance(found, list):
        raise InvalidPayload(f"a map takes a list, and the value of {shown} is of type {type(found).__name__}")
    check_length(len(found), shown)
    return found


def check_length(items: int, shown: str) -> int:
    """Return how many members a map has; InvalidPayload if these are too many."""
    if items > MAX_MAPPED:
        raise InvalidPayload(f"a map has at most {MAX_MAPPED:,} members, and the list of {shown} has {items:,} items; map over parts of it")
    return items


def _walk(value: Any, replace: Callable[[str, Sequence[Any]], Any]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((kind, path),) = value.items()
            if kind == ITEM and isinstance(path, list):
                return replace(kind, path)
            if kind in _TAKEN and (isinstance(path, str) or (isinstance(path, list) and path and isinstance(path[0], str))):
                return replace(kind, [path] if isinstance(path, str) else path)
        return {name: _walk(each, replace) for name, each in value.items()}
    return [_walk(each, replace) for each in value] if isinstance(value, list) else value
