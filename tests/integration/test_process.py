"""Attempts in sub-processes: they end when their code has ended, and never outlive their worker."""

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duetime import App, DuetimeError
from duetime.clock import SECOND
from duetime.ids import new_id
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import Extras
from duetime.store.values import ClaimedTask
from duetime.targets.python import children
from duetime.targets.python.children import NEVER, ChildPool, Recycling, _Child, import_string_of
from tests.integration import process_handlers
from tests.servers.waiting import PATIENCE

HERE = "tests.integration.process_handlers"
ROOT = Path(__file__).resolve().parents[2]


def claimed(handler: str, attempt: int = 1, **arguments: object) -> ClaimedTask:
    return ClaimedTask(
        id=new_id(),
        handler=handler,
        payload=msgspec.json.encode(arguments).decode(),
        attempt=attempt,
        tries=0,
        crashes=0,
        due_at=1,
        since_at=1,
        submitted_at=1,
        submitted_by="",
        expires_at=None,
        timeout=None,
        retry=None,
        extras=Extras(meta={"trace": "1"}),
        key=None,
        collection=None,
        priority=5,
        schedule=None,
        planned_at=None,
    )


async def perform(
    pool: ChildPool,
    task: ClaimedTask,
    output: Path | None = None,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
    recycling: Recycling = NEVER,
) -> Ended:
    path = None if output is None else str(output)
    return await pool.perform(task, started_at=SECOND, deadline_at=2 * SECOND, output_path=path, progress=progress, recycling=recycling)


async def run(pool: ChildPool, handler: str, **arguments: Any) -> Ended:
    return await perform(pool, claimed(handler, **arguments))


def result_of(ended: Ended) -> Any:
    assert ended.outcome is Outcome.SUCCEEDED, ended
    return None if ended.result is None else msgspec.json.decode(ended.result)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain until {what}"
        await asyncio.sleep(0.01)


async def pids_in(note: Path) -> list[int]:
    await until(lambda: note.exists() and note.read_text().endswith("\n"), f"the handler wrote {note.name}")
    return [int(line) for line in note.read_text().split()]  # noqa: ASYNC240 - small, and nothing else runs


@pytest.fixture
async def pool() -> AsyncIterator[ChildPool]:
    pool = ChildPool(f"{HERE}:app")
    yield pool
    await pool.close()


# ---- performing ----


async def test_an_attempt_gets_its_arguments_and_context_and_gives_its_result(pool: ChildPool) -> None:
    task = claimed("echo", attempt=3, name="Zoë", number=1)
    result = result_of(await perform(pool, task))
    assert result["pid"] != os.getpid()
    assert (result["name"], result["number"], result["attempt"], result["key"]) == ("Zoë", 1, 3, task.id)


async def test_a_plain_function_runs_in_the_main_thread_while_no_loop_runs(pool: ChildPool) -> None:
    assert result_of(await run(pool, "plain", number=21)) == {"double": 42, "group": True}


async def test_a_child_is_used_again_and_its_lifespan_lives_on_while_it_is_idle(pool: ChildPool) -> None:
    pids = {result_of(await run(pool, "echo"))["pid"] for _ in range(3)}
    assert len(pids) == 1
    before = result_of(await run(pool, "lifespan_facts"))
    assert before["own"]
    for _ in range(200):
        if result_of(await run(pool, "lifespan_facts"))["beats"] > before["beats"]:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the lifespan's background task stands still between attempts")


async def test_attempts_at_once_run_in_children_of_their_own_and_only_some_are_kept(tmp_path: Path) -> None:
    pool, word, notes = ChildPool(f"{HERE}:app", max_idle=1), tmp_path / "word", [tmp_path / f"note-{number}" for number in range(3)]
    try:
        attempts = [asyncio.create_task(run(pool, "wait_for", note=str(note), word=str(word))) for note in notes]
        pids = {pid for note in notes for pid in await pids_in(note)}
        assert len(pids) == 3
        word.touch()
        assert [result_of(ended) for ended in await asyncio.gather(*attempts)] == ["done"] * 3
        await until(lambda: sum(map(runs, pids)) == 1, "two of three children have left")
    finally:
        await pool.close()
    assert not any(map(runs, pids))


