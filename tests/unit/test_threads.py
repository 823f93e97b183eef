"""Threads for `def` handlers: whenever a call is told to stop, it ends, and its thread serves the next one unharmed."""

import asyncio
import gc
import threading
import time
import weakref
from contextvars import ContextVar, copy_context
from functools import partial

import pytest

from duetime.errors import AttemptCancelled
from duetime.targets.python import threads as module
from duetime.targets.python.threads import ThreadCall, Threads
from tests.servers.waiting import PATIENCE


async def test_a_call_that_is_told_to_stop_before_it_has_begun_ends_and_leaves_its_thread_to_others() -> None:
    threads = Threads()
    for _ in range(100):
        call = threads.start(lambda: None)
        call.throw(AttemptCancelled)  # most often the thread still waits for the interpreter's lock
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([call.future])
        assert isinstance(call.future.exception(), AttemptCancelled | None)
    async with asyncio.timeout(PATIENCE):
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
        async with asyncio.timeout(PATIENCE):
            while gone() is not None:  # the thread lets go of what it ran a moment later
                await threads.start(lambda: None).future
    finally:
        gc.enable()
        threads.close()


async def test_calls_that_wait_for_one_another_all_run_at_once() -> None:
    threads, together = Threads(), threading.Barrier(20)
    calls = [threads.start(together.wait, 30) for _ in range(20)]
    assert sorted(await asyncio.gather(*(call.future for call in calls))) == list(range(20))
    threads.close()


async def test_an_end_is_told_although_the_next_call_of_the_same_thread_does_not_end() -> None:
    threads, go_on, ended, made = Threads(), threading.Event(), asyncio.Event(), []

    def note(number: int, value: object, failure: BaseException | None) -> None:
        made.append(number)
        if len(made) == 10:
            ended.set()

    quick = [ThreadCall(threads, lambda: None, copy_context(), partial(note, number)) for number in range(10)]
    stuck = [ThreadCall(threads, go_on.wait, copy_context(), partial(note, number)) for number in range(10, 15)]
    threads.put([*quick[:5], *stuck, *quick[5:]])  # more than one thread may take, and some that wait between them
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    assert sorted(made) == list(range(10))
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        while len(made) < 15:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    threads.close()


async def test_the_ends_of_many_quick_calls_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, everything, left, looks = Threads(), asyncio.Event(), 1_000, 0
    collect = threads._collect

    def counted() -> None:
        nonlocal looks
        looks += 1
        collect()

    def note(value: object, failure: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            everything.set()

    monkeypatch.setattr(threads, "_collect", counted)
    threads.put([ThreadCall(threads, lambda: None, copy_context(), note) for _ in range(1_000)])
    async with asyncio.timeout(PATIENCE):
        await everything.wait()
    assert looks < 500
    threads.close()


async def test_each_call_has_context_variables_of_its_own() -> None:
    threads, number = Threads(), ContextVar("number", default=0)

    def handler() -> int:
        number.set(number.get() + 1)
        return number.get()

    number.set(6)
    calls = [threads.start(handler) for _ in range(10)]
    assert [await call.future for call in calls] == [7] * 10
    assert number.get() == 6
    threads.close()
