"""Threads for `def` handlers: whenever a call is told to stop, it ends, and its thread serves the next one unharmed."""

import asyncio
import gc
import threading
import time
import weakref

import pytest

from duetime.errors import AttemptCancelled
from duetime.targets.python import threads as module
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


async def test_cancelling_who_waits_ends_the_wait_only_when_the_code_has_ended() -> None:
    threads, begun, go_on, ended = Threads(), threading.Event(), threading.Event(), []

    def handler() -> None:
        begun.set()
        go_on.wait()
        ended.append(True)

    async def wait() -> None:
        await threads.start(handler).future

    waiting = asyncio.create_task(wait())
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "the wait ended while the code ran"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended
    threads.close()


async def test_a_wait_that_is_cancelled_interrupts_the_code_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THROW_AFTER", 0.01)
    threads, caught = Threads(), []

    def handler() -> None:
        try:
            while True:
                time.sleep(0.001)
        except AttemptCancelled:
            caught.append(True)
            raise

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await threads.start(handler).future
    assert caught
    assert await threads.start(lambda: "next").future == "next"
    threads.close()


async def test_after_closing_nobody_waits_for_code_that_does_not_end() -> None:
    threads, begun, go_on = Threads(), threading.Event(), threading.Event()

    def handler() -> None:
        begun.set()
        go_on.wait()

    call = threads.start(handler)
    await asyncio.to_thread(begun.wait)
    threads.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call.future
    go_on.set()


async def test_a_call_that_has_ended_is_gone_without_the_garbage_collector() -> None:
    threads = Threads()
    gc.disable()
    try:
        call = threads.start(lambda: None)
        await call.future
        gone = weakref.ref(call)
        del call
        await asyncio.sleep(0.01)  # the thread lets go of what it ran
        await threads.start(lambda: None).future
        assert gone() is None
    finally:
        gc.enable()
        threads.close()
