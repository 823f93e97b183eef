"""What attempts printed and logged: pieces beside each other in a hash of the task's. It cannot be searched."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.text_search import read_terms
from duetime.store.output import KeptOutput, OutputChunk, OutputHits, OutputPosition, OutputSearch, accepted
from duetime.store.redis.database import ROUNDS, OpenServer
from duetime.store.redis.records import encode


class Kept(msgspec.Struct):
    """What is kept of an attempt's output: its size, whether that is all, since when, and where each piece starts."""

    size: int
    whole: bool
    kept_at: Instant
    starts: list[int]


_read_kept = msgspec.msgpack.Decoder(dict[int, Kept]).decode


class Output(OpenServer):
    """The output of attempts, until its task is removed."""

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        answers: dict[int, int | None] = {}
        for task in dict.fromkeys(chunk.task for chunk in chunks):
            own = [(index, chunk) for index, chunk in enumerate(chunks) if chunk.task == task]
            for (index, _), answer in zip(own, await self._keep(task, [chunk for _, chunk in own]), strict=True):
                answers[index] = answer
        return [answers[index] for index in range(len(chunks))]

    async def _keep(self, task: str, chunks: Sequence[OutputChunk]) -> list[int | None]:
        for _ in range(ROUNDS):
            facts, raw = await self._opened.call_all([("HGET", self._keys.facts, task), ("HGET", self._keys.output, task)])
            if facts is None:
                return [None] * len(chunks)
            kept = {} if raw is None else _read_kept(raw)
            sizes = {(task, chunk.attempt): (0, False) for chunk in chunks}
            sizes |= {(task, attempt): (each.size, each.whole) for attempt, each in kept.items()}
            appended, answers = accepted(chunks, sizes)
            changes = self._changes()
            changes.expect(self._keys.facts, task, facts)
            changes.expect(self._keys.output, task, raw)
            for chunk in appended:
                own = kept.setdefault(chunk.attempt, Kept(0, False, self.now(), []))
                own.size, own.whole = chunk.end, chunk.last
                if chunk.text:
                    own.starts.append(chunk.start)
                    changes.do("HSET", self._keys.chunks(task), f"{chunk.attempt}:{chunk.start}", chunk.text)
            if appended:
                changes.do("HSET", self._keys.output, task, encode(kept))
            if await self._write(changes):
                return answers
        raise StoreUnavailable(f"the output of task {task} is written by others again and again; repeat the call")

    async def _leave_out(self, task: str, attempt: int) -> None:
        """Remove what an attempt printed that is not kept any more."""
        raw = await self._opened.call("HGET", self._keys.output, task)
        kept = {} if raw is None else _read_kept(raw)
        if attempt in kept:
            own = kept.pop(attempt)
            changes = self._changes()
            changes.expect(self._keys.output, task, raw)
            changes.do("HSET", self._keys.output, task, encode(kept))
            for start in own.starts:
                changes.do("HDEL", self._keys.chunks(task), f"{attempt}:{start}")
            await self._write(changes)

    async def _kept(self, task: str) -> dict[int, Kept]:
        raw = await self._opened.call("HGET", self._keys.output, task)
        return {} if raw is None else _read_kept(raw)

    async def kept_output(self, task: str) -> list[KeptOutput]:
        kept = await self._kept(task)
        return [KeptOutput(attempt, kept[attempt].size, kept[attempt].whole, kept[attempt].kept_at) for attempt in sorted(kept)]

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        kept = await self._kept(task)
        found: list[OutputChunk] = []
        for number in sorted(kept):
            own = kept[number]
            ends = [*own.starts[1:], own.size]
            if attempt in (None, number):
                for start, end in zip(own.starts, ends, strict=True):
                    if OutputPosition(number, end) > after and len(found) < limit:
                        found.append(OutputChunk(task, number, start, "", own.whole and end == own.size))
        if not found:
            return []
        fields = [f"{chunk.attempt}:{chunk.start}" for chunk in found]
        texts: list[bytes | None] = await self._opened.call("HMGET", self._keys.chunks(task), *fields)
        return [
            OutputChunk(chunk.task, chunk.attempt, chunk.start, text.decode(), chunk.last)
            for chunk, text in zip(found, texts, strict=True)
            if text is not None
        ]

    async def search_output(self, search: OutputSearch) -> OutputHits:
        read_terms(search.words)
        raise InvalidValue("a Redis store cannot search in output; use a PostgreSQL or SQLite store if you need to (docs/redis.md)")
