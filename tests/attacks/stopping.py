"""An App that signals its own process at one instant of its start, chosen by STOP_AT."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from duetime import App, Context

INSTANT = os.environ.get("STOP_AT", "")


_stopped: list[str] = []


def stop(instant: str) -> None:
    """Signal this process, once: a second signal would not wait for anything."""
    if instant == INSTANT and not _stopped:
        _stopped.append(instant)
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    stop("lifespan")
    if INSTANT == "lifespan that waits for ever":
        asyncio.get_running_loop().call_later(0.01, stop, INSTANT)
        await asyncio.Event().wait()
    if INSTANT == "lifespan that will not be cancelled":
        stop(INSTANT)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    yield
    Path(os.environ["STOP_LEFT"]).touch()  # noqa: ASYNC240


stop("import")
if INSTANT == "import that swallows it":
    try:
        stop(INSTANT)
    except BaseException as error:
        print(f"swallowed {type(error).__name__}", file=sys.stderr)
if INSTANT == "destructor in an import":

    class Destroyed:
        def __del__(self) -> None:
            stop(INSTANT)  # what is raised in here goes no further

    Destroyed()

app = App(lifespan=lifespan)


@app.task
async def work(ctx: Context) -> None:
    stop("first attempt")
    await asyncio.sleep(0)


if INSTANT in ("registering", "confirming", "claiming"):
    from duetime.store.sqlite.store import SqliteStore

    def signalling(verb: str) -> None:
        original = getattr(SqliteStore, verb)

        async def call(self: SqliteStore, *args: object, **kwargs: object) -> object:
            stop(INSTANT)
            return await original(self, *args, **kwargs)

        setattr(SqliteStore, verb, call)

    signalling({"registering": "register", "confirming": "confirm_gates", "claiming": "claim"}[INSTANT])
