"""The store fails for a while: a clear error for callers, and a worker that goes on by itself when the fault is over."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from duetime import App, Context, RetryPolicy, State, StoreUnavailable
from duetime.duties import Reaper
from duetime.errors import DuetimeError
from duetime.ids import new_id
from duetime.model.claim_order import Below
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Settlement, SettleVerdict
from duetime.model.task import NewTask
from duetime.runtime.service import Alarms
from duetime.store.sqlite import liveness
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import Claim, NewWorker
from tests.chaos.fleet import Fleet, until
from tests.servers.waiting import PATIENCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "duetime.db"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock as another program would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


# ---- locked by another program ----


async def test_a_lock_held_for_a_while_delays_and_loses_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App(f"sqlite:///{path}?timeout=0.3")
    started: list[str] = []
    go_on = asyncio.Event()

    @app.task(retry=RetryPolicy.none())
    async def handler(ctx: Context) -> str:
        started.append(ctx.task.id)
        await go_on.wait()
        return "done"

    async with app.worker() as worker:
        tasks = await app.submit_many([handler.new() for _ in range(20)])
        await until("all have started", lambda: len(started) == 20)
        with locked(path):
            go_on.set()
            with pytest.raises(StoreUnavailable, match="another program holds its write lock"):
                await handler.now()
            await until("the settler has met the lock", lambda: worker.settler.pulse.failures > 0)
            assert (await app.get(tasks[0])).state is State.RUNNING, "reading goes on"
        later = await handler.now()
        assert [await app.result(task, timeout=PATIENCE) for task in [*tasks, later]] == ["done"] * 21
    assert len(started) == 21, "no outcome was lost, so nothing ran twice"
    assert "the store is away" in caplog.text


async def test_a_worker_that_starts_while_the_file_is_locked_says_what_to_do(path: Path) -> None:
    app = App(f"sqlite:///{path}?timeout=0.2")

    @app.task
    async def handler() -> None: ...

    async with app:
        await handler.now()
        with locked(path), pytest.raises(StoreUnavailable, match=r"another program holds its write lock; end that transaction"):
            async with app.worker():
                pass
        async with app.worker():
            await until("it ran", lambda: ran(app))


async def ran(app: App) -> bool:
    stats = await app.store.counts()
    return not any(lane.due + lane.running for lane in stats.lanes)


# ---- no space ----


def test_a_full_disk_refuses_the_task_and_keeps_what_was_acknowledged(path: Path) -> None:
    app = App(f"sqlite:///{path}")

    @app.task
    async def handler(text: str) -> None: ...

    kept = app.sync(handler.now("small"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages}")
        connection.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="full"):
            app.sync(handler.options(connection=connection).now("x" * 200_000))
        if connection.in_transaction:
            connection.execute("rollback")
    assert app.sync(app.get(kept)).state is State.PENDING
    app.sync(app.close())


async def test_a_worker_whose_file_may_not_grow_goes_on_when_there_is_space_again(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        worker = await fleet.start(chaos_file_limit=1)
        fleet.hold()
        before = await fleet.submit(fleet.new("quick", held=True) for _ in range(8))
        await until("they have started", lambda: fleet.started(*before))
        (tmp_path / "full").touch()
        await until("its files may not grow", (tmp_path / "limited").exists)
        fleet.let_go()
        await until("the worker has met the limit", lambda: "outcomes wait to be written" in worker.log())
        assert worker.running
        (tmp_path / "full").unlink()
        await fleet.finish()
        history = await fleet.check()
        assert {(await fleet.app.get(task.id)).state for task in before} == {State.SUCCEEDED}
        assert all(len(history.attempts[task.id]) == 1 for task in before), "their outcomes waited in memory"


# ---- not a database, not writable ----


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is not a database, whatever its name says" * 100, "not a SQLite database|not a database"),
        (b"SQLite format 3\x00" + b"\xff" * 4_096, "cannot be used"),
    ],
    ids=["text", "damaged header"],
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    app = App(f"sqlite:///{path}")

    @app.task
    async def handler() -> None: ...

    async def work() -> None:
        async with app.worker():
            pass

    with pytest.raises(StoreUnavailable, match=message):
        app.sync(handler.now())
    with pytest.raises(StoreUnavailable, match=message):
        app.sync(work())
    assert path.read_bytes() == content


def test_damaged_pages_are_reported_as_such(path: Path) -> None:
    app = App(f"sqlite:///{path}")

    @app.task
    async def handler(text: str) -> None: ...

    app.sync(app.submit_many([handler.new("x" * 1_000) for _ in range(500)]))
    task = app.sync(handler.now("x"))
    app.sync(app.close())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4_096):
        content[page * 4_096 : page * 4_096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"cannot be used: .*(malformed|corrupt|not a database)"):
        app.sync(app.get(task))
    app.sync(app.close())


async def test_a_missing_folder_and_one_that_may_not_be_written_are_named(tmp_path: Path) -> None:
    async def submit(url: str) -> None:
        app = App(url)

        @app.task
        async def handler() -> None: ...

        await handler.now()

    with pytest.raises(StoreUnavailable, match=r"the folder of .*nowhere/duetime\.db does not exist; create it"):
        await submit(f"sqlite:///{tmp_path / 'nowhere' / 'duetime.db'}")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"does not exist|cannot be used"):
        await submit(f"sqlite:///{tmp_path / 'file' / 'duetime.db'}")
    if os.geteuid() != 0:  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o555)
        with pytest.raises(StoreUnavailable, match=r"permission|may write"):
            await submit(f"sqlite:///{tmp_path / 'closed' / 'duetime.db'}")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await submit(f"sqlite:///{tmp_path / 'folder.db'}")


# ---- replies that are lost ----


class Forgetful(SqliteStore):
    """A store whose replies get lost after the commit, as over a network."""

    forget_claims = 0
    forget_settles = 0

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        reply = await super().claim(worker, claim, wants, total, ahead=ahead, below=below)
        if reply.tasks and self.forget_claims:
            self.forget_claims -= 1
            raise StoreUnavailable("the reply was lost")
        return reply

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        verdicts = await super().settle(worker, settlements)
        if self.forget_settles:
            self.forget_settles -= 1
            raise StoreUnavailable("the reply was lost")
        return verdicts


@pytest.fixture
async def forgetful(path: Path) -> AsyncIterator[tuple[App, Forgetful]]:
    app = App(f"sqlite:///{path}", lease=0.5)
    store = Forgetful(str(path))
    async with app.using_store(store):
        yield app, store


async def test_a_claim_whose_reply_was_lost_goes_back_with_its_counts(forgetful: tuple[App, Forgetful]) -> None:
    app, store = forgetful

    @app.task(retry=RetryPolicy(tries=2, base=0.0))
    async def handler(ctx: Context) -> int:
        if ctx.attempt == 1:
            store.forget_claims = 1  # the next one, which is this task's second attempt
            raise ValueError("first try")
        return ctx.attempt

    async with app.worker():
        task = await handler.now()
        assert await app.result(task, timeout=PATIENCE) == 3
        outcomes = [attempt.outcome for attempt in await app.attempts(task)]
        assert outcomes == ["failed", "released", "succeeded"]
        assert (await app.get(task)).tries == 1, "the try that was used up is not forgotten"


async def test_a_settle_whose_reply_was_lost_is_repeated_and_counted_once(forgetful: tuple[App, Forgetful]) -> None:
    app, store = forgetful
    runs: list[str] = []

    @app.task
    async def handler(ctx: Context) -> None:
        runs.append(ctx.task.id)

    async with app.worker() as worker:
        store.forget_settles = 3
        tasks = await app.submit_many([handler.new() for _ in range(50)])
        for task in tasks:
            await app.result(task, timeout=PATIENCE)
        await until("the settler has nothing left", lambda: not worker.settler.ids())
        assert worker.settler.stale == 0
    assert sorted(runs) == sorted(task.id for task in tasks)


async def test_an_outcome_that_cannot_be_stored_does_not_hold_up_the_others(
    forgetful: tuple[App, Forgetful], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, store = forgetful

    @app.task(retry=RetryPolicy.none())
    async def handler(good: bool) -> None:
        await asyncio.sleep(0.01)
        if not good:
            raise ValueError("poison")

    settle = store.settle

    async def picky(worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        if any(each.error is not None and each.error.message == "poison" for each in settlements):
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "cannot be written")
        return await settle(worker, settlements)

    monkeypatch.setattr(store, "settle", picky)
    async with app.worker():
        tasks = await app.submit_many([handler.new(number != 7) for number in range(30)])
        for number, task in enumerate(tasks):
            if number != 7:
                await app.result(task, timeout=PATIENCE)
        bad = await app.client.wait(tasks[7], timeout=PATIENCE)
        assert bad.state is State.FAILED
        assert bad.error is not None
        assert bad.error.type == "OutcomeNotStored"


async def test_a_worker_that_was_taken_for_dead_stops_its_attempts_and_registers_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(f"sqlite:///{path}", lease=0.5)
    ended: list[str] = []

    @app.task
    async def handler(ctx: Context, seconds: float) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(ctx.task.id)
            raise
        return ctx.attempt

    async with app.worker():
        task = await handler.now(3_600.0)
        await until("it runs", lambda: app_runs(app, 1))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            connection.execute("begin immediate")
            connection.execute("delete from duetime_worker")
            connection.execute("update duetime_running set worker = 'somebody else'")
            connection.execute("commit")
        await until("its attempt was stopped", lambda: ended == [task.id])
        await until("it is back", lambda: "is registered again" in caplog.text)
        assert await app.result(await handler.now(0.0), timeout=PATIENCE) == 1
        assert (await app.get(task)).state is State.RUNNING, "nothing was written for what is no longer its own"


async def app_runs(app: App, count: int) -> bool:
    return sum(lane.running for lane in (await app.store.counts()).lanes) == count


# ---- reapers ----


async def test_a_settle_that_races_with_a_reaper_is_either_accepted_or_too_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst case, made to happen: the worker's lock counts as free although the worker lives and is about to settle."""
    monkeypatch.setattr(liveness, "is_alive", lambda path, process: False)
    one, other = SqliteStore(str(path)), SqliteStore(str(path))
    await one.open()
    await other.open()
    taken = finished = 0
    for number in range(40):
        worker = f"worker-{number}"
        lease = await one.register(NewWorker(id=worker, host="here", pid=os.getpid(), slots={"h": 5}))
        await one.add([NewTask(id=new_id(), handler="h", payload=b"{}") for _ in range(5)])
        claim = await one.claim(worker, 1, {"h": 5}, 5)
        settlements = [
            conclude(task, Ended(Outcome.SUCCEEDED), RetryPolicy(), started_at=claim.now, now=claim.now, chance=0.0) for task in claim.tasks
        ]
        settle, reap = one.settle(worker, settlements), other.reap(worker, 0)
        if number % 2:
            verdicts, reaped = await asyncio.gather(settle, reap)
        else:
            reaped, verdicts = await asyncio.gather(reap, settle)
        lease.close()
        records = await one.get([task.id for task in claim.tasks])
        if reaped:
            assert verdicts == [SettleVerdict.STALE] * 5
            assert [record and record.state for record in records] == [State.PENDING] * 5
            await one.cancel([task.id for task in claim.tasks])
        else:
            assert verdicts == [SettleVerdict.ACCEPTED] * 5
            assert [record and record.state for record in records] == [State.SUCCEEDED] * 5
        taken, finished = taken + bool(reaped), finished + (not reaped)
    await other.close()
    await one.close()
    assert taken + finished == 40


