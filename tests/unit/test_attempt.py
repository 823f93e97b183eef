"""One attempt in a worker: what is made only on demand."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from duetime.ids import new_id
from duetime.store.values import ClaimedTask
from duetime.targets.context import Resources
from duetime.targets.host import TargetHost
from duetime.targets.output import OutputFiles, Sink
from duetime.targets.spec import HandlerSpec
from duetime.worker.attempt import Attempt


class Nowhere:
    """What an attempt needs of its executor."""

    resources = Resources()
    host = TargetHost()
    permits = None

    def __init__(self, output: OutputFiles | None) -> None:
        self.output = output

    def report(self, attempt: Attempt, fraction: float, text: str) -> None: ...

    def may_begin(self, attempt: Attempt) -> bool:
        return True

    def has_begun(self, attempt: Attempt) -> None: ...


def attempt(output: OutputFiles | None) -> Attempt:
    nothing: dict[str, Any] = dict.fromkeys(ClaimedTask.__struct_fields__)
    claimed = ClaimedTask(**nothing | {"id": new_id(), "handler": "work", "attempt": 1})
    return Attempt(claimed, cast(HandlerSpec, None), Nowhere(output), None, 0, 0)


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path)


def test_an_attempt_has_one_sink_whoever_asks_for_it(files: OutputFiles) -> None:
    running = attempt(files)
    together = threading.Barrier(8)
    seen: list[Sink | None] = []

    def ask() -> None:
        together.wait(10)
        seen.append(running.sink)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 8
    assert set(seen) == {running.sink}


def test_an_attempt_without_output_files_has_no_sink() -> None:
    assert attempt(None).sink is None


@pytest.mark.parametrize("asked_before", [True, False])
def test_what_is_printed_after_the_end_is_not_the_attempts(files: OutputFiles, *, asked_before: bool) -> None:
    running = attempt(files)
    if asked_before:
        assert running.sink is not None
    running.end()
    assert running.sink is not None
    assert not running.sink.write("too late\n")
    assert not files.path(running.claimed.id, 1).exists()


def test_an_end_lets_the_context_go(files: OutputFiles) -> None:
    running = attempt(files)
    assert running.context is running.context
    running.end()
    assert running.made is None
