"""How a worker says that it makes no progress: in its health and in its log, and again when it goes on."""

import asyncio
import contextlib
import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from duetime import App, Context, InvalidValue, RetryPolicy, State, StoreUnavailable
from duetime.clock import SECOND, ManualClock, SystemClock
from duetime.model.claim_order import Below
from duetime.model.outcome import Settlement, SettleVerdict
from duetime.runtime import service
from duetime.runtime.outage import LONGEST_REMINDER, Outage
from duetime.runtime.service import NO_PROGRESS, Alarms, Pulse, Service
from duetime.store.open import store_from_url
from duetime.store.shard import Lease
from duetime.store.sqlite.store import SqliteStore
from duetime.store.sqlite.workers import SqliteLease
from duetime.store.values import Claim, NewWorker, Renewal, WorkerRecord
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

DOWN = StoreUnavailable("the store cannot be reached")


async def test_a_machine_whose_clock_is_not_that_of_the_store_is_told(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App(postgres_url)
    for behind, said in ((3_600, "ahead of"), (-3_600, "behind"), (1, "")):
        caplog.clear()
        clock = ManualClock(SystemClock().now() - behind * SECOND)
        async with app.using_store(store_from_url(postgres_url, clock=clock)):
            found = [each for each in (await app.doctor.examine()).findings if each.kind == "clocks apart"]
            assert [f" {said} that of the store" in each.detail for each in found] == ([True] if said else [])
            async with app.worker(handlers=[]):
                logged = [record.getMessage() for record in caplog.records if "the clock of this machine" in record.getMessage()]
        assert [f" s {said} that of the store" in each for each in logged] == ([True] if said else [])


# ---- one loop ----


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "duetime")

    def taken() -> list[str]:
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return said

    return taken


