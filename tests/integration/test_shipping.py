"""Output on its way from a worker's files into the store: complete, once, and never at an attempt's cost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duetime import App, Context, RetryPolicy, StoreUnavailable, Task
from duetime.client.output import LocalOutputs
from duetime.errors import InvalidValue
from duetime.model.figures import FigureKey
from duetime.model.task import FINAL
from duetime.runtime.service import Alarms
from duetime.store.output import OutputChunk, OutputPosition
from duetime.store.sqlite.store import SqliteStore
from duetime.targets.output.spool import Spool, spool_root
from duetime.worker.shipping import Shipper, begin_shipping
from tests.chaos.fleet import until
from tests.chaos.processes import below_guards
from tests.servers.fixtures import NewPostgres
from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EMOJI = "\U0001f600"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    return tmp_path / "spools"


@pytest.fixture
def app(url: str, spools: Path) -> App:
    return App(url, user="test", output=str(spools))


def left(spools: Path) -> list[Path]:
    return sorted(spools.rglob("*.log"))


def folders(spools: Path) -> list[Path]:
    return sorted(spools.glob("*/*"))


async def kept(app: App, task: Task[object] | str) -> str:
    """Return what the store has, without this machine's files."""
    task_id = task if isinstance(task, str) else task.id
    await app.open()
    return "".join(chunk.text for chunk in await app.store.output(task_id, None, OutputPosition(), 10_000))


async def is_whole(app: App, task: Task[object] | str) -> bool:
    found = await app.store.kept_output(task if isinstance(task, str) else task.id)
    return bool(found) and all(each.whole for each in found)


async def test_output_is_in_the_store_soon_after_the_attempt_and_its_file_is_gone(app: App, spools: Path) -> None:
    @app.task
    async def talk(ctx: Context, name: str) -> None:
        print(f"hello {name}")
        ctx.log.info("greeted")
        await asyncio.sleep(0)
        print("no newline", end="")

    @app.task
    def silent() -> None: ...

    async with app.worker():
        tasks = await app.submit_many([*(talk.new(name=f"number {n}") for n in range(50)), silent.new()])
        await until("all output is whole", lambda: all_whole(app, tasks[:50]))
        await until("no file is left", lambda: left(spools) == [])
        for number, task in enumerate(tasks[:50]):
            first, log, last = (await kept(app, task)).split("\n")
            assert (first, last) == (f"hello number {number}", "no newline")
            assert log.endswith("INFO duetime.task: greeted")
        assert await app.store.kept_output(tasks[50].id) == []
    assert folders(spools) == [], "the worker's folder is gone with it"


async def all_whole(app: App, tasks: Sequence[Task[Any]]) -> bool:
    return all([await is_whole(app, task) for task in tasks])


async def test_output_of_a_running_attempt_is_shipped_too(app: App, spools: Path) -> None:
    go_on = asyncio.Event()

    @app.task
    async def talk() -> None:
        print("before")
        await go_on.wait()
        print("after")

    async with app.worker():
        task = await talk.now()
        await until("the first line is in the store", lambda: has(app, task, "before\n"))
        assert not await is_whole(app, task)
        await until("nothing is kept twice", lambda: left(spools) == [])
        go_on.set()
        await until("the rest is", lambda: has(app, task, "before\nafter\n"))
        await until("it is whole", lambda: is_whole(app, task))


async def has(app: App, task: Task[None], text: str) -> bool:
    return await kept(app, task) == text


