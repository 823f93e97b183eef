"""Output that pull workers send, when something is in its way: it is stored, or the answer says that it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from duetime.client.output import LocalOutputs, Outputs
from duetime.clock import SECOND
from duetime.errors import Conflict, StoreUnavailable, TaskNotFound
from duetime.model.task import State
from duetime.store.output import OutputChunk, OutputPosition
from duetime.store.sqlite.store import SqliteStore
from tests.conformance.build import add


class Busy(SqliteStore):
    """A store in which others do something before and after each write of output."""

    before: Callable[[], Awaitable[object]] | None = None
    after: Callable[[], Awaitable[object]] | None = None

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        if self.before is not None:
            await self.before()
        answers = await super().keep_output(chunks)
        if self.after is not None:
            await self.after()
        return answers

    async def append(self, task: str, text: str) -> None:
        size = sum(kept.size for kept in await self.kept_output(task))
        await super().keep_output([OutputChunk(task, 1, size, text)])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Busy]:
    store = Busy(f"{tmp_path}/store.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def task(store: Busy) -> str:
    return (await add(store, due_at=store.now() + 60 * SECOND)).id


@pytest.fixture
def outputs(store: Busy) -> Outputs:
    async def opened() -> None: ...

    return LocalOutputs(store, setting="off", opened=opened)


async def test_who_loses_every_race_is_told_that_nothing_was_kept(store: Busy, outputs: Outputs, task: str) -> None:
    store.before = lambda: store.append(task, "theirs\n")
    with pytest.raises(StoreUnavailable, match=r"others appended to the output .* send it again"):
        await outputs.keep(task, 1, "ours\n")
    text = "".join(chunk.text for chunk in await store.output(task, None, OutputPosition(), 100))
    assert "theirs\n" in text
    assert "ours\n" not in text


async def test_output_that_is_complete_takes_no_more_and_says_so(store: Busy, outputs: Outputs, task: str) -> None:
    await outputs.keep(task, 1, "one\n")
    await store.keep_output([OutputChunk(task, 1, 4, "", last=True)])
    with pytest.raises(Conflict, match="is complete"):
        await outputs.keep(task, 1, "two\n")


async def test_a_task_that_is_pruned_meanwhile_is_not_found(store: Busy, outputs: Outputs, task: str) -> None:
    async def prune() -> None:
        await store.cancel([task])
        await store.prune(State.CANCELLED, store.now() + SECOND, 10)

    store.after = prune
    with pytest.raises(TaskNotFound, match=task):
        await outputs.keep(task, 1, "one\n")
