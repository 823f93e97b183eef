"""`duetime workers`: showing and draining one."""

from __future__ import annotations

import signal

import pytest

from tests.cli.conftest import CommandLine, Program, until
from tests.cli.test_server import server
from tests.servers.waiting import PATIENCE


@pytest.mark.slow
def test_a_worker_is_shown_drained_and_let_go_on(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet"):
        [found] = duetime.json("workers")["items"]
        worker = found["id"]
        said = duetime("workers", "show", worker).stdout
        assert found["version"] in said
        assert found["python"] in said
        assert "claims nothing more; nothing runs in it" in duetime("workers", "drain", worker).stderr
        assert duetime.lines("workers")[1].split()[1] == "draining"
        task = duetime.submit("greet", "name=x")
        assert "drains: nothing more starts there" in duetime("why", task).stdout
        assert duetime.json("workers", "show", worker)["worker"]["draining"] is True
        assert "claims again" in duetime("workers", "drain", "--undo", worker).stderr
        duetime("submit", "greet", "name=y", "--wait")
        acts = [act["action"] for act in duetime.json("audit")["items"] if act["subject"] == worker]
        assert acts == ["workers.undo_drain", "workers.drain"]


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("REQ.11", "XXL.6")
def test_workers_and_servers_are_found_by_their_names_and_addresses_and_wake_up_for_work(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet", "--id", "mill-7"), server(program) as running:
        [worker] = duetime.json("workers")["items"]
        assert worker["id"].startswith("mill-7.")

        def beats() -> bool:
            [now] = duetime.json("workers")["items"]
            return bool(now["alive"]) or now["beat_at"] > worker["beat_at"]  # in a file it is a lock that the worker holds

        until(beats, lambda: "the worker beats")
        assert running.ask("GET", "/readyz")[0] == 200
        until(lambda: bool(duetime.json("servers")["items"]), lambda: "the server is known")
        [found] = duetime.json("servers")["items"]
        assert (found["url"], found["silent_for"]) == (f"http://{running.host}", None)
        assert running.host in duetime("servers").stdout
        duetime("submit", "greet", "name=y", "--wait")
        assert duetime.ids("--where", "worker:mill-7")
        running.signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
    assert "no server is there" in duetime("servers").stderr


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("RSQ.3")
def test_signals_show_a_worker_let_it_stand_by_and_stop_it_and_everything_is_paused(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet") as worker:
        worker.signal(signal.SIGUSR1)
        worker.until_said(r"is well")
        worker.signal(signal.SIGUSR2)
        worker.until_said(r"SIGUSR2: starts nothing more")
        task = duetime.submit("greet", "name=x")
        assert "drains: nothing more starts there" in duetime("why", task).stdout
        worker.signal(signal.SIGUSR2)
        worker.until_said(r"SIGUSR2: claims again")
        until(lambda: duetime.json("task", task)["state"] == "succeeded", lambda: "the task ran")
        duetime("gates", "pause", "*")
        held = duetime.submit("greet", "name=y")
        assert duetime.json("task", held)["state"] == "pending"
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert duetime.json("task", held)["state"] == "pending"


def test_a_bad_name_of_a_worker_is_refused(program: Program, duetime: CommandLine) -> None:
    assert "letters, digits" in duetime("worker", "x:app", "--id", "a b", code=2).stderr


def test_a_worker_that_is_not_there_ends_with_not_found(program: Program, duetime: CommandLine) -> None:
    duetime.submit("greet", "name=x", "--allow-unknown")
    assert "duetime workers" in duetime("workers", "drain", "nobody", code=3).stderr
