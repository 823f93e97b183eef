"""The handlers that chaos tests run in worker processes; all write down when their code began and ended."""

import asyncio
import os
import re
import resource
import signal
import threading
import time
from pathlib import Path

from duetime import App, Context, Limit, Rate, RetryPolicy
from duetime.targets.python import threads
from duetime.worker import executor, keeper, worker
from tests.chaos import skewed
from tests.chaos.journal import HOLDING, WORKER, Journal

skewed.skew()  # a sub-process begins here
os.environ.setdefault(WORKER, str(os.getpid()))
app = App()
journal = Journal(Path(os.environ["CHAOS_JOURNAL"]))
FOLDER = journal.path.parent
HOLD = FOLDER / HOLDING

# seconds in real life: tests that wait for an attempt to be given up shorten them
threads.THROW_AFTER = float(os.environ.get("CHAOS_THROW_AFTER", threads.THROW_AFTER))
executor.STUCK_AFTER = float(os.environ.get("CHAOS_STUCK_AFTER", executor.STUCK_AFTER))
keeper.HOPELESS_AFTER = float(os.environ.get("CHAOS_HOPELESS_AFTER", keeper.HOPELESS_AFTER))
worker.LAST_WORD = float(os.environ.get("CHAOS_LAST_WORD", worker.LAST_WORD))

