"""The App that the tests' workers run."""

import asyncio
import logging
import os
import time
from pathlib import Path

from duetime import App, Context, Fatal, RetryPolicy
from duetime.runtime import service
from duetime.worker import executor

app = App()

# seconds in real life: a test that waits for a worker to give something up shortens them
executor.STUCK_AFTER = float(os.environ.get("SHOP_STUCK_AFTER", executor.STUCK_AFTER))
service.NO_PROGRESS = float(os.environ.get("SHOP_NO_PROGRESS", service.NO_PROGRESS))


@app.task
async def greet(ctx: Context, name: str, times: int = 1) -> str:
    """Say hello."""
    for number in range(times):
        print(f"hello {name} {number}")
        ctx.progress((number + 1) / times, "greeting")
    ctx.log.info("greeted %s", name)
    return f"hello {name}"


@app.task(retry=RetryPolicy(tries=1))
async def fail(text: str) -> None:
    print("before it fails")
    raise ValueError(text)


@app.task
async def refuse(text: str) -> None:
    raise Fatal(text)


@app.task(retry=RetryPolicy(tries=3, base=0, cap=0))
async def second_time(ctx: Context) -> int:
    print(f"this is attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@app.task(concurrency=1)
async def wait_for(path: str) -> str:
    """Run until a file exists; another one shows that the handler has begun."""
    print("waiting", flush=True)
    Path(f"{path}.awaited").touch()  # noqa: ASYNC240
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return path


@app.task(isolation="process")
def in_child(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(3_600)


@app.task(timeout=0.5, retry=RetryPolicy(tries=1))
def stubborn(path: str) -> None:
    """Never end in the first process that runs it, whatever is raised here."""
    mark = Path(path)
    if mark.exists():
        return
    mark.touch()
    while True:
        try:
            while True:
                time.sleep(0.02)
        except BaseException:
            logging.getLogger(__name__).info("not impressed")


@app.task(isolation="process", retry=RetryPolicy(tries=1))
def fail_in_child(text: str) -> None:
    print("before it fails in a child")
    raise ValueError(text)


@app.task
def log_something(text: str) -> None:
    logging.getLogger("shop.stock").warning("low on %s", text)
    try:
        raise KeyError(text)
    except KeyError:
        logging.getLogger("shop.stock").exception("and it is gone")
