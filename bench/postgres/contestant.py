"""Driving the programs that `bench.peers` describes: Duetime and its peers on the same server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.peers import install
from bench.rounds import ROOT, import_path

PATIENCE = 300.0  # seconds that one word or one verb may take before the case counts as failed


def _nothing() -> None: ...


@dataclass(frozen=True)
class Contestant:
    """A program, and how to find in the database what has been completed durably.

    `left` is a query for the number of tasks that are not completed. `kept` is one for the number of completed tasks of which the
    database keeps a record since an instant in microseconds; None if it keeps none. `install` makes the program ready.
    """

    name: str
    command: Sequence[str]
    left: str
    kept: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    install: Callable[[], None] = _nothing
    folder: Path = ROOT

    def given(self, **environment: object) -> Contestant:
        """Return the same with other settings."""
        return replace(self, environment={**self.environment, **{name: str(value) for name, value in environment.items()}})

    def do(self, url: str, verb: str, *arguments: object, line: object = None) -> Any:
        """Run a verb to its end, with a line of JSON on its standard input, and return the last line of its output."""
        return asyncio.run(self.done(url, verb, *arguments, line=line))

    async def done(self, url: str, verb: str, *arguments: object, line: object = None) -> Any:
        process = await self._spawn(url, verb, *map(str, arguments))
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(b"" if line is None else json.dumps(line).encode() + b"\n")
        if process.returncode != 0:
            raise RuntimeError(f"{self.name} {verb} failed:\n{err.decode()[-4000:]}")
        said = out.decode().strip().splitlines()
        return json.loads(said[-1]) if said else None

    @contextlib.asynccontextmanager
    async def started(self, url: str, verb: str, *arguments: str, number: int = 1) -> AsyncIterator[list[Started]]:
        """Start so many processes that run until they are stopped; all are ready when this returns."""
        started = [Started(self.name, await self._spawn(url, verb, *arguments)) for _ in range(number)]
        try:
            for each in started:
                word = await each.read()
                assert word == "ready", word
            yield started
        finally:
            await asyncio.gather(*(each.stop() for each in started))

    async def _spawn(self, url: str, verb: str, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, **self.environment, "BENCH_URL": url}
        return await asyncio.create_subprocess_exec(
            *(*self.command, verb, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, cwd=self.folder, env=environment
        )


class Started:
    """A running process of a contestant."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    async def read(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            line = await self._stdout.readline()
        if not line:
            complaint = (await self._stderr.read()).decode()
            raise RuntimeError(f"{self._name} ended too soon:\n{complaint[-4000:]}")
        return json.loads(line)

    def go(self) -> None:
        self._stdin.write(b"\n")

    async def stop(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(15):
                await self._process.communicate()  # reads on: a process that waits for space in a full pipe could not stop
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _python(module: str, *folders: Path) -> dict[str, Any]:
    return {"command": (sys.executable, "-m", module), "environment": import_path(ROOT, *folders)}


# "Best" has slots for whole batches; pickup and lateness are measured with the default concurrency.
DUETIME = Contestant(
    "Duetime",
    **_python("bench.postgres.duetime"),
    left="select coalesce(sum(n), 0) from duetime.tally where state = 'live'",
    kept="select count(*) from duetime.history where finished_at >= %s",
)
DUETIME_BEST = DUETIME.given(BENCH_CONCURRENCY=1_000)
GRAPHILE = Contestant(
    "graphile-worker",
    command=(str(install.NODE), str(ROOT / "bench" / "peers" / "graphile.mjs")),
    environment={"BENCH_MODULES": str(install.NODE_FOLDER)},
    left="select count(*) from graphile_worker._private_jobs",
    install=install.graphile_worker,
)
PGQUEUER = Contestant(
    "PgQueuer",
    **_python("bench.peers.pgqueuer", install.PGQUEUER_FOLDER),
    left="select count(*) from pgqueuer",
    install=install.pgqueuer,
)