async def test_a_child_is_replaced_after_its_number_of_attempts() -> None:
    pool = ChildPool(f"{HERE}:app")
    try:
        pids = [result_of(await perform(pool, claimed("echo"), recycling=Recycling(attempts=2)))["pid"] for _ in range(4)]
    finally:
        await pool.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_a_child_that_uses_too_much_memory_after_an_attempt_is_replaced() -> None:
    pool = ChildPool(f"{HERE}:app")
    try:
        small = [result_of(await perform(pool, claimed("echo"), recycling=Recycling(memory=1 << 40)))["pid"] for _ in range(2)]
        large = [result_of(await perform(pool, claimed("echo"), recycling=Recycling(memory=1 << 20)))["pid"] for _ in range(2)]
    finally:
        await pool.close()
    assert small[0] == small[1] == large[0] != large[1]


async def test_children_start_one_by_one_and_whoever_waits_gets_one_that_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, most, started, start = 0, 0, 0, _Child.start

    async def counted(child: _Child, within: float) -> None:
        nonlocal starting, most, started
        starting, started = starting + 1, started + 1
        most = max(most, starting)
        try:
            await start(child, within)
        finally:
            starting -= 1

    monkeypatch.setattr(_Child, "start", counted)
    pool = ChildPool(f"{HERE}:app")
    try:
        results = await asyncio.gather(*(run(pool, "echo") for _ in range(8)))
    finally:
        await pool.close()
    assert most == 1
    assert len({result_of(ended)["pid"] for ended in results}) <= started <= 8


async def test_one_that_no_longer_waits_for_a_child_leaves_it_to_others(pool: ChildPool) -> None:
    first, second = (asyncio.create_task(run(pool, "echo")) for _ in range(2))
    await until(lambda: len(pool._waiters) == 2, "both wait")
    first.cancel()
    assert result_of(await second)["pid"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_an_attempt_whose_child_is_killed_on_purpose_before_it_begins_goes_back_and_gets_no_other(pool: ChildPool) -> None:
    starting = asyncio.create_task(pool.prepare())
    await until(lambda: bool(pool._children), "a child is starting")
    pool.kill()
    assert await starting == Ended(Outcome.RELEASED)
    result_of(await run(pool, "echo"))
    [idle] = pool._idle
    os.kill(idle._process.pid, signal.SIGSTOP)  # so it does not begin before it is killed
    performing = asyncio.create_task(run(pool, "echo"))
    await until(lambda: not pool._idle, "the attempt has the child")
    pool.kill()
    assert await performing == Ended(Outcome.RELEASED)
    assert not pool._children


async def test_closing_lets_idle_children_leave_their_lifespan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "left"
    monkeypatch.setenv("LEFT_FILE", str(left))
    pool = ChildPool(f"{HERE}:app")
    pid = result_of(await run(pool, "echo"))["pid"]
    await pool.close()
    assert left.read_text() == f"{pid}\n"
    assert not runs(pid)


async def test_a_large_payload_and_result_pass() -> None:
    pool = ChildPool(f"{HERE}:app")
    try:
        text = "ö" * 450_000
        assert result_of(await run(pool, "echo", text=text))["text"] == text
    finally:
        await pool.close()


@pytest.mark.parametrize("handler", ["fail", "fail_async"])
@pytest.mark.parametrize(
    ("kind", "outcome", "error", "retriable"),
    [
        ("fatal", Outcome.FATAL, "Fatal", True),
        ("later", Outcome.RETRY_LATER, "RetryLater", True),
        ("never", Outcome.FAILED, "KeyError", False),
        ("value", Outcome.FAILED, "ValueError", True),
        ("exit", Outcome.FAILED, "SystemExit", True),
    ],
)
async def test_exceptions_mean_what_they_mean_in_the_worker(
    pool: ChildPool, handler: str, kind: str, outcome: Outcome, error: str, retriable: bool
) -> None:
    ended = await run(pool, handler, kind=kind)
    assert ended.error is not None
    assert (ended.outcome, ended.error.type, ended.retriable, ended.crashed) == (outcome, error, retriable, False)
    if kind == "later":
        assert ended.delay == 90
    else:
        assert "process_handlers.py" in ended.error.traceback
    assert result_of(await run(pool, "quiet")) is None


async def test_a_result_that_is_not_json_is_fatal(pool: ChildPool) -> None:
    assert (await run(pool, "not_json")).outcome is Outcome.FATAL


async def test_a_payload_that_does_not_fit_is_fatal(pool: ChildPool) -> None:
    ended = await run(pool, "echo", wrong=1)
    assert ended.outcome is Outcome.FATAL
    assert ended.error is not None
    assert ended.error.type == "InvalidPayload"


async def test_middleware_runs_around_functions_and_coroutines_and_may_call_them_again(tmp_path: Path) -> None:
    pool = ChildPool(f"{HERE}:layered")
    try:
        assert result_of(await run(pool, "add_async", left=1, right=2)) == [3, 3]
        output = tmp_path / "output"
        assert result_of(await perform(pool, claimed("add", left=1, right=2), output)) == [3, 3]
        assert output.read_text() == "adding\nadding\n"
        assert result_of(await run(pool, "add", left=-1, right=2)) == ["negative", "negative"]
    finally:
        await pool.close()


async def test_progress_is_passed_on_and_the_last_mark_is_never_lost(pool: ChildPool) -> None:
    marks: list[tuple[float, str]] = []
    await perform(pool, claimed("report", steps=5_000), progress=lambda *mark: marks.append(mark))
    assert marks[0][0] == 1 / 5_000
    assert marks[-1] == (1.0, "step 5000 ?")
    assert len(marks) < 1_000


async def test_a_mark_that_came_too_soon_follows_although_the_handler_says_no_more(pool: ChildPool) -> None:
    marks: list[tuple[float, str]] = []
    attempt = asyncio.ensure_future(perform(pool, claimed("report_then_wait"), progress=lambda *mark: marks.append(mark)))
    await until(lambda: marks and marks[-1] == (0.2, "second"), "the second mark is here")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt


# ---- death ----


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exit code 7"),
        ("forked holder", "exit code 7"),
        ("kill", "signal 9 (SIGKILL)"),
        ("segfault", "signal 11 (SIGSEGV)"),
    ],
)
async def test_a_child_that_dies_is_a_loss_that_can_be_blamed_on_its_task(pool: ChildPool, tmp_path: Path, how: str, words: str) -> None:
    output = tmp_path / "folder" / "output"
    ended = await perform(pool, claimed("die", how=how), output)
    assert (ended.outcome, ended.crashed, ended.alone) == (Outcome.LOST, True, True)
    assert ended.error is not None
    assert ended.error.type == "ProcessDied"
    assert words in ended.error.message
    assert "last words\n" in ended.error.traceback
    assert "last words\n" in output.read_text()
    assert ("Segmentation fault" in output.read_text()) == (how == "segfault")
    assert result_of(await run(pool, "quiet")) is None


