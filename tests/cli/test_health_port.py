"""The health port of a worker: what probes are told while it starts, works, is cut off from its store, is blocked, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duetime import App
from duetime.api.problems import Refusal
from duetime.cli.hosting import health_port
from duetime.cli.hosting.health_port import MOST_CONNECTIONS, MOST_HEAD, HealthPort, Page, bind
from duetime.cli.hosting.probes import STUCK_AFTER, Probes
from tests.cli.conftest import ROOT, CommandLine, Program, RunningWorker, until
from tests.cli.test_worker import begun
from tests.servers.fixtures import NewPostgres
from tests.servers.waiting import PATIENCE

APP = """
import contextlib, os, pathlib, time
from duetime import App

@contextlib.asynccontextmanager
async def resources():
    import asyncio
    while not pathlib.Path("{folder}/open").exists():
        await asyncio.sleep(0.01)
    yield None

app = App(lifespan=resources)

@app.task
async def block(path: str) -> None:
    pathlib.Path(path + ".begun").touch()
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
"""


def url_of(worker: RunningWorker) -> str:
    worker.until_said(r"^duetime: health at http://")
    return str(re.findall(r"^duetime: health at (http://127\.0\.0\.1:\d+): ", worker.said, re.MULTILINE)[0])


def get(url: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def samples(url: str) -> dict[tuple[str, str], float]:
    """Return the worker's metrics by name and handler."""
    families = text_string_to_metric_families(get(f"{url}/metrics")[1].decode())
    return {(each.name, each.labels.get("handler", "")): each.value for family in families for each in family.samples}


def test_it_is_ready_while_it_works_and_not_while_it_drains(program: Program, duetime: CommandLine, tmp_path: Path) -> None:
    with program.worker("--health-port", "0") as worker:
        url = url_of(worker)
        assert get(f"{url}/readyz") == (200, b'{"status":"ok","loops":[]}')
        assert "feeder" in [loop["name"] for loop in json.loads(get(f"{url}/livez")[1])["loops"]]
        duetime("submit", "greet", "name=Ada", "--wait")
        duetime("submit", "wait_for", f"path={tmp_path}/go")
        begun(tmp_path / "go")
        found = samples(url)
        assert found["duetime_worker_ready", ""] == 1
        assert found["duetime_worker_running", ""] == 1
        assert found["duetime_worker_attempts_total", "greet"] == 1
        assert found["duetime_worker_duration_seconds_count", "greet"] == 1
        worker.signal(signal.SIGTERM)
        worker.until_said("SIGTERM: stopping; 1 attempt may go on")
        status, body = get(f"{url}/readyz")
        assert status == 503
        assert "stopping" in json.loads(body)["detail"]
        assert samples(url)["duetime_worker_ready", ""] == 0
        assert get(f"{url}/livez")[0] == 200
        tmp_path.joinpath("go").touch()
        assert worker.ended() == 0
    with pytest.raises(OSError, match="refused"):
        get(f"{url}/livez")


@pytest.mark.slow
def test_it_is_alive_but_not_ready_until_it_is_registered_and_answers_while_a_handler_blocks(
    program: Program, duetime: CommandLine, tmp_path: Path
) -> None:
    tmp_path.joinpath("probed_app.py").write_text(APP.format(folder=tmp_path))
    program.environment["PYTHONPATH"] = str(tmp_path)
    with program.start("worker", "probed_app:app", "--health-port", "0", "--no-echo") as process:
        worker = RunningWorker(process)
        url = url_of(worker)
        status, body = get(f"{url}/readyz")
        assert (status, json.loads(body)["type"]) == (503, "urn:duetime:problem:not-ready")
        assert get(f"{url}/livez")[0] == 200
        assert samples(url) == {("duetime_worker_ready", ""): 0}
        tmp_path.joinpath("open").touch()
        until(lambda: get(f"{url}/readyz")[0] == 200, lambda: f"a ready worker:\n{worker.said}")
        duetime("submit", "block", f"path={tmp_path}/go")
        until(tmp_path.joinpath("go.begun").exists, lambda: "a handler that blocks")
        until(lambda: samples(url)["duetime_worker_blocked_seconds", ""] > 0, lambda: "the blocked loop in the metrics")
        assert get(f"{url}/livez")[0] == 200  # not for long enough that a restart would be right
        tmp_path.joinpath("go").touch()
        until(lambda: samples(url).get(("duetime_worker_attempts_total", "block")) == 1, lambda: "the end of the attempt")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


