"""Reading what attempts printed and logged: from the store, and what has not been shipped yet from this machine's own files."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from duetime.client.reading import without_payloads
from duetime.clock import SECOND, Instant, to_datetime, to_instant
from duetime.errors import Conflict, InvalidValue, StoreUnavailable, TaskNotFound
from duetime.ids import is_id
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.query import MAX_PAGE, MAX_PAGE_BYTES
from duetime.model.task import FINAL, ErrorInfo, State, Task, TaskRecord
from duetime.store import Store
from duetime.store.output import OutputChunk, OutputPosition, OutputSearch
from duetime.targets.output.files import DEFAULT_CAP, cut_line
from duetime.targets.output.spool import pieces, read_unshipped, spool_root, text_of, unshipped_attempts, whole_characters

CHUNKS_AT_ONCE = 64
TAIL = 65_536  # bytes that are read at once from a file
ALL = 1 << 30  # what is not in the store yet, read at once: each read goes through all files of a worker
LOOK_EVERY = 0.25
LOOK_SELDOM = 1.0  # seconds between looks when nothing has come for a while
LATE = 2 * SECOND  # how long after its end an attempt's first output may still come from another machine
VERY_LATE = 10 * SECOND  # the same for the rest, after some output has come
APPENDS = 10  # how often to try again when another process appends at the same time


class AttemptOutput(msgspec.Struct, frozen=True):
    """What one attempt printed and logged. `whole`: no more will come. `error`: why it failed, if it did."""

    attempt: int
    text: str
    whole: bool = True
    error: ErrorInfo | None = None


class OutputPage(msgspec.Struct, frozen=True):
    """The output of some attempts, the first one first, and after which attempt to go on, None on the last page."""

    items: list[AttemptOutput]
    next: int | None


class OutputEnd(msgspec.Struct, frozen=True):
    """The last part of what an attempt printed and logged. `before`: how many bytes of it come before."""

    attempt: int
    text: str
    before: int = 0


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens while output is followed.

    `output`: some text came; following can be resumed at `position`. `attempt`: an attempt began, or, with an `outcome`, ended, with an
    `error` if it failed. `end`: nothing more will come; `state` is the task's.
    """

    kind: Literal["output", "attempt", "end"]
    attempt: int
    text: str = ""
    position: str = ""
    outcome: Outcome | None = None
    state: State | None = None
    error: ErrorInfo | None = None