async def test_a_child_that_was_killed_from_outside_is_a_loss(pool: ChildPool, tmp_path: Path) -> None:
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "block", note=str(note)))
    child, grandchild = await pids_in(note)
    os.kill(child, signal.SIGKILL)
    ended = await attempt
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, True)
    assert not runs(child)
    assert not runs(grandchild)


async def test_a_child_that_died_while_idle_is_replaced_and_no_task_is_blamed(pool: ChildPool) -> None:
    first = result_of(await run(pool, "echo"))["pid"]
    os.kill(first, signal.SIGKILL)
    assert result_of(await run(pool, "echo"))["pid"] != first


async def test_a_child_does_not_heed_the_signals_that_stop_its_worker(pool: ChildPool, tmp_path: Path) -> None:
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "wait_for", note=str(note), word=str(tmp_path / "word")))
    [pid] = await pids_in(note)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    (tmp_path / "word").touch()
    assert result_of(await attempt) == "done"


async def test_a_death_is_noticed_where_the_kernel_has_no_handles_for_processes(
    pool: ChildPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    ended = await run(pool, "die", how="forked holder")
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, True)


async def test_a_child_killed_because_the_lease_is_lost_is_no_crash(pool: ChildPool, tmp_path: Path) -> None:
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "block", note=str(note)))
    pids = await pids_in(note)
    await asyncio.to_thread(pool.kill)
    ended = await attempt
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, False)
    assert not any(map(runs, pids))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("ffffffff", "4,294,967,295 bytes"),
        ("000000027b7d", "malformed frame"),
        ("00000003616263", "malformed frame"),
        ("000000107b2274797065223a227265616479227d", "Ready in the middle"),
    ],
    ids=["too long", "no message", "no JSON", "out of order"],
)
async def test_a_child_that_sends_nonsense_is_killed(pool: ChildPool, data: str, words: str) -> None:
    ended = await run(pool, "scribble", data=data)
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, True)
    assert ended.error is not None
    assert words in ended.error.message


