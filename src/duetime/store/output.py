"""The role of the seam that is about what attempts print and log; a part of `store.control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.query import MAX_PAGE

CHUNK = 32_768  # bytes of one chunk: even if all its words have one letter, PostgreSQL can still store the position of each


class OutputPosition(msgspec.Struct, frozen=True, order=True):
    """A position in the output of a task: how many bytes of an attempt's output, in UTF-8, lie before it."""

    attempt: int = 0
    offset: int = 0


class OutputChunk(msgspec.Struct, frozen=True):
    """A piece of an attempt's output. `start` is how many bytes lie before it; `last`: no more will come."""

    task: str
    attempt: int
    start: int
    text: str
    last: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.text.encode())


class KeptOutput(msgspec.Struct, frozen=True):
    """How much of an attempt's output is kept, in bytes, and whether that is all of it."""

    attempt: int
    size: int
    whole: bool
    kept_at: Instant


class OutputSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; all given parts must hold. `words` is as somebody typed it: words, "phrases" and beginnings*.

    `after` (inclusive) and `before` (exclusive) bound when the first output of an attempt was kept.
    """

    words: str
    handler: str | None = None
    collection: str | None = None
    after: Instant | None = None
    before: Instant | None = None
    limit: int = 20
    cursor: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must lie between 1 and {MAX_PAGE}, got {self.limit}")


class OutputHit(msgspec.Struct, frozen=True):
    """An attempt whose output has all the words, with the first passage that has one of them."""

    task: str
    attempt: int
    kept_at: Instant
    passage: str


class OutputHits(msgspec.Struct, frozen=True):
    """Some hits, the latest first, and the cursor of the next page, None on the last."""

    items: list[OutputHit]
    next: str | None


class OutputStore(Protocol):
    """Where the output of attempts lives, until its task is pruned."""

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        """Append chunks, and return for each how many bytes of its attempt's output are stored afterwards.

        A chunk is kept only if it begins exactly where the kept output of its attempt ends and nobody has said that this is all;
        otherwise it changes nothing, and the answer says where to continue. So a repeat is harmless, and of two concurrent writers one
        wins. An empty chunk that is the `last` ends the output where it is. A chunk of a task that the store does not have is answered
        with None. The caller must check whether the attempt exists or still runs. A text may contain any character but NUL.
        """
        ...

    async def kept_output(self, task: str) -> list[KeptOutput]:
        """Return which attempts of a task have output, in order."""
        ...

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        """Return up to `limit` chunks of a task, or of one attempt of it, that reach beyond a position; the first may begin before it.

        In order of attempts and positions. `last` marks the chunk that ends an attempt's output if all of it is kept.
        """
        ...

    async def search_output(self, search: OutputSearch) -> OutputHits:
        """Return one page of attempts whose output has all the words, those whose first output was kept latest first.

        The words may be far apart, but a phrase must be on one line or on lines that were printed together. Case and diacritics are
        ignored. A task whose collection was changed meanwhile may count for either. Raises InvalidValue if there is no word to search
        for, or if this store cannot search.
        """
        ...


def accepted(chunks: Sequence[OutputChunk], kept: Mapping[tuple[str, int], tuple[int, bool]]) -> tuple[list[OutputChunk], list[int | None]]:
    """Decide which chunks to append and what to answer, given the stored size of each known attempt and whether it is complete."""
    state = dict(kept)
    appended = []
    for chunk in chunks:
        name = chunk.task, chunk.attempt
        size, whole = state.get(name, (0, True))
        if chunk.start == size and not whole and (chunk.text or chunk.last):
            state[name] = chunk.end, chunk.last
            appended.append(chunk)
    return appended, [state[name][0] if (name := (chunk.task, chunk.attempt)) in state else None for chunk in chunks]
