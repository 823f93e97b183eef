"""A failing attempt is seen: in the log of the worker with its traceback, and in everything that shows its task."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Context, Fatal, RetryLater, RetryPolicy, State, Task, TaskFailed
from duetime.model.figures import TASKS_FAILED, FigureKey
from duetime.worker.failures import IN_FULL
from tests.servers.waiting import PATIENCE

HERE = os.path.relpath(__file__)
ONCE = RetryPolicy.none()
TWICE = RetryPolicy(tries=2, base=0, jitter=0)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="duetime")


class Refused(Exception):
    pass


def refuse(card: str) -> None:
    raise Refused(f"card {card} refused")  # raised here


LINE = next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# raised here"))
WHERE = f"{HERE}:{LINE} in refuse"


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "duetime.failures"]


async def run(app: App, task: Task[Any]) -> Task[Any]:
    async with app.worker():
        await app.client.wait(task, timeout=PATIENCE)
    return await app.get(task)


@pytest.mark.parametrize("kind", ["coroutine", "waiting coroutine", "thread"])
async def test_each_failed_attempt_is_logged_with_the_exception_itself(app: App, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    if kind == "thread":

        @app.task(retry=TWICE, name="charge")
        def threaded(card: str) -> None:
            refuse(card)

    else:

        @app.task(retry=TWICE, name="charge")
        async def charge(card: str) -> None:
            if kind == "waiting coroutine":
                await asyncio.sleep(0.001)
            refuse(card)

    task = await run(app, await app.handler("charge").now(card="x1"))
    first, last = failures(caplog)
    assert [(record.levelname, vars(record)["duetime_attempt"]) for record in (first, last)] == [("WARNING", 1), ("ERROR", 2)]
    for record in (first, last):
        fields = vars(record)
        assert (fields["duetime_task"], fields["duetime_handler"], fields["duetime_location"]) == (task.id, "charge", WHERE)
        assert record.exc_info is not None
        kind_of_error, error, trace = record.exc_info
        assert (kind_of_error, str(error)) == (Refused, "card x1 refused")
        assert trace is not None
        assert trace.tb_frame.f_code.co_filename == __file__  # the worker's own frames are left out
        assert record.exc_text is not None
        assert "refuse(card)" in record.exc_text
        assert "duetime/worker" not in record.exc_text
    assert task.error is not None
    assert (task.state, task.error.type, task.error.location) == (State.FAILED, "Refused", WHERE)


async def test_a_failure_in_a_sub_process_is_logged_with_the_traceback_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(f"sqlite:///{tmp_path / 'duetime.db'}")

    @app.task(isolation="process", retry=ONCE)
    def fail(kind: str) -> None: ...

    async with app.worker(path="tests.integration.process_handlers:app"):
        task = await fail.now(kind="plain")
        await app.client.wait(task, timeout=PATIENCE)
    [record] = failures(caplog)
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert record.exc_text is not None
    assert "process_handlers.py" in record.exc_text
    assert "duetime/targets" not in record.exc_text
    assert vars(record)["duetime_location"].startswith("tests/integration/process_handlers.py:")
    assert record.exc_text in caplog.text


async def test_a_timeout_shows_where_the_code_was(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(timeout=0.05, retry=ONCE)
    async def slow() -> None:
        await asyncio.sleep(3_600)

    @app.task(timeout=0.05, retry=ONCE)
    def slow_thread(ctx: Context) -> None:
        while True:
            ctx.check()
            time.sleep(0.01)

    for handler in (slow, slow_thread):
        ended = await run(app, await app.handler(handler.name).now())
        assert ended.error is not None
        assert (ended.error.type, ended.error.location.startswith(f"{HERE}:")) == ("TimedOut", True)
        assert ended.error.location.endswith(f" in {handler.name}")
        assert "ran longer" in ended.error.message
    assert [record.levelname for record in failures(caplog)] == ["ERROR", "ERROR"]
    assert " timed out in attempt 1 " in failures(caplog)[0].getMessage()


async def test_what_is_no_failure_is_not_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    @app.task
    async def later(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryLater(0)
        return ctx.attempt

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(3_600)

    assert (await run(app, await later.now())).result == 2
    async with app.worker():
        task = await endless.now()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await app.cancel(task)
        await app.client.wait(task, timeout=PATIENCE)
    assert failures(caplog) == []


async def test_a_flood_of_failures_is_logged_in_part_and_counted_in_full(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=ONCE)
    async def charge(number: int) -> None:
        refuse(str(number))

    async with app:
        tasks = await app.submit_many([charge.new(number=number) for number in range(500)])
        async with app.worker():
            for task in tasks:
                await app.client.wait(task, timeout=PATIENCE)
        figures = await app.store.figures()
    assert figures[FigureKey(TASKS_FAILED, "charge")] == 500
    *in_full, summary = failures(caplog)
    assert len(in_full) == IN_FULL
    assert f"charge failed {500 - IN_FULL} more times like this: Refused ({WHERE})" in summary.getMessage()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_logged_exception_does_not_wait_for_the_garbage_collector(app: App, no_collector: None) -> None:
    seen: list[weakref.ref[BaseException]] = []
    forget = logging.Filter("nobody")
    logging.getLogger("duetime.failures").addFilter(forget)  # pytest keeps the records that it is shown

    @app.task(retry=ONCE)
    async def charge() -> None:
        error = Refused("no")
        seen.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    try:
        async with app.worker():
            await app.client.wait(await charge.now(), timeout=PATIENCE)
            assert seen[0]() is None
    finally:
        logging.getLogger("duetime.failures").removeFilter(forget)


async def test_python_shows_the_error_of_each_attempt_and_where_it_was(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=3, base=0, jitter=0))
    async def charge(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("not reachable")
        refuse("x2")

    task = await run(app, await charge.now())
    attempts = [attempt.error for attempt in await app.attempts(task)]
    assert [error is not None and error.type for error in attempts] == ["ConnectionError", "Refused", "Refused"]
    assert all(error is not None and error.location.startswith(f"{HERE}:") for error in attempts)
    [reason] = await app.why(task)
    assert f"(Refused: card x2 refused, at {WHERE})" in reason.text
    with pytest.raises(TaskFailed, match=f"Refused: card x2 refused .{WHERE}."):
        await app.result(task)
    outputs = await app.output.read(task)
    assert [(output.attempt, output.text, output.error) for output in outputs] == [
        (number, "", error) for number, error in enumerate(attempts, 1)
    ]
    ends = [event for event in [event async for event in app.output.follow(task)] if event.outcome is not None]
    assert [event.error for event in ends] == attempts


async def test_why_of_a_task_that_is_tried_again_says_where_it_failed(app: App) -> None:
    begun = asyncio.Event()

    @app.task(retry=RetryPolicy(tries=3, base=3_600))
    async def charge() -> None:
        begun.set()
        refuse("x3")

    async with app.worker():
        task = await charge.now()
        await asyncio.wait_for(begun.wait(), PATIENCE)
    assert WHERE in " ".join(reason.text for reason in await app.why(task))


async def test_a_fatal_error_is_an_error_at_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def charge() -> None:
        raise Fatal("order unknown")

    await run(app, await charge.now())
    [record] = failures(caplog)
    assert (record.levelname, vars(record)["duetime_outcome"], vars(record)["duetime_final"]) == ("ERROR", "fatal", True)


async def test_tasks_that_failed_are_counted_not_their_attempts(app: App) -> None:
    @app.task(retry=TWICE)
    async def charge(ctx: Context, for_good: bool) -> None:
        if for_good or ctx.attempt == 1:
            refuse("x4")

    async with app:
        tasks = [await charge.now(for_good=for_good) for for_good in (True, False, True)]
        async with app.worker():
            for task in tasks:
                await app.client.wait(task, timeout=PATIENCE)
        assert (await app.store.figures())[FigureKey(TASKS_FAILED, "charge")] == 2


async def test_a_log_handler_that_fails_does_not_harm_the_worker(app: App) -> None:
    @app.task(retry=ONCE)
    async def charge(fails: bool) -> str:
        if fails:
            refuse("x5")
        return "done"

    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("the log server is gone")

    broken = Broken()
    logging.getLogger("duetime.failures").addHandler(broken)
    try:
        async with app.worker():
            tasks = [await charge.now(fails=fails) for fails in (True, False)]
            states = [(await app.client.wait(task, timeout=PATIENCE)).state for task in tasks]
    finally:
        logging.getLogger("duetime.failures").removeHandler(broken)
    assert states == [State.FAILED, State.SUCCEEDED]
