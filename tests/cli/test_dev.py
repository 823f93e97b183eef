"""`duetime dev` as a newcomer meets it: paste what it prints, change the code, break it, stop it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import CommandLine, RunningWorker, until
from tests.cli.test_server import ask
from tests.servers.waiting import PATIENCE

SHOP = """
import asyncio
import time
from duetime import App, Context
import wording

app = App()

@app.task
async def charge(order_id: int, cents: int = 5) -> str:
    print("charging")
    return wording.say(order_id)

@app.task
async def wait(ctx: Context, seconds: float) -> str:
    await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
    return "waited"

@app.task
def block(seconds: float) -> None:
    time.sleep(seconds)
"""
WORDING = 'def say(order_id):\n    return f"order {order_id} is {WORD}"\n\nWORD = "paid"\n'


class RunningDev(RunningWorker):
    """A process of `duetime dev`, and requests to what it serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.host = ""

    def until_it_serves(self) -> None:
        self.until_said(r"\^C ends it\.$")
        address = re.search(r" at http://(\S+) ", self.said)
        assert address is not None
        self.host = address[1]

    @property
    def lines(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("curl ")]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return ask(self.host, method, path, body)

    def submit(self, handler: str, wait: float = 0, **payload: Any) -> Any:
        status, task = self.ask("POST", f"/v1/tasks?wait={wait}", {"handler": handler, "payload": payload})
        assert status == 201, task
        return task

    def state(self, task: Any) -> str:
        state: str = self.ask("GET", f"/v1/tasks/{task['id']}")[1]["state"]
        return state

    def until_runs(self, task: Any) -> None:
        until(lambda: self.state(task) == "running", lambda: f"the task runs:\n{self.said}")

    @property
    def serving(self) -> int:
        """The process that serves."""
        [worker] = self.ask("GET", "/v1/workers")[1]["items"]
        return int(worker["pid"])


Dev = Callable[..., contextlib.AbstractContextManager[RunningDev]]