if "CHAOS_FILE_LIMIT" in os.environ:

    def follow_the_limit() -> None:
        """Let no file grow as long as the file `full` exists, as on a full disk or over quota; say so by the file `limited`."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        while True:
            full = (FOLDER / "full").exists()
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000 if full else hard, hard))
            if full:
                (FOLDER / "limited").touch()
            time.sleep(0.005)

    threading.Thread(target=follow_the_limit, daemon=True).start()

AT_ONCE = RetryPolicy(tries=5, base=0.01, cap=0.01)


@app.task(concurrency=int(os.environ.get("CHAOS_SLOTS", "8")), retry=AT_ONCE)
async def quick(ctx: Context, seconds: float = 0.0, held: bool = False) -> None:
    """Wait for a moment; if `held`, as long as the test holds it."""
    with journal.attempt(ctx):
        await asyncio.sleep(seconds)
        while held and HOLD.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@app.task(retry=AT_ONCE, limits=[Limit("few", running=3)])
async def limited(ctx: Context, seconds: float = 0.0, held: bool = False) -> None:
    """Wait for a moment, three at once in all workers together; if `held`, as long as the test holds it."""
    with journal.attempt(ctx), journal.within(ctx, "few", 3):
        await asyncio.sleep(seconds)
        while held and HOLD.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@app.task(retry=AT_ONCE, limits=[Limit("per-user", running=1, by="user")])
async def of_user(ctx: Context, user: int, seconds: float = 0.0, held: bool = False) -> None:
    """Wait for a moment, one at a time of each user; if `held`, as long as the test holds it."""
    with journal.attempt(ctx), journal.within(ctx, f"per-user {user}", 1):
        await asyncio.sleep(seconds)
        while held and HOLD.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@app.task(concurrency=4, retry=AT_ONCE, limits=[Limit("vendor", rate=[Rate(1, per=3_600, burst=30)], by="user")])
async def calls(ctx: Context, user: int) -> None:
    """Be one of thirty of each user, and then of one an hour."""
    with journal.attempt(ctx):
        await asyncio.sleep(0.05)


@app.task(retry=AT_ONCE)
async def lists(ctx: Context, length: int) -> list[int]:
    """Return the items of a map."""
    with journal.attempt(ctx):
        return list(range(length))


@app.task(retry=AT_ONCE)
async def echoes(ctx: Context, value: int) -> int:
    """Return what it is given."""
    with journal.attempt(ctx):
        return value


@app.task(retry=AT_ONCE)
async def adds(ctx: Context, numbers: list[int]) -> int:
    """Return a sum, the last of a flow."""
    with journal.attempt(ctx):
        return sum(numbers)


@app.task(retry=AT_ONCE)
async def stepwise(ctx: Context, steps: int = 3, held_after: int = -1) -> list[int]:
    """Go step by step, each written down; after one of them wait as long as the test holds it."""
    with journal.attempt(ctx):
        values = []
        for number in range(steps):
            values.append(await ctx.step(f"s{number}", note_step, ctx.task.id, number, ctx.attempt))
            while number == held_after and HOLD.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return values


def note_step(task: str, number: int, attempt: int) -> int:
    with (FOLDER / "steps").open("a") as notes:
        notes.write(f"{task} {number} {attempt}\n")
    return attempt


@app.task(concurrency=50, retry=AT_ONCE)
async def bulk(ctx: Context) -> None:
    """Be one of very many that do nothing."""
    with journal.attempt(ctx):
        pass


@app.task(concurrency=8, retry=AT_ONCE)
def threaded(ctx: Context, seconds: float = 0.0, held: bool = False) -> int:
    """Wait in a thread, ready to stop."""
    with journal.attempt(ctx):
        end = time.monotonic() + seconds
        while time.monotonic() < end or (held and HOLD.exists()):
            ctx.check()
            time.sleep(0.005)
    return ctx.fence


@app.task(concurrency=4, isolation="process", retry=AT_ONCE)
def boxed(ctx: Context, seconds: float = 0.0, held: bool = False) -> int:
    """Wait in a sub-process."""
    with journal.attempt(ctx):
        time.sleep(seconds)
        while held and HOLD.exists():
            time.sleep(0.01)
    return ctx.fence


@app.task(concurrency=8, retry=AT_ONCE)
async def stumbles(ctx: Context) -> int:
    """Fail twice before it succeeds."""
    with journal.attempt(ctx):
        await asyncio.sleep(0.01)
        if ctx.task.tries < 2:
            raise RuntimeError("not yet")
    return ctx.fence


@app.task(concurrency=200, retry=AT_ONCE, timeout=100)
async def crowd(ctx: Context, poison: str = "", wait_for: int = 0) -> None:
    """Be one of many; the poisonous one takes its process down as soon as it is surrounded."""
    with journal.attempt(ctx):
        if not poison:
            await asyncio.sleep(30 if ctx.attempt == 1 else 0.02)
            return
        while ctx.attempt == 1 and journal.path.read_bytes().count(b'"kind":"start"') < wait_for:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os._exit(9)


@app.task(retry=AT_ONCE)
async def exits_on_the_loop(ctx: Context, times: int = 99) -> int:
    """End the process that it runs in."""
    with journal.attempt(ctx):
        if ctx.attempt <= times:
            os._exit(7)
        return os.getpid()


@app.task(retry=AT_ONCE)
def exits_in_a_thread(ctx: Context, times: int = 99) -> int:
    """End the process from a thread."""
    with journal.attempt(ctx):
        if ctx.attempt <= times:
            os._exit(7)
        return os.getpid()


@app.task(retry=AT_ONCE, isolation="process")
def exits_in_a_child(ctx: Context, times: int = 99) -> int:
    """End the sub-process, as a crash in a C library would."""
    with journal.attempt(ctx):
        if ctx.attempt <= times:
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        return os.getpid()


@app.task(timeout=1, retry=RetryPolicy.none())
async def sleeps_on_the_loop(ctx: Context, seconds: float) -> None:
    """Block the event loop in a system call."""
    with journal.attempt(ctx):
        time.sleep(seconds)  # noqa: ASYNC251 - the fault on purpose


@app.task(timeout=1, retry=RetryPolicy.none())
async def spins_on_the_loop(ctx: Context) -> None:
    """Block the event loop with Python code that never ends."""
    with journal.attempt(ctx):
        number = 0
        while True:
            number += 1


@app.task(timeout=1, retry=RetryPolicy.none())
async def spins_and_will_not_stop(ctx: Context) -> None:
    """Block the event loop for ever and swallow whatever is raised."""
    with journal.attempt(ctx):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass


@app.task(timeout=60, retry=AT_ONCE)
async def sits_on_the_loop(ctx: Context, seconds: float) -> None:
    """Block the event loop for long, but within its timeout."""
    with journal.attempt(ctx):
        time.sleep(seconds)  # noqa: ASYNC251 - the fault on purpose


@app.task(timeout=30, retry=RetryPolicy.none())
async def holds_the_lock_of_the_interpreter(ctx: Context, length: int) -> None:
    """Match a regular expression that backtracks for seconds and lets no other thread run meanwhile."""
    with journal.attempt(ctx):
        re.match(r"(a+)+$", "a" * length + "b")


@app.task(timeout=0.5, retry=RetryPolicy.none())
async def holds_it_beyond_its_timeout(ctx: Context, length: int) -> None:
    with journal.attempt(ctx):
        re.match(r"(a+)+$", "a" * length + "b")


@app.task(timeout=0.5, retry=AT_ONCE)
def never_ends(ctx: Context, patience: float = 3_600) -> None:
    """Ignore every request to stop."""
    with journal.attempt(ctx):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception:
                continue


@app.task(timeout=0.5, retry=RetryPolicy.none())
def ends_when_interrupted(ctx: Context) -> None:
    """Know nothing of ctx, but let exceptions through."""
    with journal.attempt(ctx):
        while True:
            time.sleep(0.01)


@app.task(timeout=3_600, retry=AT_ONCE)
def sleeps_deeply(ctx: Context) -> None:
    """Sit in a system call that nothing interrupts."""
    with journal.attempt(ctx):
        time.sleep(3_600)


@app.task(timeout=3_600, retry=AT_ONCE)
async def cleans_up(ctx: Context, cleaning: float) -> None:
    """Need a moment to put things away when cancelled."""
    with journal.attempt(ctx):
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(cleaning)
