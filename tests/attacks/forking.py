"""Handlers that fork: what handlers do with `os.fork` and with pools, and what libraries do behind their backs."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from duetime import App, Context, RetryPolicy

app = App()
ONCE = RetryPolicy.none()


def come_back(way: str) -> None:
    """Do in a fork what makes it come back into the code that called the handler."""
    if way == "exits":
        sys.exit(23)
    if way == "fails to exec":
        os.execv("/nonexistent/program", ["program"])
    if way == "raises":
        raise ValueError("in the fork")


async def fork_and_await(way: str) -> int:
    child = os.fork()
    if child == 0:
        if way == "waits":
            await asyncio.sleep(0)
        come_back(way)
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222 - blocks the event loop, as such code does


def fork(way: str) -> int:
    child = os.fork()
    if child == 0:
        come_back(way)
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task(retry=ONCE)
async def fork_in_a_coroutine(way: str) -> int:
    return await fork_and_await(way)


@app.task(retry=ONCE)
async def fork_after_waiting(way: str) -> int:
    await asyncio.sleep(0.001)
    return await fork_and_await(way)


@app.task(retry=ONCE)
async def fork_in_a_task(way: str) -> int:
    """Fork in an asyncio task of the handler's own: the copy comes back into the event loop, not into the attempt.

    Something to read waits there, which is not for the copy.
    """
    loop, (source, sink), arrived = asyncio.get_running_loop(), os.pipe(), asyncio.Event()

    def receive() -> None:
        os.read(source, 1)
        loop.remove_reader(source)
        arrived.set()

    async def fork_beside_a_message() -> int:
        os.write(sink, b".")
        return await fork_and_await(way)

    loop.add_reader(source, receive)
    await asyncio.sleep(0.01)  # the loop has polled it by then
    code = await asyncio.create_task(fork_beside_a_message())
    await arrived.wait()
    return code


@app.task(retry=ONCE)
def fork_in_a_thread(way: str) -> int:
    return fork(way)


@app.task(retry=ONCE, isolation="process")
def fork_in_a_process(way: str) -> int:
    return fork(way)


@app.task(retry=ONCE, isolation="process")
async def fork_in_a_coroutine_in_a_process(way: str) -> int:
    return await fork_and_await(way)


@app.task(retry=ONCE)
def submit_in_a_fork(text: str) -> int:
    """Use the App in a fork, which is allowed, and end that as one should."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            app.sync(say.now(text=text))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task(retry=ONCE)
def terminate_a_fork() -> int:
    """End a fork as `multiprocessing` ends its own: by SIGTERM, for which the worker has a handler."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b".")
        time.sleep(3_600)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task(retry=ONCE)
async def say(text: str) -> str:
    return text


def _stay(pids: str) -> None:
    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(3_600)


@app.task(retry=RetryPolicy(tries=5, base=0.01, cap=0.01))
def use_a_pool(ctx: Context, pids: str) -> int:
    """Have two processes of a pool at work; the next attempt needs none."""
    if ctx.attempt == 1:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(_stay, [pids, pids]))
    return ctx.attempt


@app.task(retry=RetryPolicy(tries=5, base=0.01, cap=0.01))
def fork_in_c(ctx: Context, pids: str) -> int:
    """Fork as a library does that is not written in Python: nothing of Python's own is told."""
    if ctx.attempt == 1:
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, which the fork therefore has as well
        child = libc.fork()
        while child == 0:
            libc.pause()
        Path(pids).write_text(f"{child}\n")
        time.sleep(3_600)
    return ctx.attempt
