"""However a handler ends, its outcome is recorded and nobody else is harmed."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from duetime import App, Context, Next, RetryLater, RetryPolicy, State, Task, TaskFailed
from duetime.clock import LATEST
from duetime.ids import new_id
from duetime.model.lifecycle import succeed
from duetime.model.outcome import Outcome, Settlement, SettleVerdict
from duetime.model.task import NewTask
from duetime.targets.output import DEFAULT_CAP
from duetime.targets.python import threads
from duetime.targets.target import Stop
from duetime.worker import executor, settler
from duetime.worker.worker import Worker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

ONCE = RetryPolicy.none()


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Hostile(Exception):
    def __str__(self) -> str:
        raise self

    def __repr__(self) -> str:
        raise self


class MuteLater(RetryLater):
    def __str__(self) -> str:
        raise ValueError("no words")


class Strange(BaseException):
    pass


def recurse(depth: int = 0) -> NoReturn:
    recurse(depth + 1)


def raises(error: BaseException) -> Callable[[], NoReturn]:
    def function() -> NoReturn:
        raise error

    return function


ENDINGS: dict[str, tuple[Callable[[], NoReturn], str]] = {
    "BaseException": (raises(Strange("x")), "Strange"),
    "SystemExit": (raises(SystemExit(3)), "SystemExit"),
    "KeyboardInterrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    "StopIteration": (raises(StopIteration(1)), "RuntimeError"),
    "StopAsyncIteration": (raises(StopAsyncIteration()), "RuntimeError|StopAsyncIteration"),
    "GeneratorExit": (raises(GeneratorExit()), "RuntimeError"),
    "RecursionError": (recurse, "RecursionError"),
    "MemoryError": (raises(MemoryError()), "MemoryError"),
    "CancelledError": (raises(asyncio.CancelledError()), "CancelledError"),
    "TimeoutError": (raises(TimeoutError("mine")), "TimeoutError"),
    "group": (raises(ExceptionGroup("many", [ValueError("a"), TypeError("b")])), "ExceptionGroup"),
    "mute": (raises(Mute()), "Mute"),
    "hostile": (raises(Hostile()), "Hostile"),
    "lone surrogates": (raises(ValueError("\udcff and \x00")), "ValueError"),
    "enormous": (raises(ValueError("x" * 10_000_000)), "ValueError"),
}


@contextmanager
def declared(app: App) -> Iterator[None]:
    """Declare a handler for each way to end: a coroutine, a function in a thread, and a coroutine that has waited."""
    for name, (function, _) in ENDINGS.items():

        async def at_once(function: Callable[[], NoReturn] = function) -> None:
            function()

        async def later(function: Callable[[], NoReturn] = function) -> None:
            await asyncio.sleep(0.001)
            function()

        def thread(function: Callable[[], NoReturn] = function) -> None:
            function()

        for kind, code in {"at once": at_once, "later": later, "thread": thread}.items():
            app.task(name=f"{name} {kind}", retry=ONCE)(bare(code))
    yield


def bare(code: Any) -> Any:
    """Hide the default argument, which would be a parameter of the handler."""
    if asyncio.iscoroutinefunction(code):

        async def coroutine() -> None:
            await code()

        return coroutine

    def function() -> None:
        code()

    return function


async def test_whatever_a_handler_raises_is_recorded_and_harms_nobody(app: App) -> None:
    @app.task
    async def bystander(ctx: Context) -> str:
        await asyncio.sleep(0.001)
        return "well"

    with declared(app):
        names = [f"{name} {kind}" for name in ENDINGS for kind in ("at once", "later", "thread")]
    async with app.worker():
        tasks = await app.submit_many([app.handler(name).new() for name in names])
        others = await app.submit_many([bystander.new() for _ in range(50)])
        await until("all are final", lambda: all_final(app, [*tasks, *others]))
        for name, task in zip(names, tasks, strict=True):
            ended = await app.get(task)
            assert ended.state is State.FAILED, name
            assert ended.error is not None, name
            assert ended.error.type in ENDINGS[name.rpartition(" ")[0].removesuffix(" at")][1].split("|"), name
            assert len(ended.error.message) <= 2_000, name
            assert ended.tries == 1, name
        assert [await app.result(other) for other in others] == ["well"] * 50
        assert (await app.workers())[0].running == 0


async def all_final(app: App, tasks: Sequence[Task[Any]]) -> bool:
    records = await app.store.get([task.id for task in tasks])
    return all(record is not None and record.state not in (State.PENDING, State.RUNNING) for record in records)


async def test_a_retry_later_without_words_is_still_one(app: App) -> None:
    @app.task
    async def handler(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise MuteLater(timedelta(0))
        return ctx.attempt

    async with app.worker():
        task = await handler.now()
        assert await app.result(task, timeout=PATIENCE) == 2
        assert (await app.get(task)).tries == 0


cyclic: list[object] = []
cyclic.append(cyclic)


class Unwilling:
    """A value whose conversion fails in a way of its own."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("not even its attributes")