# ---- stopping ----


@pytest.mark.parametrize("hold_gil", [False, True])
async def test_a_cancelled_attempt_and_all_that_it_started_are_gone_before_the_cancel_is_answered(
    pool: ChildPool, tmp_path: Path, hold_gil: bool
) -> None:
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "block", note=str(note), hold_gil=hold_gil))
    child, grandchild = await pids_in(note)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert not runs(child)
    assert not runs(grandchild)
    assert result_of(await run(pool, "quiet")) is None


async def test_an_impatient_caller_who_cancels_twice_still_waits_for_the_end(
    pool: ChildPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "sleep_long", note=str(note)))
    [pid] = await pids_in(note)
    alive = True
    monkeypatch.setattr(children, "group_lives", lambda group, thorough: alive)  # a process that the kernel cannot end yet
    attempt.cancel()
    for _ in range(3):
        await asyncio.wait((attempt,), timeout=0.02)
        assert not attempt.done()
        attempt.cancel()
    alive = False
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert not runs(pid)


async def test_a_timeout_around_an_attempt_ends_it(pool: ChildPool, tmp_path: Path) -> None:
    note = tmp_path / "note"
    await run(pool, "quiet")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await run(pool, "sleep_long", note=str(note))
    assert not note.exists() or not any(map(runs, await pids_in(note)))


async def test_a_child_whose_attempt_was_cancelled_while_it_started_is_for_the_next() -> None:
    pool = ChildPool(f"{HERE}:app")
    attempt = asyncio.ensure_future(run(pool, "quiet"))
    await until(lambda: bool(pool._children), "a child starts")
    [child] = pool._children
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert result_of(await run(pool, "echo"))["pid"] == child._process.pid
    await pool.close()
    assert not runs(child._process.pid)


async def test_closing_while_a_child_starts_leaves_nothing() -> None:
    pool = ChildPool(f"{HERE}:app")
    attempt = asyncio.ensure_future(run(pool, "quiet"))
    await until(lambda: bool(pool._children), "a child starts")
    [child] = pool._children
    await pool.close()
    assert await attempt == Ended(Outcome.RELEASED)
    assert not runs(child._process.pid)


async def test_closing_kills_what_still_runs(tmp_path: Path) -> None:
    pool = ChildPool(f"{HERE}:app")
    note = tmp_path / "note"
    attempt = asyncio.ensure_future(run(pool, "block", note=str(note)))
    pids = await pids_in(note)
    await pool.close()
    assert not any(map(runs, pids))
    ended = await attempt
    assert (ended.outcome, ended.crashed) == (Outcome.LOST, False)
    with pytest.raises(RuntimeError, match="closed"):
        await run(pool, "quiet")


# ---- the worker's death ----

