"""SIGTERM at every instant of a start: the process stops in order, with exit code 0, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import State
from duetime.starting import is_command, signal_held_back
from duetime.store import Store
from tests.chaos.fleet import ROOT, Fleet
from tests.servers.waiting import PATIENCE

APP = "tests.attacks.stopping:app"
INSTANTS = [
    "import",
    "import that swallows it",
    "destructor in an import",
    "lifespan",
    "lifespan that waits for ever",
    "lifespan that will not be cancelled",
    "registering",
    "confirming",
    "claiming",
    "first attempt",
]


class Start:
    """A command that is starting, with SIGTERM blocked as a supervisor does it."""

    def __init__(self, fleet: Fleet, *arguments: str, stop_at: str = "", blocked: bool = True) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")},
            "DUETIME_URL": fleet.url,
            "STOP_AT": stop_at,
            "STOP_LEFT": str(fleet.folder / "left"),
        }
        with signal_held_back() if blocked else contextlib.nullcontext():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duetime.cli", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

    def signal(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it said."""
        try:
            said = self._process.communicate(timeout=PATIENCE)[1]
        finally:
            self._process.kill()
        return self._process.returncode, said


async def nothing_is_left(store: Store, folder: Path) -> None:
    """Assert that no worker, claim, lock, socket or output folder is left. The test's own process has none of them."""
    assert await store.workers() == []
    assert not any(lane.running for lane in (await store.counts()).lanes)
    left = [str(path.relative_to(folder)) for path in folder.glob("*-duetime/*/*")]  # noqa: ASYNC240
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_worker_that_is_told_to_stop_at_an_instant_of_its_start_stops_in_order(fleet: Fleet, instant: str) -> None:
    task = await fleet.one("work")
    code, said = await asyncio.to_thread(Start(fleet, "worker", APP, stop_at=instant, blocked=False).ended)
    assert code == 0, said
    await nothing_is_left(fleet.store, fleet.folder)
    assert "SIGTERM: stop" in said, said
    never_entered = "import" in instant or instant == "lifespan that waits for ever"
    assert (fleet.folder / "left").exists() is not never_entered, "a lifespan that was entered is left"
    if never_entered:
        assert said.startswith("duetime: SIGTERM: stopped before it began\n")
    found = await fleet.app.get(task.id)
    assert (found.state, found.tries) in [(State.PENDING, 0), (State.SUCCEEDED, 0)]


@pytest.mark.slow
async def test_a_worker_on_postgres_that_is_told_to_stop_while_it_starts_unregisters(postgres_fleet: Fleet) -> None:
    for instant in ("import", "lifespan that waits for ever", "first attempt"):
        await postgres_fleet.one("work")
        code, said = await asyncio.to_thread(Start(postgres_fleet, "worker", APP, stop_at=instant, blocked=False).ended)
        assert code == 0, said
        await nothing_is_left(postgres_fleet.store, postgres_fleet.folder)


def instants(count: int, longest: float) -> Iterator[float]:
    """Spread instants over a start, the first of them before the interpreter has begun."""
    return (number * longest / count for number in range(count))


COMMANDS = {
    "worker": (("worker", APP), 16),
    "supervisor": (("worker", APP, "--processes", "2"), 8),
    "server": (("server", APP, "--port", "0"), 8),
    "dev": (("dev", APP, "--port", "0"), 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_storm_of_stops_finds_no_instant_at_which_a_command_dies(fleet: Fleet, command: str) -> None:
    arguments, count = COMMANDS[command]
    ends = []
    for pause in instants(count, 0.8):
        start = Start(fleet, *arguments)
        time.sleep(pause)  # noqa: ASYNC251 - an instant of the start, not a wait for something
        start.signal()
        ends.append((pause, *await asyncio.to_thread(start.ended)))
    assert [end for end in ends if end[1] != 0] == []
    assert not any("did not stop in order" in said or "Traceback" in said for _, _, said in ends)
    await nothing_is_left(fleet.store, fleet.folder)


@pytest.mark.parametrize(
    ("arguments", "whole", "expected"),
    [
        (["-m", "worker", "shop:app"], ["python", "-m", "duetime.cli", "worker", "shop:app"], True),
        (["-m", "server"], ["python", "-X", "dev", "-m", "duetime.cli", "server"], True),
        (["/usr/bin/duetime", "dev"], ["python", "/usr/bin/duetime", "dev"], True),
        (["-m", "{}"], ["python", "-m", "duetime.cli.dev.serving", "{}"], True),
        (["/usr/bin/duetime", "tasks"], ["python", "/usr/bin/duetime", "tasks"], False),
        (["/usr/bin/duetime"], ["python", "/usr/bin/duetime"], False),
        (["-m", "worker"], ["python", "-m", "celery", "worker"], False),
        (["shop.py", "worker"], ["python", "shop.py", "worker"], False),
        (["-m"], ["python", "-m"], False),
        ([], [], False),
    ],
)
def test_only_commands_that_run_until_they_are_stopped_handle_the_signal(arguments: list[str], whole: list[str], expected: bool) -> None:
    assert is_command(arguments, whole) is expected


def test_a_program_that_uses_the_library_keeps_its_own_way_with_signals() -> None:
    code = "import signal, duetime; assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    subprocess.run([sys.executable, "-c", code, "worker"], check=True, timeout=PATIENCE)
