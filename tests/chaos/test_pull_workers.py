"""Pull workers under fire: real programs in another language, killed and frozen, and servers that die before they answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from duetime import App
from duetime.duties import Reaper
from duetime.runtime.service import Alarms
from tests.api.conftest import Client, served, until
from tests.api.pulling import EXAMPLES, PullWorker, example, node, program, register
from tests.conformance.build import watch
from tests.servers.waiting import PATIENCE

PAUSE = 3  # seconds that a task of the examples takes
SLOW_SHELL = (str(EXAMPLES / "pull_worker.sh"), "resize", "sh", "-c", f"cat >/dev/null; sleep {PAUSE}; echo 12")
LEASE = 30  # seconds, more than either example has


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def http(url: str) -> AsyncIterator[Client]:
    async with served(App(url)) as client:
        yield client


def command() -> Sequence[str]:
    """Give the example that can run here; the summary of the run says which. Without any, a test does what is left of it."""
    return example() if node() else SLOW_SHELL if shutil.which("curl") else ()


async def submit(http: Client) -> str:
    body = {"handler": "resize", "payload": {"width": 3, "height": 4, "pause": PAUSE}}
    return str((await http("POST", "/v1/tasks", body, status=201)).json["id"])


async def is_running(http: Client, id: str) -> bool:
    return bool((await http("GET", f"/v1/tasks/{id}")).json["state"] == "running")


async def lose(http: Client, lost: str, *living: PullWorker) -> None:
    """Let a lease pass on a reaper's clock, in which only some workers have beaten; no test has to wait for it."""
    alarms = Alarms()
    reaper = Reaper(http.server.app.store, alarms, lease=LEASE)
    await reaper.reap(1_000.0)
    for began_at in (1_000.0, 1_000.0 + LEASE):  # what it sent before it was stopped may still renew its lease once
        for worker in living:
            await worker.renew()
        await watch(reaper, began_at, began_at + LEASE)  # unless the server's own reaper was faster
    assert lost not in [worker.id for worker in await http.server.app.store.workers()]
    alarms.close()
    assert lost not in [worker["id"] for worker in (await http("GET", "/v1/workers")).json["items"]]


async def claimed(http: Client, worker: PullWorker) -> Any:
    [item] = await worker.claim(wait=10)
    return item


async def test_the_task_of_a_killed_worker_runs_again(http: Client) -> None:
    if not command():
        return
    async with program(command(), http.url) as first:
        id = await submit(http)
        await until(lambda: is_running(http, id), "the task runs")
        os.killpg(first.process.pid, signal.SIGKILL)
        await first.process.wait()
    other = await register(http, lease=60)
    assert await other.claim() == []
    await lose(http, first.id, other)
    again = await claimed(http, other)
    assert (again["id"], again["fence"], again["tries"]) == (id, 2, 0)
    assert await other.complete(again, result="second") == ("accepted", "succeeded")
    attempts = (await http("GET", f"/v1/tasks/{id}/attempts")).json["items"]
    assert [attempt["outcome"] for attempt in attempts] == ["lost", "succeeded"]


async def test_the_word_of_a_worker_that_was_frozen_for_too_long_changes_nothing(http: Client) -> None:
    if not command():
        return
    async with program(command(), http.url) as first:
        id = await submit(http)
        await until(lambda: is_running(http, id), "the task runs")
        os.killpg(first.process.pid, signal.SIGSTOP)
        other = await register(http, lease=60)
        await lose(http, first.id, other)
        again = await claimed(http, other)
        os.killpg(first.process.pid, signal.SIGCONT)
        # the one in JavaScript is also told, by its next claim, that its lease is over, and registers anew
        said = sorted([await first.line() for _ in range(2 if node() else 1)])
        assert said[0].startswith(f"{id} 1 ")
        assert "stale" in said[0]
        assert [line.partition(" ")[0] for line in said[1:]] == ["ready"] * len(said[1:])
        stored = (await http("GET", f"/v1/tasks/{id}")).json
        assert (stored["state"], stored["attempt"], stored["worker"], stored["result"]) == ("running", 2, other.id, None)
        assert await other.complete(again, result="second") == ("accepted", "succeeded")
        assert (await http("GET", f"/v1/tasks/{id}")).json["result"] == "second"