@pytest.mark.slow
async def test_a_worker_that_is_cut_off_from_its_store_is_alive_but_not_ready(new_postgres: NewPostgres) -> None:
    postgres = await asyncio.to_thread(new_postgres)
    app = App(postgres.url())

    @app.task
    async def greet(name: str) -> str:
        return name

    async def becomes(ready: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while ready != is_ready():
                await asyncio.sleep(0.02)
                probes.alive()

    def is_ready() -> bool:
        try:
            probes.ready()
        except Refusal:
            return False
        return True

    async with app.worker() as worker:
        probes = Probes(lambda: worker, lambda: False)
        await becomes(ready=True)
        await asyncio.to_thread(postgres.kill)
        await becomes(ready=False)
        await asyncio.to_thread(postgres.start)
        await becomes(ready=True)


async def test_a_loop_that_does_not_go_on_asks_for_a_restart(url: str) -> None:
    async with App(url).worker() as worker:
        probes = Probes(lambda: worker, lambda: False)
        probes.alive()
        worker.pulses[0].begin(-STUCK_AFTER)
        with pytest.raises(Refusal, match="feeder has not gone on for"):
            probes.alive()


def test_every_metric_of_a_worker_is_explained_and_every_explained_one_exists(program: Program, duetime: CommandLine) -> None:
    with program.worker("--health-port", "0") as worker:
        duetime("submit", "greet", "name=Ada", "--wait")
        url = url_of(worker)
        families = {family.name for family in text_string_to_metric_families(get(f"{url}/metrics")[1].decode())}
    page = ROOT.joinpath("docs/metrics.md").read_text(encoding="utf-8")
    assert {name.removesuffix("_total") for name in re.findall(r"^\| `(duetime_worker_\w+)`", page, re.MULTILINE)} == families


# ---- the port itself ----


@pytest.fixture
def port() -> Iterator[int]:
    listener = bind("127.0.0.1", 0)
    number: int = listener.getsockname()[1]

    def refuse() -> Page:
        raise AssertionError("a page is asked for by GET and HEAD only")

    with HealthPort(listener, {"/livez": lambda: Page(b"{}"), "/never": refuse}).serving():
        yield number


def sent(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        parts = []
        try:
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionResetError:
            pass
    return b"".join(parts)


def test_other_paths_and_methods_are_refused(port: int) -> None:
    assert sent(port, b"GET /livez?now HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    assert sent(port, b"HEAD /livez HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
    assert sent(port, b"POST /never HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello").startswith(b"HTTP/1.1 405 ")
    lost = sent(port, b"GET /v1/tasks HTTP/1.1\r\n\r\n")
    assert lost.startswith(b"HTTP/1.1 404 ")
    assert b"there are /livez, /never" in lost


@pytest.mark.parametrize("data", [b"\r\n\r\n", b"\0\xff \r\n\r\n", b"GET /livez\r\n\r\n"])
def test_bytes_that_are_no_request_do_it_no_harm(port: int, data: bytes) -> None:
    sent(port, data)
    assert get(f"http://127.0.0.1:{port}/livez")[0] == 200


def test_a_head_without_end_is_cut_off_and_a_silent_connection_keeps_nobody_waiting(port: int) -> None:
    assert sent(port, b"GET /livez HTTP/1.1\r\nx: " + b"x" * 3 * MOST_HEAD) == b""
    with socket.create_connection(("127.0.0.1", port)):
        assert get(f"http://127.0.0.1:{port}/livez")[0] == 200


def test_more_silent_connections_than_it_keeps_are_closed_and_one_that_ends_makes_way(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "WITHIN", 2 * PATIENCE)  # none of them ends by itself
    request = b"GET /livez HTTP/1.1\r\n\r\n"
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MOST_CONNECTIONS - 1)]
        assert sent(port, request).startswith(b"HTTP/1.1 200 OK\r\n")
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        until(lambda: sent(port, request) == b"", lambda: "a connection too many that is closed without an answer")
        silent[0].close()
        until(lambda: sent(port, request) != b"", lambda: "an answer after another connection has ended")


@pytest.mark.parametrize("data", [b"", b"GET /livez HTTP/1.1\r\nhost: "])
def test_an_exchange_that_does_not_end_in_time_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(health_port, "WITHIN", 0.05)
    assert sent(port, data) == b""


def test_a_port_that_is_taken_ends_the_worker_before_it_begins(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = program.run("worker", "tests.cli.shop:app", "--health-port", str(taken.getsockname()[1]), code=1)
    assert "something else listens there already: give another --health-port" in ended.stderr
    assert " runs tests.cli.shop:app" not in ended.stderr


def test_several_processes_cannot_share_a_port(duetime: CommandLine) -> None:
    refused = duetime("worker", "tests.cli.shop:app", "--processes", "2", "--health-port", "0", code=2)
    assert "--health-port is the port of one worker process" in refused.stderr


def test_it_needs_none_of_the_packages_of_a_server() -> None:
    heavy: Any = {"starlette", "uvicorn", "httptools", "prometheus_client", "jinja2"}
    code = f"import sys, duetime.cli.hosting.probes; print(*({heavy!r} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
