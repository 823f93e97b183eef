"""Workers that only their beats prove alive: what people see of one that fell silent, and how the doctor takes its tasks back."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from duetime.cli import show
from duetime.clock import SECOND, ManualClock, SystemClock
from duetime.ids import new_id
from duetime.store.open import store_from_url
from duetime.store.pull_workers import PullWorker
from duetime.store.shard import Lease
from duetime.store.values import NewWorker
from tests.cli.conftest import CommandLine, Program, Shop, until
from tests.cli.test_remote import serving
from tests.conformance.build import new_task
from tests.servers.waiting import PATIENCE

SILENT_FOR = 42
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture
def kind() -> str:
    return "postgres"


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(autouse=True)
def short_lease(own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor watches for the longer one of this and the worker's own."""
    monkeypatch.setenv("DUETIME_LEASE", "1s")


async def hire(
    url: str, *, ago: float = SILENT_FOR, holding: bool = True, pull: bool = False, lease: float = 1.0
) -> tuple[str, str, Lease]:
    """Register a worker whose only beat is so many seconds old and which has claimed a task; return its id, the task's id and its lease."""
    store = store_from_url(url, clock=ManualClock(SystemClock().now() - round(ago * SECOND)))
    await store.open()
    try:
        worker, slots = new_id(), {"greet": 2}
        if pull:
            await store.register_pull_worker(PullWorker(id=worker, name="resizer", slots=slots, lease=lease))
            held = None
        else:
            held = await store.register(NewWorker(id=worker, host="there", pid=4711, slots=slots, lease=lease))
        [added] = await store.add([new_task("greet", b'{"name": "x"}')])
        if holding:
            claim = store.claim_for if pull else store.claim
            [task] = (await claim(worker, 1, {"greet": 1}, 1)).tasks
        return worker, task.id if holding else added.record.id, held  # type: ignore[return-value]  # no caller asks for the lease of a pull worker
    finally:
        await store.close()


