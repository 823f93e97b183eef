"""What tests of pull workers share: a worker in this process that speaks HTTP, and the examples as programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers.install import NODE as PEERS_NODE
from tests.api.conftest import Client
from tests.servers.waiting import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OLDEST_NODE = 18
SHELL_COMMAND = (str(EXAMPLES / "pull_worker.sh"), "resize", "sh", "-c", "cat >/dev/null; echo '{\"pixels\": 12}'")


class PullWorker:
    """A worker that does nothing by itself."""

    def __init__(self, http: Client, id: str) -> None:
        self.http = http
        self.id = id

    async def claim(self, *, at: Client | None = None, status: int = 200, **body: Any) -> list[Any]:
        answer = await (at or self.http)("POST", f"/v1/workers/{self.id}/claim", body, status=status)
        items: list[Any] = answer.json.get("items", [])
        return items

    async def renew(self, *, at: Client | None = None, **body: Any) -> Any:
        return (await (at or self.http)("POST", f"/v1/workers/{self.id}/renew", body)).json

    async def complete(self, item: Any, *, at: Client | None = None, **body: Any) -> tuple[str, str]:
        answer = await self.say("complete", item, at=at, **body)
        return answer["verdict"], answer["state"]

    async def say(self, what: str, item: Any, *, at: Client | None = None, **body: Any) -> Any:
        whole = {"worker": self.id, "attempt": item["attempt"], **body}
        return (await (at or self.http)("POST", f"/v1/tasks/{item['id']}/{what}", whole)).json


async def register(http: Client, *, handlers: Any = None, **body: Any) -> PullWorker:
    answer = await http("POST", "/v1/workers", {"handlers": handlers or {"resize": {"slots": 10}}, **body}, status=201)
    return PullWorker(http, answer.json["id"])


# ---- the examples ----


def node() -> str | None:
    """Find a Node that can run the example: the system's, or the one that the benchmarks install."""
    for candidate in (shutil.which("node"), str(PEERS_NODE)):
        if candidate is not None and os.path.exists(candidate):
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
            if version.startswith("v") and int(version[1:].partition(".")[0]) >= OLDEST_NODE:
                return candidate
    return None


def example() -> Sequence[str]:
    """Return the command of the example that can run here: JavaScript, else curl."""
    found = node()
    return SHELL_COMMAND if found is None else (found, str(EXAMPLES / "pull_worker.mjs"))


def which() -> str:
    """Return a line that says which of the examples run here."""
    found, curl = node(), shutil.which("curl")
    return (
        f"JavaScript: {found or f'left out, because there is no Node of version {OLDEST_NODE} or newer'}; "
        f"shell: {curl or 'left out, because there is no curl'}"
    )


class Program:
    """An example worker as a process, whose lines are read as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.id = ""

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def program(command: Sequence[str], url: str, token: str | None = None) -> AsyncIterator[Program]:
    """Run an example until the block ends, in a process group of its own."""
    environment = {**os.environ, "DUETIME_SERVER": url, **({} if token is None else {"DUETIME_TOKEN": token})}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE, process_group=0)
    program = Program(process)
    try:
        word, program.id = (await program.line()).split()
        assert word == "ready"
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
