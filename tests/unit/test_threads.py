"""Threads for `def` handlers: whenever a call is told to stop, it ends, and its thread serves the next one unharmed."""

import asyncio

import pytest

from duetime.errors import AttemptCancelled
from duetime.targets.python.threads import Threads


async def test_a_call_that_is_told_to_stop_before_it_has_begun_ends_and_leaves_its_thread_to_others() -> None:
    threads = Threads()
    for _ in range(100):
        call = threads.start(lambda: None)
        call.throw(AttemptCancelled)  # most often the thread still waits for the interpreter's lock
        async with asyncio.timeout(30):
            await asyncio.wait([call.future])
        assert isinstance(call.future.exception(), AttemptCancelled | None)
    async with asyncio.timeout(30):
        assert await threads.start(lambda: "well").future == "well"
    threads.close()


async def test_a_call_that_has_ended_cannot_be_told_to_stop() -> None:
    threads = Threads()
    call = threads.start(lambda: "done")
    assert await call.future == "done"
    call.throw(AttemptCancelled)
    assert await threads.start(lambda: "next").future == "next"
    threads.close()


async def test_what_a_thread_raises_arrives_where_it_is_awaited() -> None:
    threads = Threads()

    def handler() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await threads.start(handler).future
    threads.close()