class Seconds:
    """Any number of seconds that is about the time for which the worker was silent."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and SILENT_FOR <= other < SILENT_FOR + 20

    def __hash__(self) -> int:
        return 0


# ---- what people are shown ----


def test_the_list_tells_who_beats_and_who_has_been_silent_for_longer_than_its_lease(duetime: CommandLine, shop: Shop) -> None:
    dead, _, _ = shop.do(hire(duetime.url))
    living, _, _ = shop.do(hire(duetime.url, ago=0, lease=60, holding=False))
    header, *lines = duetime.lines("workers")
    rows = {row[0]: dict(zip(re.split(r"\s{2,}", header), row, strict=True)) for row in (re.split(r"\s{2,}", line) for line in lines)}
    assert re.fullmatch(r"silent (4[2-9]|5\d)\.\d s", rows[dead]["alive"])
    assert re.fullmatch(r"(4[2-9]|5\d)\.\d s ago", rows[dead]["last beat"])
    assert rows[living]["alive"] == "yes"
    assert rows[living]["last beat"].endswith("s ago")
    found = {each["id"]: each for each in duetime.json("workers")["items"]}
    assert (found[dead]["alive"], found[dead]["silent_for"]) == (None, Seconds())
    assert (found[living]["alive"], found[living]["silent_for"]) == (None, None)
    assert found[dead]["beat_at"] < found[living]["beat_at"]


def test_the_list_tells_the_same_over_a_server(duetime: CommandLine, shop: Shop) -> None:
    dead, task, _ = shop.do(hire(duetime.url, lease=30))  # the server, which watches it too, does not take it for dead so soon
    with serving(duetime.url) as address:
        answer = duetime("workers", url=address).stdout
        assert re.search(rf"^{dead}  silent (4[2-9]|5\d)\.\d s ", answer, re.MULTILINE)
        assert "that worker has been silent for " in duetime("why", task, url=address).stdout
        assert "0 live workers, 1 silent. " in duetime("stats", url=address).stderr


def test_why_doubts_that_a_task_runs_whose_worker_is_silent(duetime: CommandLine, shop: Shop) -> None:
    dead, task, _ = shop.do(hire(duetime.url))
    [reason] = duetime.json("why", task)["items"]
    assert (reason["kind"], reason["by"]) == ("running", dead)
    assert re.fullmatch(
        rf"attempt 1 has been running for .+ on worker {dead}; but that worker has been silent for (4[2-9]|5\d) seconds: the task goes "
        r"back as soon as another worker, a server or `duetime doctor --repair` has seen it silent for a lease",
        reason["text"],
    )


def test_why_does_not_doubt_a_worker_that_beats(duetime: CommandLine, shop: Shop) -> None:
    living, task, _ = shop.do(hire(duetime.url, ago=0, lease=60))
    assert duetime("why", task).stdout.endswith(f" on worker {living}\n")


@on_sqlite
def test_why_tells_of_a_worker_that_the_store_knows_to_be_dead(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker("--handler", "wait_for") as worker:
        task = duetime.submit("wait_for", f"path={tmp_path}/never")
        until(lambda: duetime.json("task", task)["state"] == "running", lambda: "the task to run")
        assert "; but" not in duetime("why", task).stdout
        worker.signal(signal.SIGKILL)
        worker.process.wait()
    assert "; but that worker has ended: the task goes back as soon as " in duetime("why", task).stdout


def test_silent_workers_are_not_counted_as_live(duetime: CommandLine, shop: Shop) -> None:
    shop.do(hire(duetime.url))
    task = duetime.submit("greet", "name=y")
    assert "0 live workers, 1 silent. A returned write survives" in duetime("stats").stderr
    found = duetime.json("stats")
    assert (found["workers"], found["silent_workers"]) == (0, 1)
    [greet] = [each for each in duetime.json("handlers")["items"] if each["name"] == "greet"]
    assert (greet["workers"], greet["slots"]) == (0, 0)
    assert duetime("why", task).stdout.startswith("no live worker runs greet; ")
    shop.do(hire(duetime.url, ago=0, lease=60, holding=False))
    assert "1 live worker, 1 silent. " in duetime("stats").stderr
    assert "nothing holds it" in duetime("why", task).stdout


# ---- the doctor ----


def test_a_silent_worker_that_nobody_watches_is_a_problem_and_the_doctor_does_not_wait_to_say_so(
    duetime: CommandLine, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, task, _ = shop.do(hire(duetime.url))
    duetime.submit("greet", "name=y")
    monkeypatch.setattr("duetime.client.doctor.LocalDoctor._take_back", None)  # nothing is watched
    answer = duetime("doctor", code=1)
    assert re.search(
        rf"^problem: silent worker: {dead}: process 4711 on there has not beaten for (4[2-9]|5\d)\.\d s, its lease is 1 s, and no other "
        r"worker beats; what it holds \(1 attempt\) goes back when a worker or a server runs, or with --repair$",
        answer.stdout,
        re.MULTILINE,
    )
    assert "note: no worker: greet: 1 due task and no live worker that runs them" in answer.stdout
    assert answer.stdout.endswith("1 problem left of 1; what can be repaired is: duetime doctor --repair\n")
    assert duetime.json("doctor", code=1)["healthy"] is False
    assert duetime.json("task", task)["state"] == "running"


@pytest.mark.parametrize(("kind", "pull"), [("postgres", False), ("postgres", True), ("sqlite", True)])
@pytest.mark.covers("DBS.4", "KBL.5")
def test_the_doctor_takes_tasks_back_from_a_worker_that_it_has_seen_silent_for_a_lease(
    duetime: CommandLine, shop: Shop, pull: bool
) -> None:
    dead, task, _ = shop.do(hire(duetime.url, pull=pull))
    began_at = time.monotonic()
    answer = duetime("doctor", "--repair")
    assert time.monotonic() - began_at >= 1.0
    assert "watching 1 silent worker for a lease, up to 1 s: one that does not beat meanwhile is dead\n" in answer.stderr
    assert f"repaired: silent worker: {dead}: {'pull worker resizer' if pull else 'process 4711 on there'} has not " in answer.stdout
    assert answer.stdout.endswith("1 problem, repaired\n")
    found = duetime.json("task", task)
    assert (found["state"], [attempt["outcome"] for attempt in found["attempts"]]) == ("pending", ["lost"])
    assert duetime.json("workers")["items"] == []


def test_what_the_doctor_prints_for_programs_is_nothing_but_json(duetime: CommandLine, shop: Shop) -> None:
    dead, _, _ = shop.do(hire(duetime.url))
    found = duetime.json("doctor", "--repair")
    assert found["healthy"] is True
    assert [(each["level"], each["kind"], each["subject"], each["repaired"]) for each in found["findings"]][:1] == [
        ("problem", "silent worker", dead, True)
    ]


def test_a_worker_that_beats_while_it_is_watched_keeps_its_tasks(duetime: CommandLine, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, task, lease = shop.do(hire(duetime.url, lease=30))
    said: list[str] = []

    def renew() -> None:
        lease.renew()
        lease.close()

    def beat(text: str) -> None:
        said.append(text)
        thread = threading.Thread(target=renew)  # it has an event loop of its own, as in a worker
        thread.start()
        thread.join()

    monkeypatch.setattr(show, "note", beat)
    answer = duetime("doctor", "--repair")
    assert said == ["watching 1 silent worker for a lease, up to 30 s: one that does not beat meanwhile is dead"]
    assert re.search(rf"^note: silent worker: {silent}: .*; it beat again while it was watched$", answer.stdout, re.MULTILINE)
    assert answer.stdout.endswith("no problems\n")
    assert duetime.json("task", task)["state"] == "running"


def test_a_silent_worker_is_only_worth_knowing_if_another_beats_or_it_holds_nothing(duetime: CommandLine, shop: Shop) -> None:
    idle, _, _ = shop.do(hire(duetime.url, holding=False))
    answer = duetime("doctor")
    assert f"note: silent worker: {idle}: " in answer.stdout
    assert answer.stdout.endswith("no problems\n")
    living, _, _ = shop.do(hire(duetime.url, ago=0, lease=60, holding=False))
    dead, _, _ = shop.do(hire(duetime.url, ago=SILENT_FOR - 1))
    answer = duetime("doctor")
    for worker in (idle, dead):
        assert re.search(rf"^note: silent worker: {worker}: .*; another worker watches it and takes back ", answer.stdout, re.MULTILINE)
    assert "what it holds (1 attempt)" in answer.stdout
    assert living not in answer.stdout
    assert answer.stdout.endswith("no problems\n")


def test_a_doctor_that_watches_can_be_interrupted(program: Program, duetime: CommandLine, shop: Shop) -> None:
    _, task, _ = shop.do(hire(duetime.url, lease=30))
    with program.start("doctor", "--repair") as doctor:
        assert doctor.stderr is not None
        assert doctor.stderr.readline().startswith("watching 1 silent worker for a lease, up to 30 s")
        doctor.send_signal(signal.SIGINT)
        doctor.communicate(timeout=PATIENCE)
    assert doctor.returncode == 130
    assert duetime.json("task", task)["state"] == "running"
