"""A worker whose handler is quick and runs in sub-processes: they get many attempts at once, and nothing else changes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from duetime import App, State, Task
from duetime.targets.python import conversation, process
from duetime.worker import queues
from duetime.worker.worker import Worker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

SHOP = """
import os
from pathlib import Path
from duetime import App, RetryPolicy

app = App({url!r})
here = Path(__file__).parent

def note(line: str) -> None:
    file = os.open(here / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (line + chr(10)).encode())
    os.close(file)

@app.task(isolation="process", concurrency=2, retry=RetryPolicy.none(), timeout=60)
def work(number: int, how: str = "") -> int:
    note(f"+{{number}}")
    if how == "print":
        print("order", number)
    if how == "fail":
        raise ValueError(number)
    if how == "wait":
        import time
        while not (here / "go").exists():
            time.sleep(0.005)
    note(f"-{{number}}")
    return number
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    (tmp_path / "quick_shop.py").write_text(SHOP.format(url=f"sqlite:///{tmp_path}/duetime.db"))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("quick_shop").app
    del sys.modules["quick_shop"]


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().split() if (tmp_path / "notes").exists() else []


async def has_finished(worker: Worker, count: int) -> bool:
    return worker.executor.finished >= count and not len(worker.settler)


async def submit(app: App, numbers: range, how: str = "") -> list[Task[int]]:
    work = app.handler("work")
    return list(await app.submit_many([work.new(number=number, how=how) for number in numbers]))


async def test_each_runs_once_and_no_more_at_once_than_there_are_slots(app: App, tmp_path: Path) -> None:
    tasks = await submit(app, range(600))
    async with app.worker() as worker:
        await until("all have run", partial(has_finished, worker, 600))
    lines, running, most = notes(tmp_path), 0, 0
    for line in lines:
        running += 1 if line[0] == "+" else -1
        most = max(most, running)
    assert Counter(lines) == Counter(f"{sign}{number}" for number in range(600) for sign in "+-")
    assert most <= 2
    for task in tasks[::60]:
        [attempt] = await app.attempts(task)
        assert attempt.started_at is not None
        assert attempt.finished_at is not None
        assert attempt.started_at < attempt.finished_at


async def test_what_each_prints_is_its_own(app: App) -> None:
    tasks = await submit(app, range(300), "print")
    async with app.worker() as worker:
        await until("all have run", partial(has_finished, worker, 300))
        for number in (0, 150, 299):
            assert [each.text for each in await app.output.read(tasks[number])] == [f"order {number}\n"]


async def test_failures_among_them_are_their_own(app: App) -> None:
    failing = [(await submit(app, range(start, start + 1), "fail"))[0] for start in range(0, 300, 50)]
    others = await submit(app, range(300, 600))
    async with app.worker() as worker:
        await until("all have run", partial(has_finished, worker, 306))
    assert [(await app.get(task)).state for task in failing] == [State.FAILED] * 6
    assert {(await app.get(task)).state for task in others} == {State.SUCCEEDED}


async def test_one_that_waits_holds_up_nobody_behind_it(app: App, tmp_path: Path) -> None:
    async with app.worker() as worker:
        await submit(app, range(100))
        await until("quick ones have run", partial(has_finished, worker, 100))
        [waiting] = await submit(app, range(100, 101), "wait")
        await submit(app, range(101, 301))
        await until("all others have run", partial(has_finished, worker, 300))
        (tmp_path / "go").touch()
        assert await app.result(waiting, timeout=PATIENCE) == 100


async def test_a_gate_that_is_in_force_lets_none_of_them_begin(app: App, tmp_path: Path) -> None:
    await submit(app, range(3_000))
    async with app.worker() as worker:
        await until("some have run", partial(has_finished, worker, 200))
        assert (await app.gates.pause("work", timeout=PATIENCE)).in_force
        begun = {line for line in notes(tmp_path) if line[0] == "+"}
        await until("nothing runs", partial(is_idle, worker))
        assert len({line for line in notes(tmp_path) if line[0] == "+"} - begun) <= 2  # they had begun, and wrote their line after that
        await app.gates.open("work")
        await until("all have run", partial(has_run, tmp_path, 3_000))