def test_a_failure_is_logged_at_first_then_ever_more_rarely_and_its_end_with_how_long_it_took(lines: Callable[[], list[str]]) -> None:
    pulse = Pulse("feeder")
    for second in range(3_600):
        pulse.begin(float(second))
        pulse.fail(DOWN, float(second))
    first, *reminders = lines()
    assert first == "the store is away, first seen by the feeder: the store cannot be reached"
    assert reminders[0] == "the store has been away for 5.0 s, 1 loop waits: the store cannot be reached"
    seconds = [float(line.partition(" for ")[2].split()[0]) for line in reminders]
    gaps = [later - sooner for sooner, later in itertools.pairwise(seconds)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_REMINDER
    pulse.begin(3_600.0)
    pulse.succeed(3_612.3)
    pulse.succeed(3_613.0)
    assert lines() == ["the store answers again after 3612.3 s; 1 loop waited"]


def test_an_outage_is_told_once_for_all_loops_and_over_when_the_last_one_goes_on(lines: Callable[[], list[str]]) -> None:
    outage = Outage()
    pulses = [Pulse(name, outage) for name in ("feeder", "settler", "keeper")]
    for second in range(7):
        for pulse in pulses:
            pulse.begin(float(second))
            pulse.fail(DOWN, float(second))
    assert lines() == [
        "the store is away, first seen by the feeder: the store cannot be reached",
        "the store has been away for 5.0 s, 3 loops wait: the store cannot be reached",
    ]
    pulses[0].succeed(8.0)
    pulses[1].fail(ZeroDivisionError("ouch"), 8.0)  # something else by now: it is told apart
    assert lines() == ["settler failed 8 times in 8.0 s: ouch"]
    pulses[2].succeed(9.0)
    assert lines() == ["the store answers again after 9.0 s; 3 loops waited"]
    pulses[2].fail(DOWN, 10.0)
    assert lines() == ["the store is away, first seen by the keeper: the store cannot be reached"]


async def test_a_loop_that_is_stopped_during_an_outage_does_not_keep_it_up(lines: Callable[[], list[str]]) -> None:
    alarms = Alarms()
    service = Hesitant(alarms)
    service.start()
    await until("it has failed", lambda: service.pulse.failures == 1)
    await service.stop()
    other = Pulse("settler", alarms.outage)
    other.fail(DOWN, time.monotonic())
    other.succeed(time.monotonic())
    alarms.close()
    assert lines()[-1].endswith("; 1 loop waited")


class Hesitant(Service):
    """Fails, then has nothing to ask for a while, then succeeds."""

    name = "feeder"

    def __init__(self, alarms: Alarms) -> None:
        super().__init__(alarms)
        self.runs = 0
        self.may_ask = False

    async def run_once(self) -> float | None:
        self.runs += 1
        if self.runs == 1:
            raise DOWN
        if not self.may_ask:
            self.skipped()
        return 0.001


async def test_a_run_that_asks_the_store_nothing_does_not_say_that_it_answers_again(lines: Callable[[], list[str]]) -> None:
    alarms = Alarms()
    service = Hesitant(alarms)
    service.start()
    await until("it has failed and gone on", lambda: service.runs > 5)
    assert lines() == ["the store is away, first seen by the feeder: the store cannot be reached"]
    assert service.pulse.failures == 1
    assert service.pulse.problem(time.monotonic() + 2 * NO_PROGRESS) is not None
    service.may_ask = True
    await until("it has succeeded", lambda: service.pulse.failures == 0)
    await service.stop()
    alarms.close()
    assert "the store answers again" in lines()[0]


def test_a_failure_that_is_not_the_stores_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    pulse = Pulse("sweeper")
    pulse.fail(ZeroDivisionError("ouch"), 1.0)
    pulse.fail(StoreUnavailable("gone"), 60.0)
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
    pulse.fail(KeyError(), 61.0)
    pulse.succeed(62.0)
    assert caplog.records[-1].getMessage() == "sweeper works again after 61.0 s, 3 failures"


def test_a_loop_that_waits_is_well_however_long_and_one_whose_run_does_not_end_is_not() -> None:
    pulse = Pulse("settler")
    pulse.begin(0.0)
    assert pulse.problem(NO_PROGRESS) is None
    assert pulse.problem(NO_PROGRESS + 1) == "settler has made no progress for 11.0 s: it does not come to an end"
    pulse.succeed(12.0)
    assert pulse.problem(100_000.0) is None
    pulse.begin(100_000.0)
    pulse.fail(DOWN, 100_001.0)
    pulse.begin(100_010.0)
    assert pulse.problem(100_011.0) == "settler has made no progress for 11.0 s: the store cannot be reached", "it has failed for so long"


def test_a_loop_that_rests_for_minutes_is_given_three_times_that() -> None:
    pulse = Pulse("pruner")
    pulse.begin(0.0)
    pulse.succeed(1.0, 60.0)
    pulse.begin(61.0)
    assert pulse.problem(61.0 + 180.0) is None
    assert pulse.problem(61.0 + 181.0) is not None


def test_standing_still_is_complained_of_once_and_its_end_is_told(lines: Callable[[], list[str]]) -> None:
    pulse = Pulse("feeder")
    pulse.begin(0.0)
    assert pulse.problem_to_log(5.0) is None
    assert pulse.problem_to_log(11.0) is not None
    assert pulse.problem_to_log(12.0) is None
    pulse.succeed(31.0)
    assert lines() == ["feeder goes on after 31.0 s without progress"]
    pulse.begin(40.0)
    assert pulse.problem_to_log(51.0) is not None, "another time"


async def test_progress_within_a_long_run_counts() -> None:
    alarms = Alarms()
    loop = Service(alarms)
    now = time.monotonic()
    loop.pulse.begin(now - 60)
    assert loop.pulse.problem(now) is not None
    loop.progressed()
    assert loop.pulse.problem(now) is None
    assert loop.pulse.problem(now + 60) is not None, "the run still goes on"
    alarms.close()


# ---- a whole worker ----


async def test_lease_and_grace_of_one_worker_come_before_those_of_the_app(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db", lease=20, grace=60)
    store = FaultyStore(str(tmp_path / "duetime.db"))

    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.using_store(store):
        async with app.worker(lease=timedelta(seconds=5), grace=0) as worker:
            task = await endless.now()
            await until("it runs", lambda: worker.health().running == 1)
        assert [worker.lease for worker in store.registered] == [5.0], "others learn it"
        assert (await app.get(task)).state is State.PENDING, "there was no grace"
    for wrong in ({"lease": 0.1}, {"grace": -1}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            async with app.worker(**wrong):
                pass


async def test_words_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")
    with pytest.raises(InvalidValue, match="on_lease_lost must be 'exit' or 'cancel', got 'ignore'"):
        async with app.worker(on_lease_lost="ignore"):  # type: ignore[arg-type]
            pass


class FaultyLease(SqliteLease):
    """A lease whose connection can fail."""

    store: "FaultyStore"

    def renew(self) -> Renewal:
        if self.store.down:
            raise DOWN
        return super().renew()


class FaultyStore(SqliteStore):
    """A store whose connections can fail, or not answer."""

    down = False
    answers: asyncio.Event | None = None

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.registered: list[NewWorker] = []

    async def _reach(self) -> None:
        if self.down:
            raise DOWN
        if self.answers is not None:
            await self.answers.wait()

    async def register(self, worker: NewWorker) -> Lease:
        self.registered.append(worker)
        lease = await super().register(worker)
        assert isinstance(lease, SqliteLease)
        lease.__class__ = FaultyLease
        assert isinstance(lease, FaultyLease)
        lease.store = self
        return lease

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        await self._reach()
        return await super().claim(worker, claim, wants, total, ahead=ahead, below=below)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        await self._reach()
        return await super().settle(worker, settlements)

    async def workers(self) -> list[WorkerRecord]:
        await self._reach()
        return await super().workers()


@pytest.fixture
async def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[App, FaultyStore]]:
    monkeypatch.setattr(service, "NO_PROGRESS", 1.0)
    app = App(f"sqlite:///{tmp_path}/duetime.db", lease=1.0)
    store = FaultyStore(str(tmp_path / "duetime.db"))
    async with app.using_store(store):
        yield app, store


async def test_a_worker_at_rest_is_well(faulty: tuple[App, FaultyStore]) -> None:
    app, _ = faulty

    @app.task
    async def handler() -> None: ...

    async with app.worker() as worker:
        await app.result(await handler.now(), timeout=PATIENCE)
        await until("every loop has run once", lambda: all(loop.succeeded_ago is not None for loop in worker.health().loops))
        await until("it is well", lambda: worker.health().ok)
        health = worker.health()
    assert {loop.name for loop in health.loops} >= {"feeder", "settler", "updates", "reaper", "sweeper", "pruner", "keeper"}
    assert {(loop.failures, loop.error, loop.stalled_for) for loop in health.loops} == {(0, None, 0.0)}
    assert (health.proved, health.blocked_for, health.running, health.unsettled, health.problems) == (True, 0.0, 0, 0, ())


async def test_a_worker_whose_store_is_gone_says_so_and_what_waits_and_when_it_is_back(
    faulty: tuple[App, FaultyStore], caplog: pytest.LogCaptureFixture
) -> None:
    app, store = faulty
    go_on = asyncio.Event()

    @app.task(retry=RetryPolicy.none())
    async def handler(ctx: Context) -> int:
        await go_on.wait()
        return ctx.attempt

    async with app.worker() as worker:
        tasks = await app.submit_many([handler.new() for _ in range(3)])
        await until("all run", lambda: worker.health().running == 3)
        store.down = True
        go_on.set()
        standing = {"feeder", "settler", "reaper", "keeper"}
        await until("they stand still", lambda: standing <= {loop.name for loop in worker.health().loops if loop.stalled_for})
        health = worker.health()
        assert not health.ok
        assert health.unsettled == 3
        feeder = next(loop for loop in health.loops if loop.name == "feeder")
        assert (feeder.error, feeder.failures > 1) == ("the store cannot be reached", True)
        assert any(problem.startswith("settler has made no progress for ") for problem in health.problems)
        await until("it is in the log", lambda: "the store has not answered for " in caplog.text)
        assert "3 outcomes wait to be written" in caplog.text
        store.down = False
        await until("it is well again", lambda: worker.health().ok and worker.health().unsettled == 0)
        assert [await app.result(task, timeout=PATIENCE) for task in tasks] == [1, 1, 1]
    assert caplog.text.count("the store is away") == 1
    assert caplog.text.count("the store answers again after ") == 1
    assert caplog.text.count("the store has not answered for ") == 1
    assert "has made no progress" not in caplog.text, "an outage is told once, not by each loop"


async def test_every_loop_of_a_worker_has_a_name_of_its_own(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path}/duetime.db").worker() as worker:
        names = [loop.name for loop in worker.health().loops]
    assert sorted(set(names)) == sorted(names)


async def test_a_worker_whose_store_does_not_answer_says_so(faulty: tuple[App, FaultyStore], caplog: pytest.LogCaptureFixture) -> None:
    app, store = faulty

    @app.task
    async def handler() -> str:
        return "done"

    async with app.worker() as worker:
        store.answers = asyncio.Event()
        await until("it is in the log", lambda: "feeder has made no progress for " in caplog.text)
        health = worker.health()
        assert any(problem.startswith("feeder has made") and problem.endswith("it does not come to an end") for problem in health.problems)
        store.answers.set()
        await until("it is well again", lambda: worker.health().ok)
        assert await app.result(await handler.now(), timeout=PATIENCE) == "done"
    assert "feeder goes on after " in caplog.text


async def test_a_lock_of_another_program_is_seen_in_the_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "NO_PROGRESS", 0.5)
    path = tmp_path / "duetime.db"
    app = App(f"sqlite:///{path}?timeout=0.1")

    @app.task
    async def handler() -> None: ...

    async with app.worker() as worker:
        await app.result(await handler.now(), timeout=PATIENCE)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            connection.execute("begin immediate")
            await until("it is not well", lambda: not worker.health().ok)
            assert "another program holds its write lock" in worker.health().problems[0]
            connection.execute("rollback")
        await until("it is well again", lambda: worker.health().ok)


async def test_a_blocked_event_loop_is_seen_from_outside(faulty: tuple[App, FaultyStore]) -> None:
    app, _ = faulty
    seen, started = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        started.set()
        seen.wait(PATIENCE)

    async with app.worker() as worker:

        def look() -> None:
            started.wait(PATIENCE)
            while not any("the event loop has been blocked for" in problem for problem in worker.health().problems):
                time.sleep(0.01)
            seen.set()

        observer = threading.Thread(target=look)
        observer.start()
        await app.result(await blocks.now(), timeout=PATIENCE)
        await asyncio.to_thread(observer.join)
        await until("it is well again", lambda: worker.health().ok)


async def test_a_program_that_blocks_its_own_event_loop_is_told(
    faulty: tuple[App, FaultyStore], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.worker.keeper.NO_PROGRESS", 0.2)
    app, _ = faulty
    async with app.worker():
        deadline = time.monotonic() + 30
        while "the event loop has been blocked" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251
        assert "by no handler" in caplog.text
        await until("it goes on", lambda: "the event loop goes on after" in caplog.text)
