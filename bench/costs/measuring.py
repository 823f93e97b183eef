"""Measuring a case once: its two phases, each in a process of its own, on a store that holds nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.costs.stores import MeasuredStore
from bench.rounds import ROOT, import_path

PHASES = ("submit", "run")
SUBMITTED_ONLY = ("single",)  # once stored, such tasks are plain ones
# How many tasks each case has: enough that what a process does once, at its start and end, is a small part.
CASES: Mapping[str, int] = {"plain": 20_000, "keyed": 20_000, "retried": 5_000, "scheduled": 1_000, "single": 1_000}
# Cases that are measured only where they are asked for, and kept on no page: limits by key and by rate that do not bind.
MORE: Mapping[str, int] = {"by_key": 20_000, "by_rate": 20_000}


@dataclass(frozen=True)
class Version:
    """A checkout of this repository whose package is measured."""

    name: str
    folder: Path

    def commit(self) -> str:
        """Return the commit, with a mark if the package was changed since."""
        revision = _git(self.folder, "rev-parse", "--short", "HEAD")
        return revision + (" with changes" if _git(self.folder, "status", "--porcelain", "src") else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def measure(version: Version, store: MeasuredStore, case: str, tasks: int, *, count: bool) -> dict[str, dict[str, float]]:
    """Return the costs per task of each phase: counts, or with `count` off CPU time and bytes. `longest` is in seconds.

    Counting disturbs the time and the other way round, so one run measures only one of them.
    """
    url = store.fresh(version.name, lambda url: _prepare(version, url))
    costs = {}
    for phase in phases_of(case):
        store.settle_down()
        if count:
            with store.counted(url, wake_ups=phase == "run") as counted:
                costs[phase] = _phase(version, store, phase, counted, case, tasks, count=True)
        else:
            costs[phase] = _phase(version, store, phase, url, case, tasks, count=False)
    return costs


def phases_of(case: str) -> Sequence[str]:
    return PHASES[:1] if case in SUBMITTED_ONLY else PHASES


def _prepare(version: Version, url: str) -> None:
    with Program(version, "prepare", url) as program:
        program.finish()


def _phase(version: Version, store: MeasuredStore, phase: str, url: str, case: str, tasks: int, *, count: bool) -> dict[str, float]:
    options = ("count",) if count and store.embedded else ()
    with Program(version, phase, url, case, str(tasks), *options) as program:
        program.read()
        before = store.read()
        program.go_on()
        spent: dict[str, float] = program.read()
        spent |= store.since(before)
        program.go_on()
        program.finish()
    if count:
        del spent["program"]
    return {name: value if name == "longest" else value / tasks for name, value in spent.items()}


class Program:
    """A running `bench.costs.program` with the package of one version."""

    def __init__(self, version: Version, *arguments: str) -> None:
        self._what = f"{' '.join(arguments)} of {version.folder}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.costs.program", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **import_path(ROOT, version.folder / "src"), "PYTHONHASHSEED": "0"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._errors):
            stream.close()

    def read(self) -> Any:
        line = self._stdout.readline()
        if not line:
            self.finish()
            raise RuntimeError(f"{self._what} said nothing")
        return json.loads(line)

    def go_on(self) -> None:
        self._stdin.write(b"\n")
        self._stdin.flush()

    def finish(self) -> None:
        if self._process.wait() != 0:
            self._errors.seek(0)
            raise RuntimeError(f"{self._what} failed:\n{self._errors.read().decode(errors='replace')[-4_000:]}")
