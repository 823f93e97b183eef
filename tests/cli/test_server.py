"""The server as the process that people start."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import CommandLine, Program, RunningWorker, until
from tests.servers.waiting import PATIENCE


class RunningServer(RunningWorker):
    """A server's process, and requests to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.until_said(r"^duetime: server .* at http://")
        address = re.search(r" at (http://\S+) on ", self.said)
        assert address is not None
        self.host = address[1].removeprefix("http://")

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
        return ask(self.host, method, path, body, token=token)


def ask(host: str, method: str, path: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
    """Send one request over a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(host, timeout=PATIENCE)) as connection:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, msgspec.json.decode(response.read())


@contextlib.contextmanager
def server(program: Program, *options: str) -> Iterator[RunningServer]:
    process = program._start("server", *options, "--port", "0", stdout=subprocess.DEVNULL)
    try:
        running = RunningServer(process)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
    running.ended()


def test_it_serves_until_it_is_told_to_stop(program: Program, duetime: CommandLine) -> None:
    with server(program, "tests.cli.shop:app") as running:
        status, task = running.ask("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}, "delay": 60})
        assert (status, duetime.ids()) == (201, [task["id"]])
        assert running.ask("GET", "/readyz") == (200, {"status": "ok", "loops": []})
        running.signal(signal.SIGTERM)
        running.until_said(r"^duetime: the server has stopped$")
        assert running.process.wait(PATIENCE) == 0
    assert "A returned write survives" in running.said
    assert "There are no tokens: anyone who reaches this address may do everything." in running.said
    assert "/openapi.json" in running.said


def test_a_server_without_an_app_knows_what_was_declared(program: Program, duetime: CommandLine) -> None:
    with program.worker(), server(program) as running:
        status, task = running.ask("POST", "/v1/tasks?wait=30", {"handler": "greet", "payload": {"name": "Ada"}})
        assert (status, task["state"], task["result"]) == (201, "succeeded", "hello Ada")
        assert running.ask("POST", "/v1/tasks", {"handler": "greet", "payload": {}})[0] == 422
        running.signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 0


class Insistent:
    """Submits through servers in turn: a request that nobody has answered goes to the next one, under the same key."""

    def __init__(self, servers: Sequence[RunningServer]) -> None:
        self._servers = servers
        self.accepted: list[str] = []
        self.at_first_try = 0

    def submit(self, number: int) -> None:
        body = msgspec.json.encode({"handler": "greet", "payload": {"name": f"n{number}"}})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"order-{number}"}
        for tries in range(2):
            running = self._servers[(number + tries) % 2]
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                contextlib.closing(http.client.HTTPConnection(running.host, timeout=PATIENCE)) as connection,
            ):
                connection.request("POST", "/v1/tasks", body, headers)
                response = connection.getresponse()
                answer = msgspec.json.decode(response.read())
                assert response.status == 201, answer
                self.accepted.append(answer["id"])
                self.at_first_try += tries == 0
                return
        raise AssertionError(f"nobody has accepted request {number}")


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("REQ.4")
def test_one_of_two_servers_is_killed_and_every_request_is_accepted_at_once_and_stored_once(program: Program, duetime: CommandLine) -> None:
    with server(program, "tests.cli.shop:app") as one, server(program, "tests.cli.shop:app") as other:
        client = Insistent([one, other])
        with ThreadPoolExecutor(4) as threads:
            requests = [threads.submit(client.submit, number) for number in range(400)]
            until(lambda: len(client.accepted) >= 100, lambda: "a hundred requests are accepted")
            one.process.kill()
            for each in requests:
                each.result()
        assert len(client.accepted) == len(set(client.accepted)) == 400
        assert 100 <= client.at_first_try < 400, "some went to the one that was killed"
    assert {each["state"] for each in duetime.json("tasks", "--all")["items"]} == {"pending"}, "acceptance waits for nobody to work"
    assert sorted(duetime.ids()) == sorted(client.accepted)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_it_refuses_to_listen_beyond_loopback(duetime: CommandLine, host: str) -> None:
    said = duetime("server", "--host", host, code=2).stderr
    assert "its store has no tokens that are good" in said
    assert "`duetime tokens create`, or listen on 127.0.0.1" in said


def test_with_a_token_every_request_needs_one(program: Program, duetime: CommandLine) -> None:
    duetime("migrate")
    token = duetime("tokens", "create", "shop", "--scope", "submit").stdout.strip()
    with server(program, "tests.cli.shop:app") as running:
        status, problem = running.ask("GET", "/v1/tasks")
        assert (status, problem["type"]) == (401, "urn:duetime:problem:unauthorized")
        status, task = running.ask("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}, "delay": 60}, token=token)
        assert (status, task["submitted_by"]) == (201, "shop")
        running.signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
    assert "Requests need a token." in running.said
    assert duetime.json("tokens")["items"][0]["last_used_at"] is not None


def test_what_is_wrong_is_said_in_one_line(program: Program, duetime: CommandLine) -> None:
    assert "--body-limit must be a size" in duetime("server", "--body-limit", "much", code=2).stderr
    with server(program) as running:
        port = running.host.rpartition(":")[2]
        said = program.run("server", "--port", port, code=1).stderr
        assert said.splitlines()[-1].startswith(f"duetime: cannot listen on 127.0.0.1, port {port}: ")