@pytest.mark.parametrize(
    "value",
    [object(), cyclic, "\udcff", {1: {object(): 2}}, (number for number in "12"), "x" * 20_000_000, Unwilling(), lambda: None],
    ids=["object", "cyclic", "lone surrogate", "odd key", "generator", "too large", "unwilling", "function"],
)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_result_that_cannot_be_stored_is_fatal_and_never_retried(app: App, value: object, kind: str) -> None:
    if kind == "coroutine":

        @app.task(name="handler")
        async def coroutine() -> Any:
            return value
    else:

        @app.task(name="handler")
        def function() -> Any:
            return value

    async with app.worker():
        task = await app.handler("handler").now()
        await until("it is final", lambda: all_final(app, [task]))
        ended = await app.get(task)
        assert (ended.state, ended.attempt) == (State.FAILED, 1)
        assert ended.error is not None
        assert "the result cannot be stored" in ended.error.message


async def test_a_payload_that_does_not_fit_is_parked_alone_and_the_rest_of_its_batch_starts(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=3, base=0.01))
    async def handler(number: int) -> int:
        return number

    async with app:
        bad = [NewTask[object](id=new_id(), handler="handler", payload=b'{"other": 1}', submitted_by="x") for _ in range(3)]
        good = [handler.new(number) for number in range(20)]
        mixed: list[NewTask[Any]] = [bad[0], *good[:10], bad[1], *good[10:], bad[2]]
        await app.store.add(mixed)
        async with app.worker():
            assert [await app.result(task.id, timeout=PATIENCE) for task in good] == list(range(20))
            for task in bad:
                ended = await app.get(task.id)
                assert (ended.state, ended.parked, ended.tries) == (State.PENDING, True, 0)
                assert ended.error is not None
                assert (ended.error.type, ended.error.message) == ("InvalidPayload", "handler: other: unknown")
                assert ended.attempt == 1, "it is not tried again here: neither payload nor code change"


async def test_a_handler_that_cancels_its_own_task_harms_only_itself(app: App) -> None:
    @app.task(retry=ONCE)
    async def suicidal(wait: bool) -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if wait:
            await asyncio.sleep(1)
        return "returned in time"

    @app.task(concurrency=1_000)
    async def bystander() -> None:
        await asyncio.sleep(0)

    async with app.worker():
        for wait in (False, True):
            new_tasks = [suicidal.new(wait) if number % 10 == 0 else bystander.new() for number in range(300)]
            tasks = await app.submit_many(new_tasks)
            await until("all are final", partial(all_final, app, tasks))
            for task in tasks:
                ended = await app.get(task)
                if ended.handler == "suicidal" and wait:
                    assert ended.error is not None
                    assert ended.error.type == "CancelledError"
                else:
                    assert ended.state is State.SUCCEEDED, ended.error