async def test_several_reapers_at_once_take_a_dead_workers_tasks_back_once(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        worker = await fleet.start()
        fleet.hold()
        tasks = await fleet.submit(fleet.new("quick", held=True) for _ in range(8))
        await until("they have started", lambda: fleet.started(*tasks))
        worker.kill()
        apps = [App(fleet.url) for _ in range(4)]
        async with contextlib.AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            alarms = Alarms()
            reapers = [Reaper(app.store, alarms, lease=15.0) for app in apps for _ in range(3)]
            taken = await asyncio.gather(*(reaper.reap(0.0) for reaper in reapers))
            alarms.close()
        assert sorted(taken) == [0] * 11 + [8]
        for task in tasks:
            back = await fleet.app.get(task.id)
            assert (back.state, back.attempt, back.tries, back.crashes) == (State.PENDING, 1, 0, 1)
            assert [attempt.outcome for attempt in await fleet.app.attempts(task)] == ["lost"]


async def test_an_old_process_that_drains_is_left_alone_by_the_one_that_replaces_it(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        old = await fleet.start("--grace", "90s")
        fleet.hold()
        tasks = await fleet.submit(fleet.new("quick", held=True) for _ in range(4))
        await until("they have started", lambda: fleet.started(*tasks))
        old.terminate()
        new = await fleet.start()  # the same host name, and all that a reaper could go by
        for task in await fleet.submit(fleet.new("quick") for _ in range(4)):
            await fleet.app.result(task, timeout=PATIENCE)
        fleet.let_go()
        assert await old.ended() == 0
        await fleet.finish()
        history = await fleet.check()
        assert all(len(history.attempts[task.id]) == 1 for task in tasks)
        assert "died" not in new.log()


async def test_a_worker_that_knows_half_of_the_handlers_leaves_the_others_alone_and_still_recovers_them(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        doomed = await fleet.start("--handler", "threaded")
        fleet.hold()
        lost = await fleet.submit(fleet.new("threaded", held=True) for _ in range(3))
        await until("they have started", lambda: fleet.started(*lost))
        half = await fleet.start("--handler", "quick")
        waiting = await fleet.submit(fleet.new("boxed") for _ in range(3))
        done = await fleet.submit(fleet.new("quick") for _ in range(3))
        doomed.kill()
        await until("the death was seen", lambda: "3 attempts go back" in half.log())
        for task in done:
            await fleet.app.result(task, timeout=PATIENCE)
        for task in [*lost, *waiting]:
            assert (await fleet.app.get(task.id)).state is State.PENDING
        assert DuetimeError.__name__ not in half.log()
        whole = await fleet.start()
        for task in waiting:
            await fleet.app.result(task, timeout=PATIENCE)
        assert whole.running
