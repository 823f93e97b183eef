"""A sequence whose items are made on access: a caller that submits thousands of tasks at once rarely reads each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T]):
    """The items of `source`, each converted by `make` on every access. Equal to any sequence of equal items."""

    __slots__ = ("_make", "_source")

    def __init__(self, source: Sequence[Any], make: Callable[[Any], T]) -> None:
        self._source = source
        self._make = make

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(each) for each in self._source[index]]
        return self._make(self._source[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))
