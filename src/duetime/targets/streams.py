"""Results that a task reads one after the other, and results that it yields.

A parameter of type `Results[int]` takes `group.stream` in a plan. Its payload only says where the results are; the attempt reads them in
pages while it iterates. A handler that yields is performed as one that returns a list. What it yields is kept piece by piece with its
attempt if somebody in its flow reads it, so neither the list nor the payload has to fit into a megabyte.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from duetime.errors import AttemptCancelled, InvalidPayload, InvalidValue, PayloadTooLarge
from duetime.model.flow import FLOW, MAX_MAPPED
from duetime.model.flow_values import RESULTS, Source
from duetime.model.task import MAX_PAYLOAD
from duetime.store.flows import PIECE_ITEMS, NewPiece, PieceVerdict
from duetime.targets.context import Context, current
from duetime.targets.driving import drive, in_loop

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PIECE_BYTES = 100_000  # after which a piece is kept
MOST_BYTES = 1_000_000_000  # that one attempt may yield
PIECES = "$pieces"  # what the result of a task says whose items are kept in pieces: how many there are

Encode = Callable[[object], bytes]


class Results(Generic[T_co]):
    """Results of other tasks, as a parameter of a handler: `sizes: Results[int]` takes `group.stream`, or `node.stream` of a list.

    Iterate over it, `async for size in sizes` in an `async def` and `for size in sizes` in a `def`, as often as you like. It is read in
    pages from the store meanwhile, in the order of the tasks and without those that failed. `Results.of([1, 2, 3])` has values of its
    own, for tests and for submitting the handler alone.
    """

    __slots__ = ("_given", "_read", "_source")

    def __init__(self, source: Source | None, given: Iterable[T_co], read: Callable[[bytes], T_co]) -> None:
        self._source = source
        self._given = given
        self._read = read

    @classmethod
    def of(cls, items: Iterable[T]) -> Results[T]:
        """Return results with these values."""
        return Results(None, list(items), msgspec.json.decode)

    def __repr__(self) -> str:
        return f"<results of {self._source.node}>" if self._source is not None else f"Results.of({self._given!r})"

    async def __aiter__(self) -> AsyncIterator[T_co]:
        if self._source is None:
            for item in self._given:
                yield item
            return
        context, first = _attempt(), 0
        while True:
            page = await context.steps.door.results(context.task.id, self._source, first)
            for raw in page.items:
                yield self._decoded(raw)
            if page.next is None:
                return
            first = page.next

    def __iter__(self) -> Iterator[T_co]:
        if self._source is None:
            yield from self._given
            return
        if in_loop():
            raise InvalidValue("in an async handler results are read with `async for`; a plain `for` would hold up all others")
        context, first = _attempt(), 0
        while True:
            page = drive(context.steps.door.results(context.task.id, self._source, first))
            for raw in page.items:
                yield self._decoded(raw)
            if page.next is None:
                return
            first = page.next

    def _decoded(self, raw: msgspec.Raw) -> T_co:
        try:
            return self._read(bytes(raw))
        except msgspec.MsgspecError as error:
            node = self._source.node if self._source is not None else ""
            raise InvalidPayload(f"a result of {node} does not fit: {error}") from None

    def in_json(self) -> Any:
        """Return what stands for it in a payload."""
        return list(self._given) if self._source is None else {RESULTS: self._source}


def _attempt() -> Context:
    try:
        return current()
    except InvalidValue:
        raise InvalidValue("results of a flow are read while their task runs, by its own code or a thread that has its context") from None


def is_results(kind: object) -> bool:
    """Return whether a type is `Results[…]`."""
    return kind is Results or get_origin(kind) is Results


def item_type(kind: Any) -> Any:
    """Return the type of the items of `Results[…]`."""
    return next(iter(get_args(kind)), Any)


def results_from(value: object, read: Callable[[bytes], Any], read_all: Callable[[object], list[Any]]) -> Results[Any]:
    """Return results from what stands for them in a payload: a list of values, or where they are."""
    if isinstance(value, dict) and value.keys() == {RESULTS}:
        return Results(msgspec.convert(value[RESULTS], Source), (), read)
    try:
        return Results(None, read_all(value), read)
    except msgspec.ValidationError as error:  # which would say where it is inside of the list only
        raise ValueError(str(error).replace(" - at `$", " - at item `")) from None


class Yielding:
    """What one attempt yields. `add` keeps a piece now and then; `result` is what the task returns in the end.

    What fits into one piece is returned as a list, as by any other handler. So is what nobody reads, if it is no longer than a result may
    be.
    """

    def __init__(self, context: Context, encode: Encode) -> None:
        self._context = context
        self._encode = encode
        self._objects: list[object] = []  # as they were yielded, as long as they may be all
        self._items: list[bytes] = []
        self._size = 0
        self._kept = 0
        self._bytes = 0
        self._read = FLOW in context.task.meta

    async def add(self, item: object) -> None:
        data = self._encode(item)
        self._items.append(data)
        if not self._kept:
            self._objects.append(item)
        self._size += len(data) + 1
        self._bytes += len(data) + 1
        if self._size >= PIECE_BYTES or len(self._items) >= PIECE_ITEMS:
            await self._flush()

    async def result(self) -> object:
        if self._kept:
            if self._items:
                await self._flush()
            return {PIECES: {"items": self._kept, "bytes": self._bytes}}
        return self._objects

    async def _flush(self) -> None:
        if self._read:
            await self._keep()
        if not self._read and self._bytes > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"it has yielded more than the {MAX_PAYLOAD:,} bytes of a result, and nobody in a flow reads it; as a node whose value "
                "another one takes it may yield more"
            )
        if self._kept > MAX_MAPPED or self._bytes > MOST_BYTES:
            raise PayloadTooLarge(f"a task yields at most {MAX_MAPPED:,} items and {MOST_BYTES:,} bytes; yield larger items, or addresses")

    async def _keep(self) -> None:
        context, items = self._context, len(self._items)
        data = b"[" + b",".join(self._items) + b"]"
        piece = NewPiece(task=context.task.id, attempt=context.attempt, first=self._kept, items=items, data=data)
        verdict = await context.steps.door.emit(piece)
        if verdict is PieceVerdict.STALE:
            raise AttemptCancelled(f"attempt {context.attempt} is not the newest any more, so what it yields is not kept")
        if verdict is PieceVerdict.UNREAD:
            self._read = False
        else:
            self._kept += items
            self._items, self._objects, self._size = [], [], 0


async def collected(context: Context, encode: Encode, call: Callable[[], Any]) -> object:
    """Call an async generator function, and return what stands for all that it yields."""
    yielding = Yielding(context, encode)
    generator = call()
    if not hasattr(generator, "__aiter__"):
        raise TypeError(f"an async generator was expected, got {type(generator).__name__}")
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(generator, "aclose"):
            stack.push_async_callback(generator.aclose)
        async for item in generator:
            await yielding.add(item)
    return await yielding.result()


def collected_here(context: Context, encode: Encode, call: Callable[[], Any]) -> object:
    """Do the same with a generator function, in a thread without an event loop."""
    yielding = Yielding(context, encode)
    generator = call()
    with contextlib.ExitStack() as stack:
        if inspect.isgenerator(generator):
            stack.callback(generator.close)
        for item in generator:
            drive(yielding.add(item))
    return drive(yielding.result())


def pieces_said(result: bytes | None, meta: Mapping[str, str]) -> int | None:
    """Return how many items a task has yielded into pieces, if its result says so; they are kept with its flow."""
    if result is None or not result.startswith(b'{"$pieces":') or FLOW not in meta:
        return None
    try:
        return int(msgspec.json.decode(result)[PIECES]["items"])
    except (KeyError, TypeError, ValueError):
        return None
