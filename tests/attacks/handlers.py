"""Handlers that start processes, for attacks on real workers. The processes write down that they live, until they are killed."""

import asyncio
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from duetime import App, Context, RetryPolicy
from tests.chaos.journal import WORKER, Journal

os.environ.setdefault(WORKER, str(os.getpid()))
app = App()
journal = Journal(Path(os.environ["CHAOS_JOURNAL"]))
SIGNS = journal.path.parent / "signs"
AT_ONCE = RetryPolicy(tries=5, base=0.01, cap=0.01)

# Appends "attempt pid monotonic-time" again and again.
_LIVE = """
import os, sys, time
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        file.write(f"{sys.argv[2]} {os.getpid()} {time.monotonic()}\\n")
        time.sleep(0.002)
"""
# A process that nobody finds by its parent, its group or its session.
_DAEMON = "import os, sys\nos.setsid()\nos.fork() and os._exit(0)\nos.setsid()\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def command(ctx: Context, kind: str) -> list[str]:
    live = ["-S", "-c", _LIVE, str(SIGNS), str(ctx.attempt)]
    if kind == "daemon":
        return [sys.executable, "-S", "-c", f"import os\nos.fork() and os._exit(0)\n{_DAEMON}", *live]
    return [*(["setsid"] if kind == "session" else []), sys.executable, *live]


def has_signs(ctx: Context) -> bool:
    return SIGNS.exists() and f"\n{ctx.attempt} " in f"\n{SIGNS.read_text()}"


@app.task(retry=AT_ONCE, timeout=300)
async def coroutine(ctx: Context, kind: str) -> None:
    """Start a process in the first attempt, and wait for ever."""
    with journal.attempt(ctx):
        if ctx.attempt == 1:
            await asyncio.create_subprocess_shell(shlex.join(command(ctx, kind)))
            await asyncio.sleep(300)


@app.task(retry=AT_ONCE, timeout=300)
def function(ctx: Context, kind: str) -> None:
    """Do the same in a thread."""
    _start_and_wait(ctx, kind)


@app.task(retry=AT_ONCE, timeout=300, isolation="process")
def boxed(ctx: Context, kind: str) -> None:
    """Do the same in a sub-process."""
    _start_and_wait(ctx, kind)


@app.task(retry=AT_ONCE, timeout=300, isolation="process")
def boxed_failing(ctx: Context, kind: str) -> None:
    """Start a process in the first attempt, and fail."""
    with journal.attempt(ctx):
        if ctx.attempt == 1:
            subprocess.Popen(command(ctx, kind))
            while not has_signs(ctx):
                time.sleep(0.01)
            raise ValueError("its process goes on")


@app.task(retry=AT_ONCE)
def starts_daemon(ctx: Context, kind: str) -> None:
    """Start a process and succeed."""
    subprocess.Popen(command(ctx, kind))
    while not has_signs(ctx):
        time.sleep(0.01)


def _start_and_wait(ctx: Context, kind: str) -> None:
    with journal.attempt(ctx):
        if ctx.attempt == 1:
            subprocess.Popen(command(ctx, kind))
            time.sleep(300)