async def test_attempts_are_told_apart_and_what_is_left_is_shipped_when_the_worker_stops(app: App, spools: Path) -> None:
    @app.task(retry=RetryPolicy(tries=3, base=0.0))
    async def stumble(ctx: Context) -> None:
        print(f"attempt {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError("again")

    async with app.worker():
        task = await stumble.now()
        await app.result(task, timeout=PATIENCE)
    async with app:
        assert [(each.attempt, each.text, each.whole) for each in await app.output.read(task)] == [
            (number, f"attempt {number}\n", True) for number in (1, 2, 3)
        ]
    assert left(spools) == []


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (EMOJI.encode() * 262_144, None),
        (bytes(range(256)) * 8, "".join(chr(n) if n < 128 else "?" for n in range(256)).replace("\0", "?") * 8),
        (b"\0" * 100_000, "?" * 100_000),
        ("ä".encode()[:1], "?"),
    ],
    ids=["a megabyte of emoji", "every byte", "nothing but NUL", "half a character"],
)
async def test_whatever_is_printed_is_kept(app: App, spools: Path, data: bytes, shown: str | None) -> None:
    @app.task
    def rubbish() -> None:
        for start in range(0, len(data), 4_099):
            sys.stdout.buffer.write(data[start : start + 4_099])

    async with app.worker():
        task = await rubbish.now()
        await until("it is whole", lambda: is_whole(app, task))
        assert await kept(app, task) == (EMOJI * 262_144 if shown is None else shown)
        await until("no file is left", lambda: left(spools) == [])


# ---- dead workers ----