async def test_a_coroutine_that_swallows_its_cancel_stays_claimed_until_its_code_ends(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.1)
    gate = asyncio.Event()
    starts: list[int] = []

    @app.task(timeout=0.1)
    async def stubborn(ctx: Context) -> str:
        starts.append(ctx.attempt)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "finished after all"

    async with app.worker(), app.worker():
        task = await stubborn.now()
        await until("it was reported", lambda: "its code does not end" in caplog.text)
        assert (await app.get(task)).state is State.RUNNING
        gate.set()
        assert await app.result(task, timeout=PATIENCE) == "finished after all"
    assert starts == [1]


async def test_a_thread_that_outlives_its_timeout_is_never_joined_by_a_second_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "THROW_AFTER", 0.05)
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.1)
    gate = threading.Event()
    running = 0
    most = 0

    @app.task(timeout=0.1, retry=RetryPolicy(tries=3, base=0.0))
    def stubborn(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            while not gate.is_set():
                try:
                    time.sleep(0.01)
                except Exception:
                    continue
        finally:
            running -= 1

    async with app.worker(), app.worker():
        task = await stubborn.now()
        await until("it was reported", lambda: "its code does not end" in caplog.text)
        held = await app.get(task)
        assert (held.state, held.attempt) == (State.RUNNING, 1)
        gate.set()
        await app.result(task, timeout=PATIENCE)
    assert most == 1


async def test_a_middleware_that_gives_up_on_a_thread_is_no_reason_for_a_second_attempt_beside_it(app: App) -> None:
    gate, running, most = threading.Event(), 0, 0

    @app.middleware
    async def hurry(ctx: Context, call_next: Next) -> object:
        async with asyncio.timeout(0.02):
            return await call_next()

    @app.task(retry=RetryPolicy(tries=2, base=0.0))
    def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gate.wait(0.5)
        running -= 1

    async with app.worker():
        task = await slow.now()
        with pytest.raises(TaskFailed):
            await app.result(task, timeout=PATIENCE)
    assert most == 1, "two attempts ran at once"


async def test_what_is_thrown_at_a_thread_too_late_does_not_hit_the_next_handler(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THROW_AFTER", 0.0)

    @app.task(timeout=0.02, retry=ONCE, concurrency=4)
    def nearly_late() -> None:
        time.sleep(0.0199)

    @app.task(concurrency=4)
    def innocent() -> int:
        return sum(range(1_000))

    async with app.worker():
        tasks: list[Task[Any]] = []
        for _ in range(20):
            tasks += await app.submit_many([nearly_late.new(), innocent.new(), nearly_late.new(), innocent.new()])
            await asyncio.sleep(0.03)
        await until("all are final", lambda: all_final(app, tasks))
        ended = [await app.get(task) for task in tasks]
    assert {task.state for task in ended if task.handler == "innocent"} == {State.SUCCEEDED}
    assert {task.state for task in ended if task.handler == "nearly_late"} <= {State.SUCCEEDED, State.FAILED}


async def test_middleware_that_fails_or_eats_the_call_ends_only_its_own_attempts(app: App) -> None:
    @app.middleware
    async def layer(ctx: Context, call_next: Next) -> object:
        match ctx.task.collection:
            case "raise":
                raise SystemExit(1)
            case "skip":
                return "skipped"
            case "twice":
                await call_next()
                return await call_next()
        return await call_next()

    @app.task(retry=ONCE)
    def handler() -> str:
        return "done"

    async with app.worker():
        tasks = {collection: await handler.options(collection=collection).now() for collection in ("raise", "skip", "twice", "plain")}
        await until("all are final", lambda: all_final(app, list(tasks.values())))
        assert (await app.get(tasks["raise"])).state is State.FAILED
        assert [await app.result(tasks[collection]) for collection in ("skip", "twice", "plain")] == ["skipped", "done", "done"]


# ---- output ----


async def test_output_without_end_is_cut_and_odd_output_is_kept_readable(app: App) -> None:
    @app.task(timeout=60, retry=ONCE)
    def floods() -> None:
        for _ in range(200):
            print("x" * 100_000)

    @app.task(timeout=1, retry=ONCE)
    async def prints_for_ever() -> None:
        while True:
            print("again and again")
            await asyncio.sleep(0)

    @app.task
    def garbage() -> None:
        sys.stdout.buffer.write(bytes(range(256)) * 10)
        print("\udcff\x00\x1b[31m", end="")
        sys.stderr.write("no newline")

    @app.task
    async def logs(ctx: Context) -> None:
        ctx.log.warning("\udcff %s", "x" * 10)
        logging.getLogger("some.library").error("from a library")

    async with app.worker():
        tasks = await app.submit_many([floods.new(), prints_for_ever.new(), garbage.new(), logs.new()])
        await until("all are final", lambda: all_final(app, tasks))
        written = ["".join(output.text for output in await app.output.read(task)) for task in tasks]
        states = [(await app.get(task)).state for task in tasks]
    assert states == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    assert "the rest of the output was cut" in written[0]
    assert all(len(text.encode()) <= DEFAULT_CAP + 200 for text in written)
    assert "again and again" in written[1]
    assert "no newline" in written[2]
    assert "from a library" in written[3]


async def test_a_success_counts_although_the_lease_was_in_doubt_and_only_if_the_attempt_is_still_ours(app: App) -> None:
    """A worker that could not renew stops everything; if it was not taken for dead, nothing that succeeded runs again."""
    begun: list[str] = []

    @app.task
    async def stubborn(name: str) -> str:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return name
        return ""

    async with app.worker() as worker:
        kept, taken = [await stubborn.now(name=name) for name in ("kept", "taken")]
        await until("both run", lambda: len(begun) == 2)
        lost = msgspec.structs.replace(settlement_of(worker, taken.id), outcome=Outcome.LOST, state=State.PENDING, due_at=LATEST)
        assert await app.store.settle(worker.id, [lost]) == [SettleVerdict.ACCEPTED]
        worker.executor.stop_all(Stop.LOST)
        assert await app.result(kept, timeout=PATIENCE) == "kept"
        await until("the other has ended too", lambda: not worker.executor.running and len(worker.settler) == 0)
        await until("it was refused", lambda: worker.settler.stale == 1)
        assert (await app.get(taken.id)).state is State.PENDING
    assert begun == ["kept", "taken"]


def settlement_of(worker: Worker, task: str) -> Settlement:
    attempt = worker.executor.running[task]
    now = attempt.started_at
    return succeed(attempt.claimed, None, None, now, now)


async def test_results_of_many_megabytes_are_written_in_several_batches(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler, "MOST_BYTES", 250_000)
    sizes: list[int] = []
    settle = app.store.settle

    async def counted(worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        sizes.append(sum(len(settlement.result or b"") for settlement in settlements))
        return await settle(worker, settlements)

    monkeypatch.setattr(app.store, "settle", counted)

    @app.task
    async def draw(size: int) -> str:
        return "x" * size

    async with app.worker():
        tasks = await app.submit_many([draw.new(size=size) for size in [100_000] * 30 + [900_000] + [10] * 50])
        for task in tasks:
            assert len(await app.result(task, timeout=PATIENCE)) in (100_000, 900_000, 10)
    assert max(size for size in sizes if size < 900_000) <= 250_000
    assert [size for size in sizes if size > 250_000] == [900_002]  # what is too long for a batch goes alone


async def test_a_worker_that_has_stopped_leaves_no_loop_behind(app: App) -> None:
    before = asyncio.all_tasks()
    async with app:
        async with app.worker():
            assert asyncio.all_tasks() > before
        left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert left == set()