def group(leader: int) -> list[str]:
    """List the commands of a group's processes that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(its_group) == leader and state not in "ZX":
                found.append((stat.parent / "cmdline").read_text())
    return found


async def test_nobody_renews_for_a_script_that_was_killed(http: Client) -> None:
    if shutil.which("curl") is None:
        return
    async with program(SLOW_SHELL, http.url) as killed:
        leader = killed.process.pid

        async def renews() -> bool:
            return "sleep\x0010\0" in group(leader)

        await until(renews, "it waits for its next renewal")
        killed.signal(signal.SIGKILL)  # the shell alone
        await killed.process.wait()

        async def are_gone() -> bool:
            return not group(leader)

        await until(are_gone, "what the script had started has ended too")


async def test_the_example_in_javascript_ends_when_told_although_the_server_is_gone(url: str) -> None:
    if node() is None:
        return
    async with server_process(url) as (server, address), program(example(), f"http://{address}") as running:
        server.kill()
        await server.wait()
        running.signal(signal.SIGTERM)
        await asyncio.wait_for(running.process.wait(), PATIENCE)


@contextlib.asynccontextmanager
async def server_process(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    arguments = ("-m", "duetime.cli", "server", "--port", "0")
    environment = {**os.environ, "DUETIME_URL": url}
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            said = ""
            while (address := re.search(r" at http://(\S+) on ", said)) is None:
                said = (await process.stderr.readline()).decode()
        yield process, address[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_claim_whose_server_died_before_it_answered_is_answered_by_another(http: Client, url: str) -> None:
    worker = await register(http)
    id = await submit(http)
    async with server_process(url) as (process, address):
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"claim": 7, "limit": 5}'
        head = f"POST /v1/workers/{worker.id}/claim HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: is_running(http, id), "the server has claimed the task")
        process.kill()
        writer.close()
        await process.wait()
    [item] = await worker.claim(claim=7, limit=5)
    assert (item["id"], item["attempt"]) == (id, 1)
    assert await worker.complete(item) == ("accepted", "succeeded")
    assert await worker.claim(claim=8) == []


async def test_hundreds_of_tasks_run_once_each_although_servers_come_and_go(http: Client, url: str) -> None:
    """Workers lose answers on purpose: they ask again, at whichever server answers, and no task runs twice or is lost."""
    total = 200
    tasks = [{"handler": "resize", "payload": {"number": number}} for number in range(total)]
    workers = [await register(http, handlers={"resize": {"slots": 8}}) for _ in range(4)]
    ids = [item["id"] for item in (await http("POST", "/v1/tasks/batch", tasks)).json["items"]]
    ran: list[str] = []

    async def work(worker: PullWorker, servers: Sequence[Client]) -> None:
        for number in range(1, total):
            lost = await worker.claim(claim=number, limit=8, at=servers[number % 2])
            items = await worker.claim(claim=number, limit=8, at=servers[(number + 1) % 2])
            assert sorted(item["id"] for item in items) == sorted(item["id"] for item in lost)
            if not items:
                return
            for item in items:
                ran.append(item["id"])
                assert (await worker.complete(item, at=servers[number % 2]))[0] == "accepted"
                assert (await worker.complete(item, at=servers[(number + 1) % 2]))[0] == "already"

    async with served(App(url)) as other:
        await asyncio.gather(*(work(worker, (http, other)) for worker in workers))
    assert sorted(ran) == sorted(ids)
    stats = (await http("GET", "/v1/stats")).json
    assert stats["states"]["succeeded"] == total