async def test_a_worker_that_stops_gives_back_what_has_not_begun(app: App, tmp_path: Path) -> None:
    tasks = await submit(app, range(3_000))
    async with app.worker() as worker:
        await until("some have run", partial(has_finished, worker, 200))
    async with app.worker():
        await until("all have run", partial(has_run, tmp_path, 3_000))
        assert {(await app.get(task)).tries for task in tasks[::100]} == {0}
    times = Counter(notes(tmp_path))
    again = {line[1:] for line, count in times.items() if count > 1}
    assert max(times.values()) <= 2
    assert len(again) <= 2, "only what ran in one of the two slots when the worker stopped may have been interrupted, and run again"


Blocked: TypeAlias = tuple[Worker, list[Task[int]]]


@pytest.fixture
async def blocked(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Blocked]:
    """A worker whose two processes wait, and forty quick tasks that were handed to them and stay there."""
    monkeypatch.setattr(conversation, "STALLED_AFTER", 600)
    for module, name in ((process, "QUICK"), (process, "AHEAD"), (queues, "BUFFERED_TIME")):  # on a busy machine nothing is quick
        monkeypatch.setattr(module, name, 1_000_000_000)
    work = app.handler("work")
    async with app.worker() as worker:
        await submit(app, range(100))
        await until("quick ones have run", partial(has_finished, worker, 100))
        new = [work.new(number=number, how="wait" if number < 102 else "") for number in range(100, 142)]
        tasks = list(await app.submit_many(new))
        await until("all are handed over", partial(has_running, worker, 42))
        await until("two wait", partial(has_begun, tmp_path, {"+100", "+101"}))
        yield worker, tasks[2:]


async def test_what_waits_in_a_process_goes_back_when_a_gate_closes(app: App, blocked: Blocked, tmp_path: Path) -> None:
    worker, behind = blocked
    assert (await app.gates.pause("work", timeout=PATIENCE)).in_force
    assert len(worker.executor.running) == 2
    (tmp_path / "go").touch()
    await until("nothing runs", partial(is_idle, worker))
    assert len(notes(tmp_path)) == 204
    assert {(await app.get(task)).state for task in behind} == {State.PENDING}


async def test_one_that_is_cancelled_while_it_waits_in_a_process_never_begins(app: App, blocked: Blocked, tmp_path: Path) -> None:
    _, behind = blocked
    assert await app.cancel(behind[20]) == "cancelling"
    await until("it is cancelled", partial(is_cancelled, app, behind[20]))
    (tmp_path / "go").touch()
    await until("the others have run", partial(has_run, tmp_path, 141))
    assert "+122" not in notes(tmp_path)
    assert (await app.attempts(behind[20]))[0].started_at is None


async def test_a_worker_that_drains_gives_back_what_waits_in_its_processes(app: App, blocked: Blocked, tmp_path: Path) -> None:
    worker, behind = blocked
    worker.executor.hold_starts()
    assert len(worker.executor.running) == 2
    (tmp_path / "go").touch()
    await until("nothing runs", partial(is_idle, worker))
    assert len(notes(tmp_path)) == 204
    assert {(await app.get(task)).tries for task in behind} == {0}


async def test_processes_that_die_lose_nothing_but_what_they_ran(app: App, tmp_path: Path) -> None:
    await submit(app, range(2_000))
    async with app.worker() as worker:
        await until("some have run", partial(has_finished, worker, 200))
        children = worker.executor.host.children
        assert children is not None
        for child in set(children._performing.values()):
            os.kill(child._process.pid, signal.SIGKILL)
        await until("all have begun", partial(has_begun, tmp_path, {f"+{number}" for number in range(2_000)}))
        await until("nothing runs", partial(is_idle, worker))
    crashed = [task async for task in app.tasks(state="failed")]
    assert len(crashed) <= 2


async def is_cancelled(app: App, task: Task[int]) -> bool:
    return (await app.get(task)).state is State.CANCELLED


async def has_running(worker: Worker, count: int) -> bool:
    return len(worker.executor.running) == count and not worker.executor.queues.queued


async def is_idle(worker: Worker) -> bool:
    return not worker.executor.running


async def has_run(tmp_path: Path, count: int) -> bool:
    return sum(line[0] == "-" for line in notes(tmp_path)) >= count


async def has_begun(tmp_path: Path, lines: set[str]) -> bool:
    return lines <= set(notes(tmp_path))