class LogHit(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose output has all the words that were searched for, and a passage with the first of them."""

    task: str
    handler: str
    collection: str | None
    state: State
    attempt: int
    at: datetime
    passage: str


class LogHits(msgspec.Struct, frozen=True):
    """Some hits, the latest first, and the cursor of the next page, None on the last."""

    items: list[LogHit]
    next: str | None


class Outputs(Protocol):
    """`app.output`: what attempts printed and logged."""

    async def read(self, task: str | Task[Any], attempt: int | None = None) -> list[AttemptOutput]:
        """Return what the attempts of a task, or one of them, have printed and logged so far, the first one first.

        Attempts without output are left out, unless they failed.
        """
        return (await self.page(task, attempt=attempt, limit=None)).items

    async def page(self, task: str | Task[Any], *, attempt: int | None = None, after: int = 0, limit: int | None = 20) -> OutputPage:
        """Return the output of up to `limit` attempts after a given attempt number; of fewer where it is large, but of one at least."""
        ...

    async def ends(self, task: str | Task[Any], *, attempts: int, size: int) -> list[OutputEnd]:
        """Return about the last `size` bytes of the output of each of the newest attempts, the first one first, however much there is."""
        ...

    def follow(self, task: str | Task[Any], attempt: int | None = None, *, after: str | None = None) -> AsyncIterator[OutputEvent]:
        """Yield the output of a task as it comes, attempt by attempt, until the task, or the one attempt, is over.

        `after` is the position of an earlier event, to resume there.
        """
        ...

    async def search(
        self,
        words: str,
        *,
        handler: str | None = None,
        collection: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> LogHits:
        """Find attempts whose output contains all the given words, the latest first. "Phrases" and prefixes* are allowed."""
        ...

    async def keep(self, task: str, attempt: int, text: str) -> None:
        """Append output that was sent to a server, up to the cap. The caller has checked that the attempt is the sender's.

        Raises TaskNotFound if there is no such task any more, Conflict if its output is complete, and StoreUnavailable if other writers
        won every time.
        """
        ...


class LocalOutputs(Outputs):
    """What attempts printed and logged, from a store. `setting` is the App's `output`: where this machine's workers gather it, or off."""

    def __init__(self, store: Store, *, setting: str | None = None, cap: int = DEFAULT_CAP, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._setting = setting
        self._cap = cap
        self._opened = opened

    async def page(self, task: str | Task[Any], *, attempt: int | None = None, after: int = 0, limit: int | None = 20) -> OutputPage:
        record = await self._record(task)
        after = after if attempt is None else max(after, attempt - 1)
        errors, until = await self._failures(record, after, limit)
        printed = set(await self._attempts(record))
        found = {number for number in printed | errors.keys() if number > after and attempt in (None, number)}
        numbers = sorted(number for number in found if until is None or number <= until)
        items: list[AttemptOutput] = []
        left = MAX_PAGE_BYTES
        for index, number in enumerate(numbers):
            if limit is not None and (index == limit or left <= 0):
                return OutputPage(items, numbers[index - 1])
            item = await self._whole(record, number) if number in printed else AttemptOutput(number, "")
            item = msgspec.structs.replace(item, error=errors.get(number))
            left -= len(item.text)
            if item.text or item.error:
                items.append(item)
        return OutputPage(items, until if attempt is None else None)

    async def ends(self, task: str | Task[Any], *, attempts: int, size: int) -> list[OutputEnd]:
        record = await self._record(task)
        kept = {each.attempt: each.size for each in await self._store.kept_output(record.id)}
        newest = [number for number in await self._attempts(record) if number > record.attempt - attempts]
        return [await self._end(record, number, max(0, kept.get(number, 0) - size), size) for number in newest]

    async def follow(self, task: str | Task[Any], attempt: int | None = None, *, after: str | None = None) -> AsyncIterator[OutputEvent]:
        begin = OutputPosition() if after is None else read_position(after)
        record = await self._record(task)
        number = attempt or begin.attempt or await self._first(record)
        while True:
            follower = _Follower(self, record.id, number, begin.offset if begin.attempt == number else 0)
            async for event in follower.events(alone=attempt is not None):
                yield event
            record = follower.record
            if attempt is not None or (record.state in FINAL and number >= record.attempt):
                yield OutputEvent(kind="end", attempt=number, position=follower.position, state=record.state)
                return
            number += 1

    async def search(
        self,
        words: str,
        *,
        handler: str | None = None,
        collection: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> LogHits:
        search = OutputSearch(
            words=words,
            handler=handler,
            collection=collection,
            after=None if after is None else to_instant(after, "after"),
            before=None if before is None else to_instant(before, "before"),
            limit=limit,
            cursor=cursor,
        )
        await self._opened()
        hits = await self._store.search_output(search)
        records = await without_payloads(self._store, [hit.task for hit in hits.items])
        return LogHits(
            [
                LogHit(
                    task=hit.task,
                    handler=record.handler,
                    collection=record.collection,
                    state=record.state,
                    attempt=hit.attempt,
                    at=to_datetime(hit.kept_at),
                    passage=hit.passage,
                )
                for hit, record in zip(hits.items, records, strict=True)
                if record is not None  # it was pruned in between
            ],
            hits.next,
        )

    async def keep(self, task: str, attempt: int, text: str) -> None:
        await self._opened()
        size = next((kept.size for kept in await self._store.kept_output(task) if kept.attempt == attempt), 0)
        for _ in range(APPENDS):
            chunks = self._chunks(task, attempt, size, text)
            if not chunks:
                return
            kept = (await self._store.keep_output(chunks))[0]
            if kept is None:
                raise TaskNotFound(f"there is no task {task}")
            if kept == chunks[0].start:
                raise Conflict(f"the output of attempt {attempt} of task {task} is complete; nothing more is kept of it")
            if kept >= chunks[-1].end:  # ours, or output of the same length by another process that was faster
                found = await self._store.output(task, attempt, OutputPosition(attempt, size), 1)
                if not found:
                    raise TaskNotFound(f"there is no task {task} any more")
                if found[0].text == chunks[0].text:
                    return
            size = kept
        raise StoreUnavailable(
            f"others appended to the output of attempt {attempt} of task {task} {APPENDS} times meanwhile; this was not kept, send it again"
        )

    def _chunks(self, task: str, attempt: int, start: int, text: str) -> list[OutputChunk]:
        data = text.encode("utf-8", "backslashreplace")
        left = self._cap - start
        if left < 0:
            return []
        if len(data) > left:
            data = data[:left]
            data = data[: whole_characters(data)] + cut_line(self._cap)
        chunks = []
        for piece in pieces(data):
            chunks.append(OutputChunk(task, attempt, start, text_of(piece)))
            start += len(piece)
        return chunks

    # ---- facts ----

    async def _record(self, task: str | Task[Any]) -> TaskRecord:
        task_id = task if isinstance(task, str) else task.id
        await self._opened()
        [record] = await self._store.get([task_id])
        if record is None:
            raise TaskNotFound(f"there is no task {task_id[:100]}")
        return record

    async def _attempts(self, record: TaskRecord) -> list[int]:
        """List the attempts with output, in the store or still in a file here."""
        kept = {each.attempt: each.whole for each in await self._store.kept_output(record.id)}
        local = await asyncio.to_thread(self._local_attempts, record, {number for number, whole in kept.items() if whole})
        found = kept.keys() | local
        if not found.issuperset(range(1, record.attempt + 1)):  # it may have been shipped between the two looks
            found |= {each.attempt for each in await self._store.kept_output(record.id)}
        return sorted(found)

    def _local_attempts(self, record: TaskRecord, known: set[int]) -> set[int]:
        root = spool_root(self._setting, self._store.output_folder, self._store.url)
        if root is None or not is_id(record.id):
            return set()
        newest = range(max(1, record.attempt - 20), record.attempt + 1)
        return unshipped_attempts(root, record.id, [number for number in newest if number not in known])

    async def _first(self, record: TaskRecord) -> int:
        """Return the attempt to begin with: the first that has output or failed, or the newest that may still have some."""
        errors, _ = await self._failures(record, 0, MAX_PAGE)
        return min((*await self._attempts(record), *errors), default=max(1, record.attempt))

    async def _failures(self, record: TaskRecord, after: int, limit: int | None) -> tuple[dict[int, ErrorInfo], int | None]:
        """Return why attempts beyond a number failed, and up to which number these are all; None if there are no more."""
        found = some = await self._store.attempts(record.id, after=after, limit=limit)
        while some and limit is None:
            some = await self._store.attempts(record.id, after=some[-1].attempt)
            found = [*found, *some]
        errors = {each.attempt: error for each in found if (error := failure_of(each)) is not None}
        return errors, found[-1].attempt if limit is not None and found and found[-1].attempt < record.attempt else None

    async def _whole(self, record: TaskRecord, attempt: int) -> AttemptOutput:
        over = record.attempt != attempt or record.state is not State.RUNNING
        parts: list[str] = []
        offset = 0
        while True:
            more = await self._more(record.id, attempt, offset, over=over)
            if not more.text:
                return AttemptOutput(attempt, "".join(parts), more.complete)
            parts.append(more.text)
            offset += len(more.text.encode())
            if more.complete:
                return AttemptOutput(attempt, "".join(parts), True)

    async def _end(self, record: TaskRecord, attempt: int, offset: int, size: int) -> OutputEnd:
        """Read an attempt's output from about an offset on, and keep what is last."""
        over = record.attempt != attempt or record.state is not State.RUNNING
        if offset:  # from the start of a chunk: an offset of ours may lie within a character
            chunks = await self._store.output(record.id, attempt, OutputPosition(attempt, offset), 1)
            offset = chunks[0].start if chunks else 0
        parts: deque[bytes] = deque()
        before, held = offset, 0
        while True:
            more = await self._more(record.id, attempt, before + held, over=over, tail=ALL)
            if more.text:
                text = more.text.encode()
                cut = max(0, len(text) - 2 * size)
                while cut and text[cut] & 0xC0 == 0x80:  # within a character
                    cut -= 1
                if cut:
                    before, held = before + held + cut, 0
                    parts.clear()
                parts.append(text[cut:])
                held += len(parts[-1])
            while parts and held - len(parts[0]) >= size:
                held -= len(parts[0])
                before += len(parts.popleft())
            if more.complete or not more.text:
                return OutputEnd(attempt, b"".join(parts).decode(), before)

    async def _more(self, task: str, attempt: int, offset: int, *, over: bool, tail: int = TAIL) -> _More:
        """Read the output after an offset: from the store, and after that from the file, if it is on this machine."""
        chunks = await self._store.output(task, attempt, OutputPosition(attempt, offset), CHUNKS_AT_ONCE)
        data = b"".join(chunk.text.encode() for chunk in chunks)
        if chunks:
            data = data[max(0, offset - chunks[0].start) :]
        if len(chunks) == CHUNKS_AT_ONCE or (chunks and chunks[-1].last):
            return _More(data.decode(), chunks[-1].last)
        unshipped = await asyncio.to_thread(self._tail, task, attempt, offset + len(data), over, tail)
        if unshipped is not None:
            return _More(data.decode() + unshipped.text, unshipped.complete)
        if data:
            return _More(data.decode(), False)
        kept = next((each for each in await self._store.kept_output(task) if each.attempt == attempt), None)
        if kept is not None and kept.size > offset:  # it was shipped between the two looks
            return await self._more(task, attempt, offset, over=over, tail=tail)
        return _More("", kept is not None and kept.whole, kept is not None)

    def _tail(self, task: str, attempt: int, offset: int, over: bool, limit: int) -> _More | None:
        root = spool_root(self._setting, self._store.output_folder, self._store.url)
        found = None if root is None or not is_id(task) else read_unshipped(root, task, attempt, offset, limit)
        if found is None:
            return None
        data, all_read = found
        complete = over and all_read
        return _More(text_of(data if complete else data[: whole_characters(data)]), complete)


class _More(msgspec.Struct, frozen=True):
    """What was read. `complete`: the output ends here. `begun`: there is some output at all."""

    text: str
    complete: bool
    begun: bool = True


class _Follower:
    """Follows one attempt."""

    def __init__(self, outputs: LocalOutputs, task: str, attempt: int, offset: int) -> None:
        self._outputs = outputs
        self._store = outputs._store
        self._task = task
        self._attempt = attempt
        self._offset = offset
        self.record: TaskRecord

    @property
    def position(self) -> str:
        return f"{self._attempt}-{self._offset}"

    async def events(self, *, alone: bool) -> AsyncIterator[OutputEvent]:
        """Yield events until the attempt is over and all its output was yielded, or no more can be expected."""
        pause, begun, ended = LOOK_EVERY, False, None
        while True:
            # checked before reading, so that everything that was written before the end is seen
            self.record = await self._outputs._record(self._task)
            if ended is None:
                ended = await self._ended()
            if not begun and self.record.attempt >= self._attempt:
                begun = True
                yield OutputEvent(kind="attempt", attempt=self._attempt, position=self.position)
            if not begun and self.record.state in FINAL:
                return
            more = await self._outputs._more(self._task, self._attempt, self._offset, over=ended is not None) if begun else _More("", False)
            if more.text:
                self._offset += len(more.text.encode())
                pause = LOOK_EVERY
                yield OutputEvent(kind="output", attempt=self._attempt, text=more.text, position=self.position)
            if ended is not None and (more.complete or (not more.text and self._is_late(ended, more))):
                yield OutputEvent(
                    kind="attempt", attempt=self._attempt, position=self.position, outcome=ended.outcome, error=failure_of(ended)
                )
                return
            if not more.text:
                await asyncio.sleep(pause)
                pause = min(pause * 1.2, LOOK_SELDOM) if ended is None else LOOK_EVERY

    async def _ended(self) -> AttemptRecord | None:
        record = self.record
        if record.attempt < self._attempt or (record.attempt == self._attempt and record.state is State.RUNNING):
            return None
        for each in await self._store.attempts(self._task, after=self._attempt - 1, limit=1):
            if each.attempt == self._attempt and each.outcome is not None:
                return each
        # an attempt that is over without an event, such as one of which only the number is known
        return AttemptRecord(self._attempt, None, None, None, record.finished_at or self._store.now(), None)

    def _is_late(self, ended: AttemptRecord, more: _More) -> bool:
        """Return whether no more output can be expected, although it was never marked as complete."""
        ended_at: Instant = ended.finished_at or 0
        return self._store.now() >= ended_at + (VERY_LATE if more.begun else LATE)


def failure_of(ended: AttemptRecord) -> ErrorInfo | None:
    """Return why an attempt failed; None if it did not, also if it only asked to run later."""
    return None if ended.outcome is Outcome.RETRY_LATER else ended.error


def read_position(text: str) -> OutputPosition:
    """Parse a position that came from outside."""
    attempt, separator, offset = text.partition("-")
    if not separator or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (attempt, offset)):
        raise InvalidValue(f"position is not one that this output gave out: {text[:80]!r}; begin again without it")
    return OutputPosition(int(attempt), int(offset))