WORKER = """
    import asyncio, os, sys, threading, time
    from duetime.targets.python.children import ChildPool
    from tests.integration.test_process import claimed, perform

    async def main(notes):
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        lock = int(os.environ["LOCK"])
        pool = ChildPool("tests.integration.process_handlers:app", inherit=[lock])
        tasks = [claimed("block", note=note, hold_gil=index % 2 == 1) for index, note in enumerate(notes)]
        running = [asyncio.ensure_future(perform(pool, task)) for task in tasks]
        if os.environ.get("FORK"):
            while not all(map(os.path.exists, notes)):
                await asyncio.sleep(0.01)
            if os.fork() == 0:
                open(os.environ["FORK"], "w").write(f"{os.getpid()}\\n")
                time.sleep(600)
        await asyncio.gather(*running)

    asyncio.run(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a fork of itself"])
async def test_children_and_grandchildren_die_with_a_killed_worker(tmp_path: Path, forked: bool) -> None:
    notes = [tmp_path / f"note{number}" for number in range(4)]
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    fork = tmp_path / "fork"
    worker = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs
        [sys.executable, "-c", textwrap.dedent(WORKER), *map(str, notes)],
        cwd=ROOT,
        env={**os.environ, "LOCK": str(lock), **({"FORK": str(fork)} if forked else {})},
        pass_fds=(lock,),
    )
    os.close(lock)
    pids: list[int] = []
    forks: list[int] = []
    try:
        for note in notes:
            pids += await pids_in(note)
        assert all(map(runs, pids))
        if forked:
            forks = await pids_in(fork)
    finally:
        worker.kill()
        worker.wait()
    await until(lambda: not any(map(runs, pids)), "all children and grandchildren of the killed worker are gone")
    for pid in forks:
        assert runs(pid)
        os.kill(pid, signal.SIGKILL)

    def free() -> bool:
        again = os.open(tmp_path / "lock", os.O_RDWR)
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(again)
        return True

    await until(free, "nobody holds the lock of the killed worker")


async def test_a_child_holds_what_it_inherits_as_long_as_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pool = ChildPool(f"{HERE}:app", inherit=[lock])
    await run(pool, "quiet")
    os.close(lock)
    again = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await pool.close()
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


# ---- starting ----


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    name = f"broken_{time.monotonic_ns()}"
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(folder))
    return name


@pytest.mark.parametrize(
    ("text", "message", "traceback"),
    [
        ("print('before', flush=True)\nimport no_such_module", "No module named 'no_such_module'", "before"),
        ("import os\nos.write(2, b'boom')\nos._exit(3)", "exit code 3", "boom"),
        ("nothing = 1", "has no attribute 'app'", "AttributeError"),
        ("app = 5", "is a int, not a duetime App", ""),
        ("raise SystemExit('no')", "SystemExit: no", ""),
        ("import os\nos.closerange(3, 100)\nimport time\ntime.sleep(60)", "did not start", ""),
    ],
    ids=["import error", "hard exit", "no such name", "no app", "soft exit", "closes descriptors"],
)
async def test_a_child_that_cannot_start_fails_the_attempt_and_tells_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, traceback: str
) -> None:
    within = 2.0 if message == "did not start" else PATIENCE
    pool = ChildPool(f"{module(tmp_path, monkeypatch, text)}:app", start_within=within)
    ended = await run(pool, "echo")
    assert (ended.outcome, ended.retriable, ended.crashed) == (Outcome.FAILED, True, False)
    assert ended.error is not None
    assert ended.error.type == "ProcessNotStarted"
    assert message in ended.error.message
    assert traceback in ended.error.traceback
    await pool.close()


async def test_a_child_that_takes_too_long_to_start_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(tmp_path, monkeypatch, "import time\nprint('still importing', flush=True)\ntime.sleep(60)")
    pool = ChildPool(f"{name}:app", start_within=1.0)
    ended = await run(pool, "echo")
    assert ended.outcome is Outcome.FAILED
    assert ended.error is not None
    assert "not ready within 1 s" in ended.error.message
    await pool.close()


async def test_a_lifespan_that_fails_fails_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        from contextlib import asynccontextmanager
        from tests.integration.process_handlers import SmallApp

        @asynccontextmanager
        async def lifespan():
            raise ConnectionError("no database")
            yield

        app = SmallApp(lifespan)
    """
    pool = ChildPool(f"{module(tmp_path, monkeypatch, text)}:app")
    ended = await run(pool, "echo")
    assert ended.outcome is Outcome.FAILED
    assert ended.error is not None
    assert "ConnectionError: no database" in ended.error.message
    await pool.close()


async def test_a_handler_that_the_imported_app_does_not_have_is_a_failure(pool: ChildPool) -> None:
    ended = await run(pool, "unheard_of")
    assert ended.outcome is Outcome.FAILED
    assert ended.error is not None
    assert ended.error.type == "UnknownHandler"


async def test_a_machine_that_starts_no_more_processes_fails_the_attempt(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(os.listdir("/proc/self/fd"))
    ended = await run(pool, "echo")
    assert ended.outcome is Outcome.FAILED
    assert ended.error is not None
    assert "Resource temporarily unavailable" in ended.error.message
    assert len(os.listdir("/proc/self/fd")) == before


async def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        pool = ChildPool(f"{HERE}:app")
        await run(pool, "die", how="exit")
        await run(pool, "quiet")
        await pool.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) == before, "all descriptors are closed")


# ---- output ----


async def test_output_of_every_kind_goes_to_the_attempts_file_in_order(pool: ChildPool, tmp_path: Path) -> None:
    output = tmp_path / "folder" / "output"
    result_of(await perform(pool, claimed("talk"), output))
    lines = output.read_text().splitlines()
    assert lines[:7] == [
        "printed ✓",
        "to stderr",
        "from the buffer",
        "from C",
        "from a sub-process",
        "and its stderr",
        "from a thread",
    ]
    assert lines[7].endswith("Z WARNING shop: logged warning")
    assert lines[8:] == ["no newline at the end"]


