"""Handlers that tests run in sub-processes, in an app that has only what a child needs."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn

import msgspec

from duetime.errors import Fatal, InvalidPayload, RetryLater
from duetime.model.retry import RetryPolicy
from duetime.targets.context import Context, current
from duetime.targets.python.function import PythonFunction
from duetime.targets.python.middleware import Middleware, Next
from duetime.targets.spec import HandlerSpec

QUIET = "import signal; signal.pause()"


class Numbers:
    """What the lifespan provides: a number that differs between children, and a counter."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.beats = 0


class AnyObject:
    """Payloads without a schema."""

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        return msgspec.json.encode(kwargs)

    def decode(self, payload: bytes | str) -> dict[str, Any]:
        arguments: dict[str, Any] = msgspec.json.decode(payload)
        if "wrong" in arguments:
            raise InvalidPayload("wrong is not a parameter")
        return arguments

    def decode_result(self, result: bytes | None) -> Any:
        return None if result is None else msgspec.json.decode(result)

    def positional_decoder(self) -> None:
        return None

    def takes_results(self, name: str) -> bool:
        return False

    def upgrades(self) -> str:
        return ""

    def schema(self) -> bytes:
        return b"{}"


class SmallApp:
    """An app as a child sees it."""

    def __init__(self, lifespan: Callable[[], AbstractAsyncContextManager[object]] | None = None) -> None:
        self.specs: dict[str, HandlerSpec] = {}
        self.middlewares: list[Middleware] = []
        self.lifespan = lifespan

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        self.specs[name] = HandlerSpec(
            name=name,
            target=PythonFunction(
                function=function,
                takes_context="ctx" in function.__annotations__,
                is_async=asyncio.iscoroutinefunction(function),
                isolation="process",
            ),
            payloads=AnyObject(),
            retry=RetryPolicy(never=(KeyError,)),
        )
        return function


@asynccontextmanager
async def resources() -> AsyncIterator[Numbers]:
    numbers = Numbers()

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.01)
            numbers.beats += 1

    beating = asyncio.get_running_loop().create_task(beat())
    yield numbers
    beating.cancel()
    if path := os.environ.get("LEFT_FILE"):
        with open(path, "a") as file:  # noqa: ASYNC230 - nothing else runs any more
            file.write(f"{os.getpid()}\n")


app = SmallApp(resources)
layered = SmallApp()
silent = SmallApp()
nothing = object()


@app.task
async def echo(ctx: Context, **arguments: object) -> object:
    await asyncio.sleep(0)
    assert current() is ctx
    return {**arguments, "attempt": ctx.attempt, "key": ctx.idempotency_key, "pid": os.getpid()}


@app.task
def plain(ctx: Context, number: int) -> dict[str, object]:
    """Do what only a main thread without a running event loop may do."""
    assert current() is ctx
    assert threading.current_thread() is threading.main_thread()
    return {"double": asyncio.run(_double(number)), "group": os.getpgrp() == os.getpid()}


async def _double(number: int) -> int:
    return number * 2


@app.task
def lifespan_facts(ctx: Context) -> dict[str, object]:
    numbers = ctx.get(Numbers)
    return {"own": numbers.pid == os.getpid(), "beats": numbers.beats}


@app.task
def fail(kind: str) -> NoReturn:
    kinds: dict[str, BaseException] = {
        "fatal": Fatal("order unknown"),
        "later": RetryLater(90, "a lone \ud800 surrogate"),
        "never": KeyError("x"),
        "value": ValueError("lone \ud800 surrogate"),
        "exit": SystemExit(3),
        "stop": StopIteration(),
    }
    raise kinds[kind]


@app.task
async def fail_async(kind: str) -> None:
    fail(kind)


@app.task
def not_json() -> object:
    return object()


@app.task
def die(how: str) -> None:
    print("last words")
    if how == "exit":
        os._exit(7)
    if how == "forked holder":
        if os.fork() == 0:  # holds every descriptor of the child, the socket too
            signal.pause()
        os._exit(7)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def scribble(ctx: Context, data: str) -> None:
    """Write to the descriptor that carries frames, as code that misuses descriptors would."""
    os.write(int(sys.argv[2]), bytes.fromhex(data))
    time.sleep(60)


@app.task
async def sleep_long(note: str) -> None:
    with open(note, "w") as file:  # noqa: ASYNC230 - no one else runs here
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(600)


@app.task
async def wait_for(note: str, word: str) -> str:
    with open(note, "w") as file:  # noqa: ASYNC230 - no one else runs here
        file.write(f"{os.getpid()}\n")
    while not os.path.exists(word):  # noqa: ASYNC110, ASYNC240 - only a file can tell
        await asyncio.sleep(0.01)
    return "done"


@app.task
def block(note: str, hold_gil: bool = False) -> None:
    """Note the pids of this process and of one that it started, and never return."""
    with subprocess.Popen([sys.executable, "-c", QUIET]) as grandchild:
        with open(f"{note}.new", "w") as file:
            file.write(f"{os.getpid()}\n{grandchild.pid}\n")
        os.rename(f"{note}.new", note)
        if hold_gil:
            re.match("(a+)+$", "a" * 64 + "b")


@app.task
async def report(ctx: Context, steps: int) -> None:
    for step in range(1, steps + 1):
        ctx.progress(step / steps, f"step {step} \ud800")


@app.task
async def report_then_wait(ctx: Context) -> None:
    ctx.progress(0.1, "first")
    ctx.progress(0.2, "second")
    await asyncio.sleep(600)


@app.task
def talk() -> None:
    """Print and log in every way that there is."""
    print("printed ✓")
    print("to stderr", file=sys.stderr)
    sys.stdout.buffer.write(b"from the buffer\n")
    sys.stdout.flush()
    os.write(1, b"from C\n")
    subprocess.run(["sh", "-c", "echo from a sub-process; echo and its stderr >&2"], check=True)
    thread = threading.Thread(target=print, args=("from a thread",))
    thread.start()
    thread.join()
    logging.getLogger("shop").warning("logged %s", "warning")
    print("no newline at the end", end="")


@app.task
def log(ctx: Context) -> None:
    ctx.log.info("progress of the work")


@app.task
def quiet() -> None:
    pass


@app.task
def flood(lines: int) -> int:
    for number in range(lines):
        print(f"{number:099d}")
    subprocess.run(["sh", "-c", "yes | head -c 3000000"], check=True)
    return lines


@layered.task
def add(ctx: Context, left: int, right: int) -> int:
    if left < 0:
        raise ValueError("negative")
    print("adding")
    return left + right


@layered.task
async def add_async(left: int, right: int) -> int:
    return left + right


async def twice(ctx: Context, call_next: Next) -> object:
    await asyncio.sleep(0)
    return [await call_next(), await call_next()]


async def forgiving(ctx: Context, call_next: Next) -> object:
    try:
        return await call_next()
    except ValueError as error:
        return str(error)


layered.middlewares += [twice, forgiving]
