"""Commands a second by one worker, beside a bare loop of `asyncio.create_subprocess_exec` with the same concurrency.

Both run the program `true` with an empty environment, its output read from a pipe. The bare loop does nothing else; the worker claims each
task, passes its payload on, sees to it that nothing of the command is left, and stores how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from functools import partial

from bench.rounds import ROUNDS, Report, answer, in_process, interleave, median, median_ratio
from duetime import App

COMMANDS, CONCURRENCY = 1_500, 16
GOAL = 0.7
PROGRAM = "/bin/true"


async def bare() -> float:
    """Return the commands a second of a bare loop."""
    left = iter(range(COMMANDS))

    async def one_after_the_other() -> None:
        for _ in left:
            process = await asyncio.create_subprocess_exec(
                PROGRAM, env={}, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            await process.communicate()

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(CONCURRENCY)))
    return COMMANDS / (time.perf_counter() - began)


async def commands(url: str) -> float:
    """Return the commands a second of a worker, from the submit to the last end that is stored."""
    app = App(url)
    true = app.command("true", [PROGRAM], concurrency=CONCURRENCY, keep_env=[])
    async with app.worker():
        for task in await app.submit_many([true.new(number=number) for number in range(4 * CONCURRENCY)]):  # supervisors are kept
            await app.result(task, timeout=300)
        began = time.perf_counter()
        last = (await app.submit_many([true.new(number=number) for number in range(COMMANDS)]))[-1]
        await app.result(last, timeout=300)
        while any(counts.running or counts.due for counts in (await app.stats()).handlers):  # noqa: ASYNC110  # other processes may end them
            await asyncio.sleep(0.01)
        return COMMANDS / (time.perf_counter() - began)


def run(report: Report) -> None:
    with contextlib.ExitStack() as folders:

        def worker() -> float:
            folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="commands"))
            return in_process("bench.commands", f"sqlite:///{folder}/bench.db")["rate"]

        found = interleave({"worker": worker, "bare": lambda: in_process("bench.commands")["rate"]}, ROUNDS)
    ratio = median_ratio(found["worker"], found["bare"])
    beside = f"create_subprocess_exec {median(found['bare']):,.0f}/s"
    report.add(f"commands, {CONCURRENCY} at once", f"{median(found['worker']):,.0f}/s", beside, ratio, GOAL)


if __name__ == "__main__":
    answer(rate=asyncio.run(partial(commands, sys.argv[1])() if len(sys.argv) > 1 else bare()))