@contextlib.contextmanager
def worker_program(url: str, spools: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "SHIPPING_URL": url, "DUETIME_OUTPUT": str(spools), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "duetime.cli", "worker", "tests.integration.shipping_app:app"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_what_a_killed_worker_left_is_shipped_by_the_next(url: str, app: App, spools: Path, tmp_path: Path) -> None:
    handler, noted = app.handler("prints_until_killed"), tmp_path / "noted"
    with worker_program(url, spools) as process:
        await until("the worker has declared its handlers", lambda: declared(app, "prints_until_killed"))
        task = await handler.now(noted=str(noted))
        await until("some of it is in the store", lambda: has_some(app, task))
        before = noted.stat().st_size
        await until("more is printed", lambda: noted.stat().st_size > before + 100)
        os.kill(below_guards(process.pid), signal.SIGKILL)
        process.wait(PATIENCE)
    printed = noted.stat().st_size
    with worker_program(url, spools):
        await until("everything is in the store", lambda: attempt_is_whole(app, task, 1))
    [first, *_] = await app.output.read(task)
    lines = first.text.splitlines()
    assert lines == [f"line {number} ✓" for number in range(len(lines))]
    assert printed <= len(lines) <= printed + 1, "a line that was printed right before the end is kept"
    await app.close()


async def declared(app: App, name: str) -> bool:
    return any(each.name == name for each in await app.handlers())


async def has_some(app: App, task: Task[object]) -> bool:
    return bool(await kept(app, task))


async def attempt_is_whole(app: App, task: Task[object], attempt: int) -> bool:
    return any(each.attempt == attempt and each.whole for each in await app.store.kept_output(task.id))


async def test_output_of_sub_processes_is_shipped_as_any_other(url: str, app: App, spools: Path) -> None:
    with worker_program(url, spools):
        await until("the worker has declared its handlers", lambda: declared(app, "prints_in_a_process"))
        task = await app.handler("prints_in_a_process").now(lines=1_000)
        await until("it is whole", lambda: is_whole(app, task))
    lines = (await kept(app, task)).split("\n")
    assert lines == ["raw ?? bytes", *(f"line {n}" for n in range(1_000)), "the end"]
    await app.close()


async def test_two_workers_with_one_folder_leave_each_others_files_alone(url: str, spools: Path) -> None:
    apps = [App(url, user="test", output=str(spools)) for _ in range(2)]
    for each in apps:

        async def talk(ctx: Context, number: int) -> None:
            for line in range(5):
                print(f"{number} {line}")
                await asyncio.sleep(0.001)

        each.task(talk)
    async with apps[0].worker(concurrency=5), apps[1].worker(concurrency=5):
        tasks = await apps[0].submit_many([apps[0].handler("talk").new(number=n) for n in range(100)])
        await until("all output is whole", lambda: all_whole(apps[0], tasks))
        for number, task in enumerate(tasks):
            assert await kept(apps[0], task) == "".join(f"{number} {line}\n" for line in range(5))


# ---- a store that fails ----


class Unreliable(SqliteStore):
    """A store whose next writes of output fail, before or after the commit, or that refuses output with a certain word."""

    fails_before = 0
    fails_after = 0
    on_poison: Exception = InvalidValue("a value cannot be stored")
    figures_fail = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.writes: list[int] = []  # of how many attempts each was
        self.wrote: Callable[[], None] = lambda: None

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        if self.figures_fail:
            raise RuntimeError("a fault in the store")
        await super().add_figures(source, number, increments)

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        if any("poison" in chunk.text for chunk in chunks):
            raise self.on_poison
        self.writes.append(len({(chunk.task, chunk.attempt) for chunk in chunks}))
        self.wrote()
        if self.fails_before:
            self.fails_before -= 1
            raise StoreUnavailable("the store is away")
        answers = await super().keep_output(chunks)
        if self.fails_after:
            self.fails_after -= 1
            raise StoreUnavailable("the reply was lost")
        return answers


class Bench:
    """A shipper that the test steps, and tasks whose files the test writes."""

    def __init__(self, store: Unreliable, spools: Path, *, in_files: bool) -> None:
        self.in_files = in_files
        self.written: dict[str, int] = {}
        self.store = store
        self.app = App(store.url, user="test")
        self.app.task(name="work")(_nothing)
        self.running: dict[str, int] = {}
        self.root = spools
        self.alarms = Alarms()
        self.shipper = self.new_shipper()

    def new_shipper(self) -> Shipper:
        return Shipper(self.store, self.alarms, Spool.begin(self.root), self.root, lambda: self.running, 1 << 20)

    async def begin(self, text: str = "") -> str:
        """Submit a task whose first attempt runs, and let it print."""
        task = await self.app.handler("work").after(60)
        self.running[task.id] = 1
        self.write(task.id, text)
        return task.id

    def write(self, task_id: str, text: str | bytes) -> None:
        """Let an attempt write: into the worker's journal, or into a file of its own, as a child process does."""
        data = text.encode() if isinstance(text, str) else text
        journal = self.shipper.files.journal
        if self.in_files or journal is None:
            with self.shipper.files.path(task_id, 1).open("ab") as file:
                file.write(data)
        else:
            offset = self.written.get(task_id, 0)
            journal.append(task_id, 1, offset, data)
            self.written[task_id] = offset + len(data)

    async def kept(self, task_id: str) -> str:
        return "".join(chunk.text for chunk in await self.store.output(task_id, None, OutputPosition(), 10_000))


async def _nothing() -> None: ...


def die(shipper: Shipper) -> None:
    """Leave the folder as a process that was killed does."""
    os.close(shipper.descriptor)


@pytest.fixture(params=["journal", "files"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path, spools: Path) -> AsyncIterator[Bench]:
    store = Unreliable(f"{tmp_path}/store.db")
    await store.open()
    bench = Bench(store, spools, in_files=request.param == "files")
    yield bench
    bench.alarms.close()
    await bench.app.close()
    await store.close()


async def test_after_an_outage_shipping_goes_on_where_it_was(bench: Bench, spools: Path) -> None:
    task = await bench.begin("one\n")
    assert await bench.shipper.ship() == 1
    bench.write(task, "two\n")
    bench.store.fails_before = 1
    with pytest.raises(StoreUnavailable):
        await bench.shipper.ship()
    bench.write(task, "three\n")
    bench.store.fails_after = 1
    with pytest.raises(StoreUnavailable):
        await bench.shipper.ship()
    bench.write(task, "four\n")
    bench.running.clear()
    while await bench.shipper.ship():
        pass
    assert await bench.kept(task) == "one\ntwo\nthree\nfour\n"
    assert await is_whole(bench.app, task)
    assert left(spools) == []


async def test_a_successor_repeats_nothing_that_its_predecessor_shipped(bench: Bench, spools: Path) -> None:
    task = await bench.begin("one\n")
    await bench.shipper.ship()
    bench.write(task, "two\n")
    successor = bench.new_shipper()
    assert await successor.ship() == 0, "its owner lives"
    die(bench.shipper)
    bench.running.clear()
    successor._look_for_dead_at = 0.0
    while await successor.ship():
        pass
    assert await bench.kept(task) == "one\ntwo\n"
    assert await is_whole(bench.app, task)
    assert left(spools) == []


async def test_a_file_that_was_shipped_but_not_removed_is_removed(bench: Bench, spools: Path) -> None:
    task = await bench.begin("one\n")
    bench.running.clear()
    bench.store.fails_after = 1
    with pytest.raises(StoreUnavailable):
        await bench.shipper.ship()
    assert await is_whole(bench.app, task)
    await bench.shipper.ship()
    assert left(spools) == []
    assert await bench.kept(task) == "one\n"


async def test_a_file_of_a_task_that_is_gone_is_removed(bench: Bench, spools: Path) -> None:
    bench.write("01a1e114-c422-747f-88ba-d8ab7298e491", "nobody's\n")
    await bench.shipper.ship()
    assert left(spools) == []


async def test_output_is_whole_although_the_answer_to_its_last_text_was_lost(bench: Bench, spools: Path) -> None:
    task = await bench.begin("one\n")
    bench.store.fails_after = 1
    with pytest.raises(StoreUnavailable):
        await bench.shipper.ship()
    assert await bench.kept(task) == "one\n"
    bench.running.clear()  # it ends without another word
    while await bench.shipper.ship():
        pass
    assert left(spools) == []
    assert await bench.kept(task) == "one\n"
    assert await is_whole(bench.app, task)


async def test_what_comes_after_the_end_was_told_is_dropped(bench: Bench, spools: Path) -> None:
    task = await bench.begin("one\n")
    await bench.store.keep_output([OutputChunk(task, 1, 0, "one\n", last=True)])
    bench.write(task, "two\n")
    while await bench.shipper.ship():  # it is not tried for ever
        pass
    assert len(left(spools)) == bench.in_files, "the attempt still writes its file"
    bench.running.clear()
    assert await bench.shipper.ship() == 0
    assert left(spools) == []
    assert await bench.kept(task) == "one\n"


async def test_what_a_running_attempt_of_a_task_that_is_gone_prints_is_removed_when_it_is_over(bench: Bench, spools: Path) -> None:
    task = "01a1e114-c422-747f-88ba-d8ab7298e491"
    bench.running[task] = 1
    bench.write(task, "nobody's\n")
    assert [await bench.shipper.ship() for _ in range(2)] == [1, 0]
    assert len(left(spools)) == bench.in_files
    bench.running.clear()
    await bench.shipper.ship()
    assert left(spools) == []


@pytest.mark.parametrize("error", [InvalidValue("a value cannot be stored"), RuntimeError("a fault in the store")])
async def test_output_that_cannot_be_kept_does_not_hold_up_others(
    bench: Bench, spools: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bench.store.on_poison = error
    bad, good = await bench.begin("poison\n"), await bench.begin("good\n")
    with caplog.at_level(logging.WARNING, "duetime.output"):
        while await bench.shipper.ship():
            pass
    assert await bench.kept(good) == "good\n"
    assert [path.name for path in left(spools) if bad in path.name] == [f"{bad}.1.log"]
    assert caplog.text.count(f"output of attempt 1 of task {bad} stays in") == 1


async def test_a_character_that_is_printed_in_two_parts_is_shipped_whole(bench: Bench) -> None:
    task = await bench.begin("price: ")
    bench.write(task, "€".encode()[:2])
    await bench.shipper.ship()
    assert await bench.kept(task) == "price: "
    bench.write(task, "€".encode()[2:])
    await bench.shipper.ship()
    assert await bench.kept(task) == "price: €"


async def test_more_than_fits_into_one_write_is_shipped_bit_by_bit(bench: Bench) -> None:
    bench.store.traits = msgspec.structs.replace(bench.store.traits, output_batch=50_000)
    text = "".join(f"line {n}\n" for n in range(20_000))
    tasks = [await bench.begin(text) for _ in range(3)]
    bench.running.clear()
    await bench.shipper.run_once()
    for task in tasks:
        assert await bench.kept(task) == text


async def test_many_attempts_are_shipped_in_several_writes(bench: Bench, spools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removers, unlink = set(), Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        removers.add(threading.get_ident())
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    tasks = await bench.app.submit_many([bench.app.handler("work").new() for _ in range(1_100)])
    for task in tasks:
        bench.write(task.id, "one line\n")
    await bench.shipper.run_once()
    assert bench.store.writes == [500, 500, 100]
    assert left(spools) == []
    assert threading.get_ident() not in removers, "the event loop has other things to do"
    assert await all_whole(bench.app, [tasks[0], tasks[-1]])


async def test_shipping_that_is_stopped_leaves_the_rest_to_finish(bench: Bench, spools: Path) -> None:
    bench.store.traits = msgspec.structs.replace(bench.store.traits, output_batch=1_000)
    task = await bench.begin("a line\n" * 1_000)
    bench.running.clear()
    stops: list[asyncio.Task[None]] = []
    bench.store.wrote = lambda: stops.append(asyncio.create_task(bench.shipper.stop()))
    bench.shipper.start()
    await until("it has written and is told to stop", lambda: bool(stops))
    await asyncio.gather(*stops)
    assert len(bench.store.writes) == 1
    bench.store.wrote = lambda: None
    await bench.shipper.finish()
    assert await bench.kept(task) == "a line\n" * 1_000
    assert left(spools) == []


async def test_an_unforeseen_fault_while_finishing_is_logged_and_the_folder_given_back(
    bench: Bench, spools: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.begin("one\n")

    def broken(*_: object) -> None:
        raise RuntimeError("a fault in the shipper")

    monkeypatch.setattr(bench.shipper, "_pack", broken)
    with caplog.at_level(logging.WARNING, "duetime.output"):
        await bench.shipper.finish()
    assert "for the next worker on this machine: a fault in the shipper" in caplog.text
    assert Spool.lock(bench.shipper.files.folder) is not None, "somebody else may take it"


async def test_a_fault_in_the_last_metrics_does_not_keep_a_worker_registered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db", user="test")
    app.task(name="work")(_nothing)
    store = Unreliable(f"{tmp_path}/store.db")
    async with app.using_store(store):
        async with app.worker():
            await app.result(await app.handler("work").now(), timeout=PATIENCE)
            store.figures_fail = True
        assert await store.workers() == []
    assert "could not write its last metrics" in caplog.text


async def test_an_outage_neither_fails_nor_delays_an_attempt(tmp_path: Path, spools: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db", user="test", output=str(spools))
    store = Unreliable(f"{tmp_path}/store.db")
    store.fails_before = 3

    @app.task
    async def talk() -> str:
        print("hello")
        return "done"

    async with app.using_store(store), app.worker():
        task = await talk.now()
        assert await app.result(task, timeout=PATIENCE) == "done"
        await until("the output is there in the end", lambda: is_whole(app, task))
        assert await kept(app, task) == "hello\n"


async def test_a_server_that_restarts_while_output_is_shipped_loses_none(new_postgres: NewPostgres, spools: Path) -> None:
    server = new_postgres()
    app = App(server.url(), user="test", output=str(spools), lease=15)
    stop = asyncio.Event()

    @app.task
    async def talk(number: int) -> int:
        line = 0
        while not stop.is_set():
            print(f"{number} {line}")
            line += 1
            await asyncio.sleep(0.001)
        return line

    async with app.worker():
        tasks = await app.submit_many([talk.new(number=n) for n in range(5)])
        for restart in (server.restart, server.kill):
            sizes = [len(await kept(app, task)) for task in tasks]
            await until("more has come", partial(more, app, tasks, sizes))
            await asyncio.to_thread(restart)
            if not server.running:
                await asyncio.to_thread(server.start)
        stop.set()
        await until("all are final", lambda: all_final(app, tasks))
        await until("all output is whole", lambda: all_whole(app, tasks))
        for number, task in enumerate(tasks):
            lines = await app.result(task, timeout=PATIENCE)
            assert await kept(app, task) == "".join(f"{number} {line}\n" for line in range(lines))


async def more(app: App, tasks: Sequence[Task[int]], sizes: Sequence[int]) -> bool:
    with contextlib.suppress(StoreUnavailable):
        return all([len(await kept(app, task)) > size for task, size in zip(tasks, sizes, strict=True)])
    return False


async def all_final(app: App, tasks: Sequence[Task[int]]) -> bool:
    with contextlib.suppress(StoreUnavailable):
        return all([(await app.get(task)).state in FINAL for task in tasks])
    return False


# ---- no space ----


async def test_output_that_is_off_goes_where_it_always_went(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db", user="test", output="off")

    @app.task
    async def talk() -> None:
        print("hello")

    async with app.worker():
        task = await talk.now()
        await app.result(task, timeout=PATIENCE)
        assert await app.output.read(task) == []
    assert "hello" in capfd.readouterr().out


async def test_a_folder_that_cannot_be_made_is_warned_of_and_work_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    app = App(f"sqlite:///{tmp_path}/store.db", user="test", output=f"{tmp_path}/file")

    @app.task
    async def talk() -> str:
        print("hello")
        return "done"

    with caplog.at_level(logging.WARNING, "duetime.output"):
        async with app.worker():
            assert await app.result(await talk.now(), timeout=PATIENCE) == "done"
    assert caplog.text.count("set DUETIME_OUTPUT to another one") == 1


async def test_a_worker_that_cannot_start_leaves_no_folder(tmp_path: Path, spools: Path) -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    app = App(f"sqlite:///{tmp_path}/store.db", user="test", output=str(spools), lifespan=broken)
    with pytest.raises(ValueError, match="no database"):
        async with app.worker():
            pass
    root = spool_root(str(spools), None, app.store.url)
    assert root is not None
    assert list(root.iterdir()) == []


async def test_shipping_is_not_begun_where_output_is_off(tmp_path: Path) -> None:
    store, alarms = SqliteStore(f"{tmp_path}/store.db"), Alarms()
    assert begin_shipping(store, alarms, "off", 1 << 20, running=dict) == ()
    alarms.close()


@pytest.mark.parametrize("second_look", ["_local_attempts", "_tail"])
async def test_output_that_is_shipped_while_somebody_reads_is_not_missed(
    app: App, spools: Path, monkeypatch: pytest.MonkeyPatch, second_look: str
) -> None:
    """The reader looks into the store, then at the files of this machine; here it is shipped between the two looks."""

    @app.task
    async def prints() -> None:
        print("hello")

    look, ship, loop, may_ship = getattr(LocalOutputs, second_look), Shipper.ship, asyncio.get_running_loop(), asyncio.Event()

    async def ship_when_allowed(self: Shipper) -> int:
        await may_ship.wait()
        return await ship(self)

    async def is_shipped() -> bool:
        return await is_whole(app, task.id) and not left(spools)

    def look_after_shipping(self: LocalOutputs, *facts: object) -> object:
        loop.call_soon_threadsafe(may_ship.set)
        asyncio.run_coroutine_threadsafe(until("it is shipped", is_shipped), loop).result(PATIENCE)
        return look(self, *facts)

    monkeypatch.setattr(Shipper, "ship", ship_when_allowed)
    async with app.worker():
        task = await prints.now()
        await app.result(task, timeout=PATIENCE)
        monkeypatch.setattr(LocalOutputs, second_look, look_after_shipping)
        assert [each.text for each in await app.output.read(task)] == ["hello\n"]
