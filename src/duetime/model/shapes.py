"""Conversions between the shapes of one noun, derived from their fields.

A task is submitted, stored, claimed, shown and sent in shapes that differ in a few types only: an instant is a number of microseconds or a
datetime, JSON is bytes, text or a value. What two shapes share is carried over here, so a field that both get needs no further line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

How: TypeAlias = Mapping[str, Callable[[Any], object]]


def derive(source: type[msgspec.Struct], target: type[T], how: How | None = None, *, given: Sequence[str] = ()) -> Callable[..., T]:
    """Return the function from one shape to another.

    It takes a `source`, and then what is `given` to it. `how` says what becomes of a field whose types differ; None stays None. A field
    that the source does not have gets its default. The function is written as text, as `dataclasses` does it: it is as fast as one by hand,
    and a loop over the fields takes six times as long. Shapes that are made often take their fields by position: a third of the time.
    """
    changes = how or {}
    values: list[str] = []
    by_name = False
    for name, parameter in inspect.signature(target).parameters.items():
        if name in given:
            value = name
        elif name not in source.__struct_fields__:
            by_name = True
            continue
        else:
            value = f"None if value.{name} is None else {name}_changed(value.{name})" if name in changes else f"value.{name}"
        by_name = by_name or parameter.kind is parameter.KEYWORD_ONLY
        values.append(f"{name}={value}" if by_name else value)
    text = f"lambda {', '.join(('value', *given))}: target({', '.join(values)})"
    made: Callable[..., T] = eval(text, {"target": target, **{f"{name}_changed": change for name, change in changes.items()}})
    return made