@pytest.fixture
def dev(url: str, tmp_path: Path) -> Dev:
    @contextlib.contextmanager
    def start(*arguments: str, serves: bool = True, code: int | None = 0) -> Iterator[RunningDev]:
        process = subprocess.Popen(
            [sys.executable, "-m", "duetime.cli", "dev", "--port", "0", *arguments],
            cwd=tmp_path,
            env={**os.environ, "DUETIME_URL": url, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        running = RunningDev(process)
        try:
            if serves:
                running.until_it_serves()
            yield running
            if code is not None and process.poll() is None:
                running.signal(signal.SIGINT)
                assert process.wait(PATIENCE) == code, running.said
        finally:
            if process.poll() is None:
                process.kill()
            running.ended()

    return start


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "wording.py").write_text(WORDING)
    return tmp_path


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    return False


def until_gone(pid: int) -> None:
    def gone() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return not is_alive(pid)
        return True

    until(gone, lambda: f"process {pid} ends")


def pasted(line: str, **variables: str) -> Any:
    """Run a line as it is printed through a shell."""
    done = subprocess.run(["sh", "-c", line], capture_output=True, env={**os.environ, **variables}, timeout=PATIENCE, check=True)
    return msgspec.json.decode(done.stdout)


@pytest.mark.covers("ATF.1", "ATF.5")
def test_the_three_lines_that_it_prints_work_when_they_are_pasted_in_order(dev: Dev) -> None:
    with dev() as running:
        submit, wait, cancel = running.lines
        for _ in range(2):  # and once more
            later = pasted(submit)
            assert (later["handler"], later["state"], later["key"]) == ("greet", "pending", "order-7")
            task = pasted(wait)
            assert (task["state"], task["result"]) == ("succeeded", "hello Ada")
            assert pasted(cancel)["answers"] == {"cancelled": 1}
            assert running.state(later) == "cancelled"
    assert "stopped" in running.said


def test_the_lines_are_about_a_handler_of_ones_own(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        submit, wait, cancel = running.lines
        assert pasted(submit)["payload"] == {"order_id": 7}
        assert pasted(wait)["result"] == "order 7 is paid"
        assert pasted(cancel)["answers"] == {"cancelled": 1}


@pytest.mark.slow
@pytest.mark.covers("AIR.9")
def test_alerts_are_shown_on_the_terminal_when_they_begin_and_when_they_are_over(dev: Dev, shop: Path) -> None:
    rule = 'from duetime import Backlog\napp.alert("pile", Backlog(due=1), channels=["ops"])\n'
    (shop / "shop.py").write_text(SHOP.replace("def block", "def unused") + rule)
    with dev("shop:app") as running:
        running.ask("PUT", "/v1/gates/wait", {"action": "pause"})
        tasks = [running.submit("wait", seconds=0) for _ in range(3)]
        running.until_said(r"alert pile, firing: wait has 3 due tasks; 1 is allowed\.$")
        for task in tasks:
            running.ask("POST", f"/v1/tasks/{task['id']}/cancel")
        running.until_said(r"alert pile, recovered: Over: wait has 3 due tasks")


def test_requests_and_attempts_are_shown_on_the_terminal(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        task = running.submit("charge", wait=60, order_id=8)
        running.ask("GET", "/v1/tasks?key=secret")
        running.ask("GET", "/readyz")
        running.until_said(r"^[\d:]+  GET /v1/tasks 200 \(\d+ ms\)$")
    assert re.search(rf"^[\d:]+  │ charging\n[\d:]+  charge {task['id']} succeeded \(\d+ ms\)$", running.said, re.MULTILINE)
    assert re.search(r"^[\d:]+  POST /v1/tasks 201 ", running.said, re.MULTILINE)
    assert "secret" not in running.said
    assert "/readyz" not in running.said


RULES = """
from duetime import App
from duetime.targets.host import TargetHost

app = App()
hosts = []

class Noted(TargetHost):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        hosts.append(self)

import duetime.worker.worker
duetime.worker.worker.TargetHost = Noted

@app.task
async def judged(port: int) -> list[bool]:
    rules = hosts[0].addresses
    return [rules.judge(*there).allowed for there in (("127.0.0.1", 9000), ("10.0.0.1", 9000), ("127.0.0.1", port))]
"""


def test_loopback_is_allowed_to_http_handlers_and_that_is_said_but_not_its_own_server(dev: Dev, shop: Path) -> None:
    (shop / "ruled.py").write_text(RULES, encoding="utf-8")
    with dev("ruled:app") as running:
        port = int(running.host.rpartition(":")[2])
        assert running.submit("judged", wait=60, port=port)["result"] == [True, False, False]
    assert "HTTP handlers may connect to loopback addresses here" in running.said


ODD = """
import asyncio
import os
from duetime import App

app = App()
deep = []
for _ in range(100_000):
    deep = [deep]

@app.task
async def give(kind: str) -> object:
    return {"object": object(), "large": "x" * 2_000_000, "surrogate": "\\ud800", "deep": deep}[kind]

@app.task
async def throw(kind: str, pause: float | None = None) -> None:
    if pause is not None:
        await asyncio.sleep(pause)
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "cancel": asyncio.CancelledError, "close": GeneratorExit}[kind]

@app.task
async def die() -> None:
    os._exit(3)
"""


def until_failed_once(running: RunningDev, task: Any) -> None:
    def has_failed() -> bool:
        [first, *_] = running.ask("GET", f"/v1/tasks/{task['id']}/attempts")[1]["items"]
        return bool(first["outcome"] == "failed")

    until(has_failed, lambda: "the end of the first attempt is stored")


def test_the_line_of_an_attempt_says_what_is_stored(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    with dev("odd:app") as running:
        for kind in ("object", "large", "surrogate", "deep"):
            task = running.submit("give", wait=60, kind=kind)
            assert task["state"] == "failed"
            running.until_said(rf"^[\d:]+  give {task['id']} failed: {task['error']['type']}: the result cannot be stored")
        for kind in ("exit", "interrupt", "cancel", "close"):
            for pause in (None, 0.001):
                task = running.submit("throw", kind=kind, pause=pause)
                running.until_said(
                    rf"^[\d:]+  throw {task['id']} failed, runs again in [\d.]+ s: \w+(: .*)? \(odd\.py:\d+ in \w+\) \(\d+ ms\)$"
                )
                until_failed_once(running, task)
    assert " stopped" not in running.said.replace("duetime: stopped", "")


def test_the_attempts_of_a_task_that_kills_its_process_are_shown_up_to_its_quarantine(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    with dev("odd:app") as running:
        task = running.submit("die")
        running.until_said(r"^duetime: the serving process ended with exit code 3; it starts again")
        running.until_said(rf"^[\d:]+  die {task['id']}, attempt 2 lost, runs again: ProcessDied: ")
        running.until_said(rf"^[\d:]+  die {task['id']}, attempt 3 failed: Quarantined: ")
        until(lambda: running.state(task) == "failed", lambda: "the quarantine is stored")


def test_changed_code_takes_over_while_requests_wait_instead_of_being_refused(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is paid"
        first = running.serving
        answers: list[int] = []
        over = threading.Event()

        def keep_asking() -> None:
            while not over.is_set():
                answers.append(running.ask("GET", "/v1/stats")[0])

        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            (shop / "wording.py").write_text(WORDING.replace("paid", "settled"))
            running.until_said(r"^duetime: wording\.py changed: loading the new code$")
            running.until_said(r"^duetime: the new code serves")
            seen = len(answers)
            until(lambda: len(answers) > seen + 3, lambda: "the new process answers")
        finally:
            over.set()
            asking.join(PATIENCE)
        assert set(answers) == {200}
        assert running.serving != first
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is settled"
        until_gone(first)


def test_what_runs_when_the_code_changes_runs_again_and_uses_up_no_try(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        task = running.submit("wait", seconds=60)
        running.until_runs(task)
        (shop / "shop.py").write_text(SHOP.replace('return "waited"', 'return "waited anew"'))
        running.until_said(r"^duetime: the new code serves")
        task = running.ask("GET", f"/v1/tasks/{task['id']}?wait=60")[1]
        assert (task["state"], task["result"], task["attempt"], task["tries"]) == ("succeeded", "waited anew", 2, 0)
    assert "what is not done in 3 s runs again" in running.said


def test_code_that_does_not_load_is_shown_and_the_old_code_goes_on(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        (shop / "wording.py").write_text("def say(:\n")
        running.until_said(r"^duetime: shop cannot be imported: SyntaxError: [^(]+\(wording\.py, line 1\)$")
        running.until_said(r"^duetime: the old code goes on; waiting for the next change$")
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is paid"
        (shop / "wording.py").write_text(WORDING.replace("paid", "repaired"))
        running.until_said(r"^duetime: the new code serves")
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is repaired"


def test_code_that_is_broken_from_the_start_can_be_repaired_while_requests_wait(dev: Dev, shop: Path) -> None:
    (shop / "shop.py").write_text(SHOP.replace("import wording", "import wording, another"))
    with dev("shop:app", serves=False) as running:
        running.until_said(r"^duetime: shop cannot be imported: it needs the module 'another'")
        running.until_said(r"^duetime: nothing serves; requests wait for the next change of the code$")
        (shop / "another.py").write_text("")
        running.until_it_serves()
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is paid"


def test_a_file_that_is_not_imported_changes_nothing(dev: Dev, shop: Path) -> None:
    (shop / "notes.py").write_text("one = 1\n")
    with dev("shop:app") as running:
        (shop / "notes.py").write_text("two = 22\n")
        (shop / "wording.py").write_text(WORDING.replace("paid", "settled"))
        running.until_said(r"^duetime: the new code serves")
    assert "wording.py changed" in running.said
    assert "notes.py" not in running.said


def test_one_interrupt_ends_everything_and_gives_back_what_runs(dev: Dev, shop: Path, duetime: CommandLine) -> None:
    with dev("shop:app") as running:
        task = running.submit("wait", seconds=60)
        running.until_runs(task)
        serving = running.serving
        running.signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 0
    assert not is_alive(serving)
    assert duetime.json("workers")["items"] == []
    state = duetime.json("task", task["id"])
    assert (state["state"], state["attempt"], state["tries"]) == ("pending", 1, 0)


def test_a_second_interrupt_waits_for_nobody(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        task = running.submit("block", seconds=60)
        running.until_runs(task)
        serving = running.serving
        running.signal(signal.SIGINT)
        running.until_said(r"^duetime: stopping")
        running.signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 130
        until_gone(serving)


def test_nothing_is_left_when_it_is_killed(dev: Dev, shop: Path) -> None:
    with dev("shop:app", code=None) as running:
        task = running.submit("block", seconds=60)
        running.until_runs(task)
        serving = running.serving
        running.signal(signal.SIGKILL)
        assert running.process.wait(PATIENCE) == -signal.SIGKILL
        until_gone(serving)

        def refused() -> bool:
            with contextlib.suppress(ConnectionResetError):  # its last thread is about to let go of the port
                try:
                    running.ask("GET", "/readyz")
                except ConnectionRefusedError:
                    return True
            return False

        until(refused, lambda: "the port is free")


def test_a_serving_process_that_dies_is_replaced(dev: Dev, shop: Path) -> None:
    with dev("shop:app") as running:
        serving = running.serving
        os.kill(serving, signal.SIGKILL)
        running.until_said(r"^duetime: the serving process was killed by signal 9; it starts again")
        assert running.submit("charge", wait=60, order_id=7)["result"] == "order 7 is paid"
        assert running.serving != serving


def test_an_app_that_is_not_there_ends_it(dev: Dev, tmp_path: Path) -> None:
    with dev("nowhere:app", serves=False, code=None) as running:
        assert running.process.wait(PATIENCE) == 2
    assert "there is no module 'nowhere'" in running.said


def test_a_store_with_tokens_asks_for_them_here_too(dev: Dev, duetime: CommandLine) -> None:
    duetime("migrate")
    token = duetime("tokens", "create", "me", "--scope", "operate", "--scope", "submit").stdout.strip()
    with dev() as running:
        assert running.ask("GET", "/v1/stats")[0] == 401
        submit, wait, cancel = running.lines
        assert pasted(submit, DUETIME_TOKEN=token)["state"] == "pending"
        assert pasted(wait, DUETIME_TOKEN=token)["result"] == "hello Ada"
        assert pasted(cancel, DUETIME_TOKEN=token)["answers"] == {"cancelled": 1}
    assert token not in running.said


def test_without_the_servers_packages_it_says_what_to_install(duetime: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "duetime.api.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'duetime[server]'" in duetime("dev", code=1).stderr


def test_a_port_that_is_taken_is_said_to_be(dev: Dev, duetime: CommandLine) -> None:
    with dev() as running:
        assert "another server listens there already" in duetime("dev", "--port", running.host.rpartition(":")[2], code=1).stderr