async def test_the_tasks_own_log_is_kept_from_info_on(pool: ChildPool, tmp_path: Path) -> None:
    output = tmp_path / "output"
    await perform(pool, claimed("log"), output)
    assert output.read_text().endswith("Z INFO duetime.task: progress of the work\n")


async def test_an_attempt_without_output_has_no_file_and_does_not_inherit_anothers(pool: ChildPool, tmp_path: Path) -> None:
    outputs = [tmp_path / str(number) for number in range(3)]
    await perform(pool, claimed("talk"), outputs[0])
    await perform(pool, claimed("quiet"), outputs[1])
    await perform(pool, claimed("log"), outputs[2])
    assert not outputs[1].exists()
    assert len(outputs[2].read_text().splitlines()) == 1


async def test_a_handler_that_prints_too_much_is_cut_and_the_next_one_is_not(tmp_path: Path) -> None:
    pool = ChildPool(f"{HERE}:app", output_cap=1_000)
    try:
        output, after = tmp_path / "output", tmp_path / "after"
        assert result_of(await perform(pool, claimed("flood", lines=20_000), output)) == 20_000
        text = output.read_text()
        assert text.startswith("".join(f"{number:099d}\n" for number in range(10)))
        assert text[1_000:] == "\n… the rest of the output was cut: an attempt may write 1,000 bytes\n"
        await perform(pool, claimed("log"), after)
        assert after.read_text().endswith("progress of the work\n")
    finally:
        await pool.close()


async def test_output_that_cannot_be_written_does_not_harm_the_attempt(pool: ChildPool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result_of(await perform(pool, claimed("talk"), tmp_path / "file" / "output"))
    result_of(await perform(pool, claimed("flood", lines=2_000), Path("/dev/full")))
    output = tmp_path / "output"
    await perform(pool, claimed("log"), output)
    assert output.exists()


async def test_the_programs_own_log_format_is_kept_and_nothing_is_logged_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        import logging
        from tests.integration.process_handlers import SmallApp

        logging.basicConfig(level=logging.INFO, format="mine: %(message)s")
        app = SmallApp()

        @app.task
        def work() -> None:
            logging.getLogger("shop").info("hello")
    """
    pool = ChildPool(f"{module(tmp_path, monkeypatch, text)}:app")
    output = tmp_path / "output"
    result_of(await perform(pool, claimed("work"), output))
    assert output.read_text() == "mine: hello\n"
    await pool.close()


# ---- import strings ----


def test_an_app_is_found_in_its_handlers_module_first() -> None:
    assert import_string_of(process_handlers.app) == f"{HERE}:app"
    assert import_string_of(process_handlers.silent) == f"{HERE}:silent"


def test_an_app_is_found_in_another_module_than_its_handler() -> None:
    assert import_string_of(process_handlers.app) == f"{HERE}:app"


def test_an_app_that_is_no_modules_attribute_is_refused() -> None:
    app = process_handlers.SmallApp()
    assert import_string_of(app) is None


def test_an_app_in_a_script_has_no_import_string(monkeypatch: pytest.MonkeyPatch) -> None:
    app = process_handlers.SmallApp()
    monkeypatch.setattr(sys.modules["__main__"], "app", app, raising=False)
    assert import_string_of(app) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recycle_after": 5}, 'add isolation="process"'),
        ({"max_memory": "1GB"}, 'add isolation="process"'),
        ({"isolation": "process", "recycle_after": 0}, "recycle_after must be a whole number of at least 1, got 0"),
        ({"isolation": "process", "max_memory": "much"}, "max_memory must be a size such as"),
        ({"isolation": "process", "max_memory": 0}, "max_memory must be a whole number of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_sub_processes_is_refused(options: Any, said: str) -> None:
    with pytest.raises(DuetimeError, match=re.escape(said)):
        App("sqlite:///:memory:").task(name="work", **options)(_nothing)


def test_a_handler_in_sub_processes_has_as_many_slots_as_there_are_cores() -> None:
    app = App("sqlite:///:memory:")
    for name, options in OPTIONS.items():
        app.task(name=name, **options)(_nothing)
    slots = {name: app.specs[name].concurrency for name in OPTIONS}
    assert slots == {"usual": 50, "process": os.cpu_count(), "chosen": 3}


OPTIONS: dict[str, Any] = {"usual": {}, "process": {"isolation": "process"}, "chosen": {"isolation": "process", "concurrency": 3}}


def _nothing() -> None: ...
