"""A sequence whose items are made when they are looked at: who submits thousands of tasks at once rarely looks at each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T]):
    """As many items as there are in `source`, each made anew from its place there. Equal to any sequence of equal items."""

    __slots__ = ("_make", "_source")

    def __init__(self, source: Sequence[Any], make: Callable[[Any], T]) -> None:
        self._source = source
        self._make = make

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self._make(each) for each in self._source[place]]
        return self._make(self._source[place])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))
