"""The stores that the suite runs on. A new store adds one entry to PLACES; what it cannot do, it leaves out of `can`."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from duetime.clock import Instant


def die_in_another_process(url: str, now: Instant, worker: str, wants: Mapping[str, int]) -> int:
    """Run a worker that claims and is killed with all that it holds; give how many tasks it claimed."""
    order = json.dumps({"url": url, "now": now, "worker": worker, "wants": wants})
    doomed = subprocess.run(
        [sys.executable, "-m", "tests.conformance.doomed", order],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if doomed.returncode != -9:
        raise AssertionError(f"the doomed worker should have been killed, but ended with {doomed.returncode}: {doomed.stderr}")
    return int(doomed.stdout)


def _memory(folder: Path) -> str:
    return "sqlite:///:memory:"


def _file(folder: Path) -> str:
    return f"sqlite:///{folder / 'duetime.db'}"


def _connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "duetime.db", isolation_level=None)


def _make_newer(folder: Path) -> None:
    connection = _connect(folder)
    connection.execute("insert into duetime_version values (9999, 'from the future', 0)")
    connection.close()


@dataclass(frozen=True)
class Place:
    """One kind of store.

    `can` names capabilities, which are names of fixtures: a test that asks for one runs only where it is given.
    `another`: a second store object may open the same data. `dead_worker`: a worker can really die.
    `connection`: tasks can be added on a connection of the caller's own.
    `newer_tables`: its schema can be made to look like that of a later version.
    `examples` is how often the state machine is run, because stores differ in speed.
    """

    name: str
    url: Callable[[Path], str]
    can: frozenset[str] = field(default_factory=frozenset)
    examples: int = 500
    connect: Callable[[Path], sqlite3.Connection] = _connect
    make_newer: Callable[[Path], None] = _make_newer
    die: Callable[[str, Instant, str, Mapping[str, int]], int] = die_in_another_process


PLACES = [
    Place("sqlite-memory", _memory, examples=500),
    Place("sqlite-file", _file, can=frozenset({"another", "dead_worker", "connection", "newer_tables"}), examples=20),
]
CAPABILITIES = frozenset[str]().union(*(place.can for place in PLACES))
